"""Pairings: the choice of data on which the two points of an acceptance test are evaluated. One per file."""
