"""Checks of a user's model before a run."""
