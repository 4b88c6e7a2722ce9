"""Data sets: each file makes one kind, and hands over a `Dataset`."""

from mhrun.data.dataset import Dataset

__all__ = ["Dataset"]
