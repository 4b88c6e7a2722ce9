"""Largest numbers of parameters for which a pilot finds a scale."""

from __future__ import annotations

from mhrun.target.function_space import is_network
from mhrun.types import Model

# From D^2 numbers of curvature; a network's says little of its posterior.
_MOST_SCALED, _MOST_OF_A_NETWORK = 1_000, 200


def most_scaled(model: Model) -> int:
    """Return the most parameters of a model for which a pilot finds a scale."""
    return _MOST_OF_A_NETWORK if is_network(model) else _MOST_SCALED
