"""The part under test, as a kernel for any number of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps

import numpy as np
import numpy.typing as npt
import torch

from mhrun.array_types import FloatArray
from mhrun.check.case import Case
from mhrun.check.results import NONE, CheckResult
from mhrun.check.step_sizes import StepSizes, StepSizeSearch
from mhrun.check.targets import Known
from mhrun.check.trajectories import ChainPaths, RecordedDraws
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings
from mhrun.kernels.stationary import TARGET
from mhrun.native import available
from mhrun.parts import Kernel
from mhrun.random import Streams, derive_key
from mhrun.target import Target
from mhrun.types import Controls, State

_USUAL = 0.5  # acceptance rate of the smallest step for which the checks' numbers of steps are meant
_MOST_TIMES = 10  # as many steps, at most, for a kernel that accepts less
_RATE = 1e-2  # learning rate of a fit, whose draws are stable at any step size
_FEW = 3  # a kernel that is exact for every minibatch size is checked with one in so many data
_TOGETHER = 1e-9  # standard deviations that chains may be apart by rounding
_MOST_PERIODS = 4  # that are judged apart: they count among the comparisons of a page
_LONGEST = 1 << 40  # of them: random numbers are numbered by steps below 2^52
_AHEAD = 64  # steps whose random numbers are drawn together, where steps follow each other


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
    _step_sizes: StepSizes = field(default_factory=lambda: StepSizes({}, {}))
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
        """Return a kernel whose stationary distribution is the target: it reads all data, or is declared exact anyway.

        With m = n a kernel that is exact for every m may be another one: what its minibatches decide is not tried.
        """
        m = max(1, known.n // _FEW)
        declared = self.make(known.n, m).stationary == TARGET
        return self.made(known.n, m if declared else known.n, self.target(known))

    def exact_case(self, known: Known, base: float = 1.0) -> Case:
        """Return the kernel of `exact`, on its target at a lowest temperature."""
        return Case(self.exact(known), known, self.target(known), base)

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

    def step_for(self, case: Case) -> float:
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
        return self._search.largest(case)

    def times(self, case: Case) -> int:
        """Return how many times as many steps a kernel needs because it rejects even the shortest moves: 1 to 10.

        The temperature of the case does not matter: the rate of the shortest moves is that at T = 1.
        """
        if not case.kernel.decides:
            return 1
        return round(min(max(_USUAL / self._search.limit(case.at(1.0)), 1.0), _MOST_TIMES))

    def refuses_all(self, case: Case) -> bool:
        """Return whether a kernel rejects every candidate at T = 1, at the smallest step size too."""
        return self._search.refuses_all(case.at(1.0))

    def adds_no_noise(self, case: Case, step: float) -> bool:
        """Return whether chains with a common start stay together on all data, to rounding: an optimiser's do."""
        known = case.known
        decides = isinstance(case.kernel, MetropolisHastings)
        exact = self.make(known.n, known.n) if decides else self.exact(known)
        chains = self.whole(4)
        theta = np.tile(known.centre + known.scale, (chains, 1))
        trajectory = self.follow(exact, self.target(known), theta, 5, step, self.temperatures(chains))
        apart = (trajectory.theta - trajectory.theta[:, :1]).abs()
        return bool((apart <= _TOGETHER * known.scale).all())

    @cached_property
    def _search(self) -> StepSizeSearch:
        return StepSizeSearch(
            self.follow, self.adds_no_noise, self.temperatures(self.whole(100)), self.seed, self._step_sizes
        )

    def follow(
        self,
        kernel: Kernel,
        target: Target,
        theta: FloatArray,
        steps: int | Sequence[int],
        step_size: float | FloatArray,
        temperature: FloatArray,
        *,
        noise_temperature: FloatArray | None = None,
        name: str = "check",
        first_chain: int = 0,
        state: State | None = None,
    ) -> ChainPaths:
        """Move chains from theta (C, D), or from a state, and return their trajectories.

        Args:
            kernel: of the chains.
            target: of the kernel.
            theta: where they begin (C, D).
            steps: how many, numbered from 1, or their numbers.
            step_size: one, or of each chain (C,).
            temperature: of each chain (C,).
            noise_temperature: of the noise (C,), if it is another.
            name: of the random numbers.
            first_chain: number of the first chain, from which the random numbers of chains follow.
            state: in which they begin, in place of theta.
        """
        chains = len(theta)
        numbers = range(1, steps + 1) if isinstance(steps, int) else steps
        streams = Streams(derive_key(self.seed, name), chains, first_chain=first_chain, compiled=available())
        draws = RecordedDraws(streams, ahead=_AHEAD if isinstance(numbers, range) else 2)
        noise = temperature if noise_temperature is None else noise_temperature
        control = Controls(*(_of_each(value, chains) for value in (step_size, temperature, noise)))
        thetas, infos = [], []
        with torch.no_grad():
            if state is None:
                state = kernel.start(target, torch.from_numpy(np.array(theta)), draws)
            for number in numbers:
                draws.step = number
                state, info = kernel.step(target, state, control, draws)
                thetas.append(state.evaluation.theta)
                infos.append(info)
        periods = {period: len(due) for period, due in draws.periods.items()}
        return ChainPaths(torch.stack(thetas), infos, state, periods)


def _of_each(value: float | FloatArray, chains: int) -> torch.Tensor:
    """Return a number, or one of each chain, as a tensor (C,)."""
    return torch.from_numpy(np.broadcast_to(np.asarray(value, np.float64), (chains,)).copy())
