"""Pairings: on which data are the two points of an acceptance test scored? One per file."""
