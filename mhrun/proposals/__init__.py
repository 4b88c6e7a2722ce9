"""Proposals: where to, and how likely was that? One per file."""
