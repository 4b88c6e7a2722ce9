"""The part under test, as a kernel for any number of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.array_types import FloatArray
from mhrun.check.results import NONE, CheckResult
from mhrun.check.targets import Known
from mhrun.errors import Refusal, UserError
from mhrun.kernels import MetropolisHastings
from mhrun.native import available
from mhrun.parts import Kernel
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target
from mhrun.types import Controls, Info, State

# The step size is the largest with this acceptance rate, or with this share of that of the smallest step, if that is
# less; the second numbers are for targets in several dimensions.
_ACCEPTED, _OF_LIMIT = (0.35, 0.25), (0.7, 0.5)
_USUAL = 0.5  # acceptance rate of the smallest step for which the checks' numbers of steps are meant
_MOST_TIMES = 10  # as many steps, at most, for a kernel that accepts less
_STEPS = 2.0 ** np.arange(-24, 9)  # step sizes that are tried
_RATE = 1e-2  # learning rate of a fit, whose draws are stable at any step size
_TOGETHER = 1e-9  # standard deviations that chains may be apart by rounding
_HEALTHY = (0.5, 2.0)  # of a dynamics: largest ratio of the variance to the target's
_MOST_PERIODS = 4  # that are judged apart: they count among the comparisons of a page
_LONGEST = 1 << 40  # of them: random numbers are numbered by steps below 2^52


Check = Callable[["Subject"], Iterator[CheckResult]]


def of_the_target(check_name: str) -> Callable[[Callable[[Subject, str], Iterator[CheckResult]]], Check]:
    """Return a check under its name that does not apply to draws from a fit."""

    def wrapped(judge: Callable[[Subject, str], Iterator[CheckResult]]) -> Check:
        @wraps(judge)
        def checked(subject: Subject) -> Iterator[CheckResult]:
            if subject.fitted:
                yield CheckResult(check_name, NONE, "its draws follow a fit, not the target")
            else:
                yield from judge(subject, check_name)

        return checked

    return wrapped


class ChainPaths(NamedTuple):
    """Where chains went in some steps."""

    theta: Tensor  # (K, C, D)
    infos: list[Info]
    state: State
    periods: Mapping[
        int, int
    ]  # each period at which a kernel changes its step -> how many of those steps were run

    def stat(self, name: str) -> Tensor:
        """Return a statistic of all steps, (K, C)."""
        return torch.stack([getattr(info, name) for info in self.infos])


class _RecordedDraws(Draws):
    """Random numbers that record the periods for which a kernel requests them, see `Draws.due`.

    Not those of the streams that it derives by `part` and `trial`, whose steps are counted otherwise.
    """

    def __init__(self, streams: Streams, ahead: int) -> None:
        self.periods: dict[int, set[int]] = {}  # the steps that are special for each
        super().__init__(streams, 0, ahead)

    def due(self, every: int, last: bool = False) -> bool:
        """Return whether a step is due, see `Draws.due`."""
        is_due = super().due(every, last)
        self._record(every, is_due)
        return is_due

    def coin(self, name: str, every: int) -> bool:
        """Return a coin toss, see `Draws.coin`."""
        self._record(every, self.step % every == 0)
        return super().coin(name, every)

    def parity(self, every: int) -> int:
        """Return 0 and 1 alternately, see `Draws.parity`."""
        self._record(every, self.step % every == 0)
        return super().parity(every)

    def _record(self, every: int, is_due: bool) -> None:
        if every > 1 and self.step:  # a start is no step
            steps = self.periods.setdefault(every, set())
            if is_due:
                steps.add(self.step)


def steps_about(period: int, count: int) -> list[int]:
    """Return `count` step numbers, alternately a multiple of a period and the next.

    Every other one is due, whether steps are due at 1, 1 + period, ... or at period, 2 period, ... A kernel with an
    invariant distribution keeps it in every step, so that it keeps it in any selection of steps.
    """
    return [(k // 2 + 1) * period + k % 2 for k in range(count)]


def _key(kernel: Kernel, known: Known, target: Target, base: float) -> str:
    return f"{known.name}/{type(kernel).__name__}/{kernel.reads(target)}/{base}"


@dataclass
class Subject:
    """A kernel under test.

    Args:
        name: as shown in messages.
        make: (number of data, minibatch size) -> the kernel; equal for the exact kernel.
        seed: of all random numbers.
        chains: C of the checks that are judged by draws.
        n: number of data for measurements with minibatches.
        m: minibatch size for these.
        effective: c = n/T for these.
        step_size: of all checks; None to search for one.
        surrogate: of all targets, see `mhrun.target.Target`.
        kind: what is checked: rule, pairing, proposal, dynamics or kernel. The other parts are the plainest.
        notes: lines on what is checked, for the reader of the results.
    """

    name: str
    make: Callable[[int, int], Kernel]
    seed: int = 0
    chains: int = 8000
    n: int = 2000
    m: int = 100
    effective: float = 20.0
    step_size: float | None = None
    surrogate: str = "none"
    kind: str = "kernel"
    notes: tuple[str, ...] = ()
    _steps: dict[str, float] = field(default_factory=dict)
    _limits: dict[str, float] = field(default_factory=dict)
    _periods: dict[int, int] = field(default_factory=dict)

    def count_periods(self, trajectory: ChainPaths) -> None:
        """Record which periods a trajectory whose distribution is judged has, and how many of their steps."""
        for period, steps in trajectory.periods.items():
            self._periods[period] = max(steps, self._periods.get(period, 0))

    @property
    def periods(self) -> list[int]:
        """The longest periods, above 2, at which the kernel changes its step: those whose steps are judged apart."""
        usual = (period for period in self._periods if 2 < period <= _LONGEST)
        return sorted(usual, reverse=True)[:_MOST_PERIODS]

    @property
    def unseen_periods(self) -> dict[int, int]:
        """Periods -> how many of their steps any judged trajectory has, where that is once at most."""
        return {period: steps for period, steps in sorted(self._periods.items()) if steps < 2}

    def exact(self, known: Known) -> Kernel:
        """Return the kernel that reads all data of a target."""
        return self.made(known.n, known.n, self.target(known))

    def target(self, known: Known) -> Target:
        """Return the target of a known distribution, with the surrogate that the kernel needs."""
        return known.target(self.surrogate)

    def made(self, n: int, m: int, target: Target) -> Kernel:
        """Return a kernel that accepts the target.

        Raises:
            Refusal: the kernel refuses the target.
        """
        kernel = self.make(n, m)
        if reason := kernel.refuses(target):
            raise Refusal(reason)
        return kernel

    def refusal(self, known: Known) -> str | None:
        """Return why the exact kernel refuses a target, or None."""
        return self.make(known.n, known.n).refuses(self.target(known))

    @cached_property
    def rungs(self) -> int:
        """The number of rungs of its ladders; 1 without ladders."""
        return self.make(self.n, self.m).rungs

    @cached_property
    def fitted(self) -> bool:
        """Whether its draws follow an approximation fitted to the target."""
        return self.make(self.n, self.m).fitted

    def whole(self, chains: int) -> int:
        """Return about this number of chains, a multiple of the rungs."""
        return max(1, chains // self.rungs) * self.rungs

    def temperatures(self, chains: int, base: float = 1.0) -> FloatArray:
        """Return the temperature of each chain (C,), doubled from rung to rung."""
        rungs = self.rungs
        temperature: FloatArray = base * 2.0 ** (np.arange(chains) % rungs)
        return temperature

    def shorter(self, chains: int) -> npt.NDArray[np.bool_]:
        """Return which chains (C,) take shorter steps: every other ladder."""
        is_shorter: npt.NDArray[np.bool_] = np.arange(chains) // self.rungs % 2 == 1
        return is_shorter

    def step_for(self, kernel: Kernel, known: Known, target: Target, base: float = 1.0) -> float:
        """Return the step size for a kernel on a target: the largest with a moderate acceptance, or stable.

        Moderate is 0.35, or 0.7 of the acceptance rate of the smallest step if that is less: a lazy rule, which
        rests with some probability whatever the move, would otherwise be checked at steps of almost 0. In several
        dimensions it is 0.25, or 0.5 of that rate. If a kernel accepts as many at the largest step size, as a slice
        sampler does, it is a standard deviation of the target: at far longer steps errors may not show.

        Raises:
            UserError: it runs at no step size.
        """
        if self.step_size is not None:
            return self.step_size
        if self.fitted:
            return _RATE
        key = _key(kernel, known, target, base)
        if key not in self._steps:
            self._steps[key] = self._search(kernel, known, target, base)
        return self._steps[key]

    def times(self, kernel: Kernel, known: Known, target: Target) -> int:
        """Return how many times as many steps a kernel needs because it rejects even the shortest moves: 1 to 10."""
        if not kernel.decides:
            return 1
        return round(min(max(_USUAL / self._limit(kernel, known, target, 1.0), 1.0), _MOST_TIMES))

    def refuses_all(self, kernel: Kernel, known: Known, target: Target) -> bool:
        """Return whether a kernel rejects every candidate of a target, at the smallest step size too."""
        theta, temperature = self._begin(known, 1.0)
        trajectory = self.follow(kernel, target, theta, 6, float(_STEPS[0]), temperature)
        return not bool(trajectory.stat("accepted").any())

    def adds_no_noise(self, kernel: Kernel, known: Known, step: float) -> bool:
        """Return whether chains with a common start stay together on all data, to rounding: an optimiser's do."""
        exact = self.make(known.n, known.n) if isinstance(kernel, MetropolisHastings) else self.exact(known)
        chains = self.whole(4)
        theta = np.tile(known.centre + known.scale, (chains, 1))
        trajectory = self.follow(exact, self.target(known), theta, 5, step, self.temperatures(chains))
        apart = (trajectory.theta - trajectory.theta[:, :1]).abs()
        return bool((apart <= _TOGETHER * known.scale).all())

    def _limit(self, kernel: Kernel, known: Known, target: Target, base: float) -> float:
        """Return the acceptance rate of the smallest step, the limit where r = 1; 1 if it cannot be measured."""
        key = _key(kernel, known, target, base)
        if key not in self._limits:
            theta, temperature = self._begin(known, base)
            try:
                trajectory = self.follow(kernel, target, theta, 6, float(_STEPS[0]), temperature)
                share = float(trajectory.stat("accepted").double().mean())
            except (UserError, ArithmeticError, ValueError, RuntimeError):
                share = 1.0
            self._limits[key] = share if share > 0 else 1.0
        return self._limits[key]

    def _begin(self, known: Known, base: float) -> tuple[FloatArray, FloatArray]:
        """Return starting points of the chains of a search, and their temperatures."""
        temperature = self.temperatures(self.whole(100), base)
        return known.draw(np.random.default_rng(self.seed), temperature), temperature

    def _search(self, kernel: Kernel, known: Known, target: Target, base: float) -> float:
        theta, temperature = self._begin(known, base)
        place = int(known.model.dim > 1)
        limit = _OF_LIMIT[place] * self._limit(kernel, known, target, base) if kernel.decides else 0.0
        enough = min(_ACCEPTED[place], limit)
        best, most, error = 0.0, -1.0, None
        for step in _STEPS[::-1]:
            try:
                trajectory = self.follow(
                    kernel, target, theta, 6 if kernel.decides else 60, float(step), temperature
                )
            except (UserError, ArithmeticError, ValueError, RuntimeError) as failed:
                error = failed
                continue
            if kernel.decides:
                share = float(trajectory.stat("accepted").double().mean())
                if share >= enough:
                    return float(step) if step < _STEPS[-1] else known.scale * base**0.5
                if share > most:
                    best, most = float(step), share
            else:
                ends = trajectory.theta[30:, :: self.rungs].numpy()  # the coldest rung of each ladder
                ratio = float(np.mean(((ends - known.centre) / known.sds) ** 2)) / base
                least = 0.0 if self.adds_no_noise(kernel, known, float(step)) else _HEALTHY[0]
                if least <= ratio < _HEALTHY[1] and not trajectory.stat("diverging").any():
                    return float(step)
        if most < 0 and error is not None:
            raise error
        return best or float(_STEPS[0])

    def follow(
        self,
        kernel: Kernel,
        target: Target,
        theta: FloatArray,
        steps: int,
        step_size: float | FloatArray,
        temperature: FloatArray,
        *,
        name: str = "check",
        first_chain: int = 0,
        first_step: int = 1,
        numbers: Sequence[int] | None = None,
        state: State | None = None,
        noise_temperature: FloatArray | None = None,
    ) -> ChainPaths:
        """Move chains from theta (C, D), or from a state, and return their trajectories.

        The noise has the temperature (C,) of the target, unless `noise_temperature` (C,) is another. Steps have the
        `numbers`, or are numbered from `first_step` on.
        """
        chains = len(theta)
        streams = Streams(derive_key(self.seed, name), chains, first_chain=first_chain, compiled=available())
        draws = _RecordedDraws(streams, ahead=64 if numbers is None else 2)
        t = torch.from_numpy(np.asarray(temperature, np.float64))
        size = torch.from_numpy(np.broadcast_to(np.asarray(step_size, np.float64), (chains,)).copy())
        noise = (
            t if noise_temperature is None else torch.from_numpy(np.asarray(noise_temperature, np.float64))
        )
        control = Controls(size, t, noise)
        thetas, infos = [], []
        with torch.no_grad():
            if state is None:
                state = kernel.start(target, torch.from_numpy(np.array(theta)), draws)
            for number in numbers or range(first_step, first_step + steps):
                draws.step = number
                state, info = kernel.step(target, state, control, draws)
                thetas.append(state.evaluation.theta)
                infos.append(info)
        periods = {period: len(due) for period, due in draws.periods.items()}
        return ChainPaths(torch.stack(thetas), infos, state, periods)
