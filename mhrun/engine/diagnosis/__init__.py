"""What the draws of one method show about themselves, once its steps have ended. It warns of nothing."""
