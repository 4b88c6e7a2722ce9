"""``mhrun list``: experiments and runs, read without torch or Hydra."""
