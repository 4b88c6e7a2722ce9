"""Banks of equi-energy samplers: stored points of the hotter rungs with their energies."""

from __future__ import annotations

import torch
from torch import Tensor

THETA, ENERGY, STAMP, SEEN = "bank_theta", "bank_energy", "bank_stamp", "bank_seen"


class Bank:
    """A bounded store of points and their energies: R rows (one per rung) of `capacity` entries.

    A row holds a uniform sample of all points that its rung has added (Vitter 1985, algorithm R), so that each energy
    ring is a thinned version of the ring of the whole history. With `latest` it holds the most recent points instead.

    A bank takes ``rows * capacity * (8 dim + 16)`` bytes. It is part of `State.aux`, so it is saved with the state and
    restored bit by bit. It is updated in place, because copying it would cost more than a step.

    Args:
        rows: number of rungs that add points, R.
        capacity: entries per row.
        dim: D.
        latest: keep the most recent points instead of a uniform sample.
    """

    def __init__(self, rows: int, capacity: int, dim: int, latest: bool = False) -> None:
        self.rows = rows
        self.capacity = capacity
        self.dim = dim
        self.latest = latest

    def empty(self, device: torch.device) -> dict[str, Tensor]:
        """Return an empty bank; unused entries have the energy NaN."""
        shape = (self.rows, self.capacity)
        return {
            THETA: torch.zeros(*shape, self.dim, dtype=torch.float64, device=device),
            ENERGY: torch.full(shape, torch.nan, dtype=torch.float64, device=device),
            STAMP: torch.zeros(shape, dtype=torch.int64, device=device),
            SEEN: torch.zeros(self.rows, dtype=torch.int64, device=device),
        }

    def drawn(
        self, aux: dict[str, Tensor], rows: Tensor, low: Tensor, high: Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw uniformly from the ring [low, high) of each row; return whether it has entries, and the index drawn.

        Args:
            aux: the bank.
            rows: the rows, (P,).
            low: lower energy of the ring, inclusive (P,).
            high: upper energy of the ring, exclusive (P,).
            u: uniforms (P,).
        """
        energy = aux[ENERGY][rows]
        inside = (energy >= low[:, None]) & (energy < high[:, None])
        count = inside.sum(1)
        rank = (u * count).long()
        place = (inside.cumsum(1) > rank[:, None]).int().argmax(1)
        return count > 0, place

    def add(
        self, aux: dict[str, Tensor], rows: Tensor, theta: Tensor, energy: Tensor, stamp: Tensor, u: Tensor
    ) -> None:
        """Add a point to each of the rows (P,), in place; u (P,) are uniforms."""
        n_seen = aux[SEEN][rows]
        overwritten = n_seen % self.capacity if self.latest else (u * (n_seen + 1)).long()
        place = torch.where(n_seen < self.capacity, n_seen, overwritten)
        aux[SEEN][rows] = n_seen + 1
        kept = place < self.capacity
        rows, place = rows[kept], place[kept]
        aux[THETA][rows, place] = theta[kept].double()
        aux[ENERGY][rows, place] = energy[kept]
        aux[STAMP][rows, place] = stamp[kept]
