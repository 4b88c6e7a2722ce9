"""Dynamics: transitions without a tractable density. One per file."""
