"""Data of files that are opened on first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

from mhrun.data.dataset import Dataset


class LazyData(ABC):
    """Data whose number is known once their files are open."""

    @property
    def n(self) -> int:
        """The number of data; opens the files."""
        return self._loaded.n

    def load(self) -> Dataset:
        """Return the data set.

        Raises:
            UserError: a file, or what must be in it, is missing or invalid.
        """
        return self._loaded

    @cached_property
    def _loaded(self) -> Dataset:
        return self._dataset()

    @abstractmethod
    def _dataset(self) -> Dataset:
        """Return the data set of the files."""
