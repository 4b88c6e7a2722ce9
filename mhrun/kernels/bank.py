"""Banks of equi-energy samplers: what the hotter rungs have seen, by energy."""

from __future__ import annotations

import torch
from torch import Tensor

THETA, ENERGY, STAMP, SEEN = "bank_theta", "bank_energy", "bank_stamp", "bank_seen"


class Bank:
    """A bounded memory of points and their energies for each of some rungs, R rows of `capacity` entries.

    Each row is a uniform sample of all that the rung has handed in (Vitter 1985, algorithm R), so that a ring of it is
    what the ring of the whole history is, thinned; or the latest that it has handed in. It takes
    ``rows * capacity * (8 dim + 16)`` bytes, and lives in `State.aux`: it is saved with the state, and a run that goes
    on from there has it to the bit. It is written to in place, as a copy at each step would cost more than the step.

    Args:
        rows: rungs that hand in, R.
        capacity: entries of each.
        dim: D.
        latest: keep the latest, not a sample of all.
    """

    def __init__(self, rows: int, capacity: int, dim: int, latest: bool = False) -> None:
        self.rows = rows
        self.capacity = capacity
        self.dim = dim
        self.latest = latest

    def bytes(self) -> int:
        """Return the memory that it takes."""
        return self.rows * self.capacity * (8 * self.dim + 16)

    def empty(self, device: torch.device) -> dict[str, Tensor]:
        """Return the bank with nothing in it: an entry without energy is none."""
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
        """Return a uniform entry of a ring of each of some rows (P,): whether there is one, and its place.

        Args:
            aux: the bank.
            rows: which, (P,).
            low: energies from which on an entry is in the ring (P,).
            high: energies from which on it no longer is (P,).
            u: uniforms (P,).
        """
        energy = aux[ENERGY][rows]
        inside = (energy >= low[:, None]) & (energy < high[:, None])
        count = inside.sum(1)
        which = (u * count).long()
        place = (inside.cumsum(1) > which[:, None]).int().argmax(1)
        return count > 0, place

    def add(
        self, aux: dict[str, Tensor], rows: Tensor, theta: Tensor, energy: Tensor, stamp: Tensor, u: Tensor
    ) -> None:
        """Hand in a point of each of some rows (P,), in place; u (P,) uniforms."""
        seen = aux[SEEN][rows]
        again = seen % self.capacity if self.latest else (u * (seen + 1)).long()
        place = torch.where(seen < self.capacity, seen, again)
        aux[SEEN][rows] = seen + 1
        kept = place < self.capacity
        rows, place = rows[kept], place[kept]
        aux[THETA][rows, place] = theta[kept].double()
        aux[ENERGY][rows, place] = energy[kept]
        aux[STAMP][rows, place] = stamp[kept]
