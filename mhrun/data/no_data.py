"""No data: for a model that is a density of its own."""

from __future__ import annotations

import torch

from mhrun.data.dataset import Dataset
from mhrun.errors import Refusal


class NoData:
    """One datum that says nothing: the log-likelihood of it is the model's log density.

    Every part of the engine then works as it does on data: n = 1, a temperature T is the density to the
    power 1/T, and an evaluation of the density counts as one.

    Args:
        n: 1; it stands in the configuration for the settings that ask how many data there are.

    Raises:
        Refusal: another n.
    """

    def __init__(self, n: int = 1) -> None:
        if n != 1:
            raise Refusal(f"data.n = {n}: a density without data counts as one datum.")
        self.n = n

    def load(self) -> Dataset:
        """Return the datum."""
        return Dataset({"x": torch.zeros(1, 1, dtype=torch.float64)}, "no data: the model is a density")
