"""Recurrent networks that read an image row by row (Luo et al. 2020, section 4.2)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from mhrun.errors import Refusal
from mhrun.models.module import ModuleModel


class Reader(nn.Module):
    """An LSTM over the rows of an image; linear layers on its last output."""

    def __init__(self, rows: int, columns: int, hidden: int, dense: int, classes: int) -> None:
        super().__init__()
        self.shape = (rows, columns)
        self.lstm = nn.LSTM(columns, hidden, batch_first=True)
        self.out = nn.Sequential(nn.ReLU(), nn.Linear(hidden, dense), nn.ReLU(), nn.Linear(dense, classes))

    def forward(self, x: Tensor) -> Tensor:
        """(m, rows * columns) -> (m, classes)."""
        logits: Tensor = self.out(self.lstm(x.reshape(-1, *self.shape))[0][:, -1])
        return logits


class Recurrent(ModuleModel):
    """An LSTM over the rows of an image, ReLU, a linear layer, ReLU, and a linear layer for the classes.

    With the defaults 89,802 parameters, as in Luo et al. (2020): 28 rows of 28 pixels, 128 hidden units, 64 units.

    Args:
        rows: rows of an image, the steps of the LSTM.
        columns: pixels that each step reads.
        hidden: units of the LSTM.
        dense: units of the linear layer.
        classes: K.
        prior_variance: prior variance of every parameter, N(0, variance); flat if None.
        evaluation: see `mhrun.models.module.ModuleModel`.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        rows: int = 28,
        columns: int = 28,
        hidden: int = 128,
        dense: int = 64,
        classes: int = 10,
        prior_variance: float | None = None,
        evaluation: Literal["auto", "bound", "vmapped"] = "auto",
    ) -> None:
        if min(rows, columns, hidden, dense, classes) < 1:
            raise Refusal("Recurrent needs rows, columns, hidden, dense and classes of at least 1.")
        module = Reader(rows, columns, hidden, dense, classes)
        super().__init__(module, "categorical", prior_variance, evaluation)
