"""What the draws of one method show about themselves and their model, once its steps have ended."""
