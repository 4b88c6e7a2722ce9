"""One starting point of a model, from which searches and probes begin."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.random import Draws, Streams
from mhrun.types import Model
from mhrun.types.capabilities import HasStartRows, offers


def first_point(model: Model, device: torch.device) -> Tensor:
    """Return where the first chain begins (1, D) in float64, with the key 0.

    A model may have starting points for one number of chains only.
    """
    chains = model.start_rows if offers(model, HasStartRows) else 1
    return model.init(chains, Draws(Streams(0, chains, device), 0))[:1].double()
