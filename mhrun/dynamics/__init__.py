"""Dynamics: where to, with no density behind it. One per file."""
