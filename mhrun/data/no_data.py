"""No data: for a model that is a density."""

from __future__ import annotations

import torch

from mhrun.data.dataset import Dataset
from mhrun.errors import Refusal

_DESCRIPTION = "no data: the model is a density"


def has_no_data(data: Dataset) -> bool:
    """Return whether a data set is that of `NoData`."""
    return data.description == _DESCRIPTION


class NoData:
    """One datum without content, whose log-likelihood is the model's log density.

    The engine then works as with data: n = 1, temperature T means the density to the power 1/T, and each evaluation of
    the density counts as one.

    Args:
        n: 1; for settings that refer to the number of data.

    Raises:
        Refusal: another n.
    """

    def __init__(self, n: int = 1) -> None:
        if n != 1:
            raise Refusal(f"data.n = {n}: a density without data counts as one datum.")
        self.n = n

    def load(self) -> Dataset:
        """Return the datum."""
        return Dataset({"x": torch.zeros(1, 1, dtype=torch.float64)}, _DESCRIPTION)
