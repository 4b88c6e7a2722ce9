"""Data sets; every class loads a `Dataset`."""

from mhrun.data.dataset import Dataset

__all__ = ["Dataset"]
