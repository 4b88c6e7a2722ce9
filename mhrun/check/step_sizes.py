"""The step sizes at which a kernel is checked: the largest with a moderate acceptance rate, or that are stable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from mhrun.array_types import FloatArray
from mhrun.check.case import Case
from mhrun.check.trajectories import ChainPaths
from mhrun.errors import UserError
from mhrun.parts import Kernel
from mhrun.target import Target

# The step size is the largest with this acceptance rate, or with this share of that of the smallest step, if that is
# less; the second numbers are for targets in several dimensions.
_ACCEPTED, _OF_LIMIT = (0.35, 0.25), (0.7, 0.5)
_STEPS = 2.0 ** np.arange(-24, 9)  # step sizes that are tried
_DECIDING, _MOVING = 6, 60  # steps of a trial of a kernel with an acceptance test, and of a dynamics
_HEALTHY = (0.5, 2.0)  # of a dynamics: largest ratio of the variance to the target's

# What a kernel may raise at a step size that is far too long.
_FAILURES = (UserError, ArithmeticError, ValueError, RuntimeError)

Follow = Callable[[Kernel, Target, FloatArray, int, float, FloatArray], ChainPaths]
"""Moves chains of a kernel on a target from theta (C, D) in so many steps of a size at temperatures (C,)."""


class StepSizes(NamedTuple):
    """What searches found, by kernel, target and temperature."""

    largest: dict[str, float]  # step sizes of the checks
    limits: dict[str, float]  # acceptance rates of the smallest step


class StepSizeSearch:
    """Tries step sizes in short runs that begin in the target.

    Args:
        follow: runs a trial.
        adds_no_noise: whether a dynamics without an acceptance test adds no noise at a step size, so that no variance
            is too small.
        temperature: of each chain of a trial (C,), in units of that of the coldest rung.
        seed: of the starting points.
        results: of earlier searches, which are not repeated; new ones are added.
    """

    def __init__(
        self,
        follow: Follow,
        adds_no_noise: Callable[[Case, float], bool],
        temperature: FloatArray,
        seed: int,
        results: StepSizes,
    ) -> None:
        self._follow, self._adds_no_noise = follow, adds_no_noise
        self._temperature, self._seed, self._results = temperature, seed, results

    def largest(self, case: Case) -> float:
        """Return the largest step size with a moderate acceptance rate, or of a dynamics with a right variance.

        Raises:
            UserError: the kernel runs at no step size.
        """
        key = _key(case)
        if key not in self._results.largest:
            self._results.largest[key] = (
                self._by_acceptance(case) if case.kernel.decides else self._by_variance(case)
            )
        return self._results.largest[key]

    def limit(self, case: Case) -> float:
        """Return the acceptance rate of the smallest step, the limit where r = 1; 1 if it cannot be measured."""
        key = _key(case)
        if key not in self._results.limits:
            begin = self._begin(case)
            try:
                rate = _acceptance(self._trial(case, begin, _DECIDING, float(_STEPS[0])))
            except _FAILURES:
                rate = 1.0
            self._results.limits[key] = rate if rate > 0 else 1.0
        return self._results.limits[key]

    def refuses_all(self, case: Case) -> bool:
        """Return whether a kernel rejects every candidate of a target, at the smallest step size too."""
        trajectory = self._trial(case, self._begin(case), _DECIDING, float(_STEPS[0]))
        return not bool(trajectory.stat("accepted").any())

    def _by_acceptance(self, case: Case) -> float:
        """Return the largest step size with enough acceptances, else the one with most."""
        known = case.known
        several = int(known.model.dim > 1)
        enough = min(_ACCEPTED[several], _OF_LIMIT[several] * self.limit(case))
        best, most, error = float(_STEPS[0]), -1.0, None
        for step, trial in self._trials(case, _DECIDING):
            if isinstance(trial, Exception):
                error = trial
                continue
            rate = _acceptance(trial)
            if rate >= enough:
                return step if step < _STEPS[-1] else known.scale * case.base**0.5
            if rate > most:
                best, most = step, rate
        if most < 0 and error is not None:
            raise error
        return best

    def _by_variance(self, case: Case) -> float:
        """Return the largest step size at which the variance is about that of the target, else the smallest."""
        is_coldest = torch.from_numpy(self._temperature == self._temperature.min())
        error = None
        for step, trial in self._trials(case, _MOVING):
            if isinstance(trial, Exception):
                error = trial
                continue
            ends = trial.theta[_MOVING // 2 :, is_coldest].numpy()
            ratio = float(np.mean(((ends - case.known.centre) / case.known.sds) ** 2)) / case.base
            least = 0.0 if self._adds_no_noise(case, step) else _HEALTHY[0]
            if least <= ratio < _HEALTHY[1] and not trial.stat("diverging").any():
                return step
        if error is not None:
            raise error
        return float(_STEPS[0])

    def _trials(self, case: Case, steps: int) -> Iterator[tuple[float, ChainPaths | Exception]]:
        """Yield the step sizes, the longest first, with where chains went or why they could not."""
        begin = self._begin(case)
        for step in map(float, _STEPS[::-1]):
            trial: ChainPaths | Exception
            try:
                trial = self._trial(case, begin, steps, step)
            except _FAILURES as failed:
                trial = failed
            yield step, trial

    def _trial(self, case: Case, begin: tuple[FloatArray, FloatArray], steps: int, step: float) -> ChainPaths:
        theta, temperature = begin
        return self._follow(case.kernel, case.target, theta, steps, step, temperature)

    def _begin(self, case: Case) -> tuple[FloatArray, FloatArray]:
        """Return starting points (C, D) of the chains of a trial, and their temperatures (C,)."""
        temperature = case.base * self._temperature
        return case.known.draw(np.random.default_rng(self._seed), temperature), temperature


def _acceptance(trial: ChainPaths) -> float:
    return float(trial.stat("accepted").double().mean())


def _key(case: Case) -> str:
    kernel = case.kernel
    return f"{case.known.name}/{type(kernel).__name__}/{kernel.reads(case.target)}/{case.base}"
