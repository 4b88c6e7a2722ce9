"""Diagnostics: arrays in, numbers out. Chains come first: (C, S) or (C, S, D)."""
