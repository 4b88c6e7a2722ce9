"""``mhrun list``: experiments and runs."""
