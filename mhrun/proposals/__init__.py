"""Proposals: they draw a candidate and return its log-density. One per file."""
