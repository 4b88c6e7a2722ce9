"""The interface through which the progress of a run is reported."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Receives the progress of methods, of which several may run at a time."""

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """A method starts, or resumes, after `step` steps."""

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Steps are done; counts are of all chains since the first step.

        The rate is that after burn-in, or during it since this start; None for a method without an acceptance test.
        """

    def end(self, method: str) -> None:
        """The method is complete."""

    def note(self, message: str) -> None:
        """A message for the user."""


class Silent:
    """A watcher without output."""

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Ignore it."""

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Ignore it."""

    def end(self, method: str) -> None:
        """Ignore it."""

    def note(self, message: str) -> None:
        """Ignore it."""
