"""The zig-zag sampler: a process in continuous time that turns at single data, without an acceptance test."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.native.forms import GRADIENT_ROUNDING, SLACK
from mhrun.parts import Kernel
from mhrun.random import Draws, Purpose
from mhrun.random.draws import Marks
from mhrun.target import Target
from mhrun.target.bounded import CONSTANTS
from mhrun.target.surrogate import Surrogate
from mhrun.types import Controls, Info, State

VELOCITY = "velocity"  # name in `State.aux`
MOST = 1e5  # most data that a step may be expected to read


class ZigZag(Kernel):
    """The zig-zag process with subsampling and control variates (Bierkens, Fearnhead & Roberts 2019).

    It moves in phi = root^-1 (theta - reference), in which the posterior at T = 1 has about unit variance, along
    straight lines of velocity v in {-1, 1}^D. Coordinate d turns (v_d to -v_d) at the rate

        max(0, v_d k_d(phi)) + sum over data i of max(0, -v_d d/dphi_d r_i(phi) / T).

    k is the gradient of minus the log density without the remainders r_i of the surrogate's expansion, and linear in
    phi. The process has the target as its stationary distribution, because the rates at v and at v with v_d reversed
    differ by v_d times the derivative of minus the log density. A step follows it for a time of `step_size`, so that
    each draw is exact, whatever the step size.

    Turns of the first kind read no data: their times are drawn by inversion. Those of the second are thinned from
    arrivals at the rate M = sqrt(D) B / T on a piece of the line of length sqrt(T), with B the larger sum of bounds b_i
    on |grad r_i| at its ends: an arrival is at datum i in proportion to b_i, and turns coordinate d with probability
    B max(0, -v_d d/dphi_d r_i / T) / (b_i M). Each evaluates two gradients, of the likelihood and of the expansion, for
    all d. A gradient that exceeds its bound is counted as a violation, and the run stops.

    The paper has the expansion of order 1, uniform data and one rate for each coordinate, max(0, v_d (k_d + n grad_d
    r_i)); with that every event reads a datum. Order 2 (``target.surrogate=taylor2``) reads far fewer data where n is
    large.
    """

    @property
    def is_sequential(self) -> bool:
        """True: the number of data read depends on the path."""
        return True

    @property
    def stationary(self) -> dict[str, Any] | None:
        """The target, whatever the step size; it is always known."""
        return {"distribution": "tempered", "m": None}

    def reads(self, target: Target) -> int:
        """Return a guess."""
        return min(target.n, 4 * target.dim)

    def rounds(self, target: Target) -> int:
        """Return a guess at the events of a step of unit length: turns, arrivals and ends of pieces of a line."""
        return 10 + target.dim**2

    def refuses(self, target: Target) -> str | None:
        """Return why the target is incompatible, or None: it needs an expansion, and bounds on its remainders."""
        if target.surrogate is None or target.surrogate.kind is None:
            return (
                "the zig-zag sampler needs an expansion of the log-likelihood; choose surrogate=taylor2 "
                "(target.surrogate in a configuration)."
            )
        if target.common_batch:
            return "its data cannot be common to all chains: common_batch=false."
        if target.bounded.refuses() is not None:
            name = type(target.model).__name__
            return (
                f"{name} has no bounds on the remainders of surrogate={target.surrogate.kind}; a function of yours "
                f"can give some: {CONSTANTS[target.surrogate.kind]}= of mhrun.FunctionModel, or in its YAML."
            )
        return None

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Return the initial state at theta (C, D), with random velocities.

        Raises:
            UserError: no mode was found, the prior is not normal, or the model bounds no gradients.
        """
        if target.bounded.bounds.slope is None:
            raise UserError(
                f"{type(target.model).__name__} has bounds on the terms of a test, not on gradients (Bounds.slope), "
                "which the zig-zag sampler needs; choose smh2."
            )
        signs = 1.0 - 2.0 * (draws.uniforms(Purpose.PROPOSAL, target.dim) < 0.5)
        _ = target.quadratic
        return State(target.prior(theta), {VELOCITY: signs.double()})

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Follow the process of every chain for a time of `step_size`."""
        quadratic, temperature = target.quadratic, controls.temperature.double()
        power = target.prior_power(temperature)
        phi, velocity = quadratic.whitened(state.evaluation.theta), state.aux[VELOCITY].clone()
        time_left = controls.step_size.double().clone()
        reads = torch.zeros_like(time_left, dtype=torch.int64)
        violations = torch.zeros_like(time_left, dtype=torch.int32)
        rows, event, per = torch.arange(len(phi), device=phi.device), 0, target.dim + 1
        while len(rows):
            marks = draws.arrivals(target.n, event * per, (event + 1) * per, rows if event else None)
            at, v, beta, row_power = phi[rows], velocity[rows], temperature[rows], power[rows]
            first = v * quadratic.gradient(at, beta, row_power)
            second = v * quadratic.change(v, beta, row_power)
            turn = first_times(first, second, marks.gap[:, :-1])
            soonest, coordinate = turn.min(1)
            # The rate M must not depend on the time of the next turn, which is drawn again after an arrival.
            piece = torch.minimum((beta / target.dim).sqrt(), time_left[rows])
            until = torch.minimum(soonest, piece)
            rate = self._rate(target, at, at + piece[:, None] * v) / beta
            _check_rate(rate * time_left[rows], at)
            arrival = marks.gap[:, -1] / rate
            arrives, time = arrival < until, torch.minimum(arrival, until)
            at = at + time[:, None] * v
            turns = (soonest <= until) & ~arrives
            v[turns, coordinate[turns]] *= -1
            if bool(arrives.any()):
                arrived = arrives.nonzero()[:, 0]
                index, thinned = _datum(target, marks, arrived)
                wrong = self._turn(target, at, v, arrived, index, thinned, rate, beta)
                reads[rows[arrived]] += 1
                violations[rows[arrived]] += wrong
            phi[rows], velocity[rows] = at, v
            time_left[rows] = torch.where(time < time_left[rows], time_left[rows] - time, 0.0)
            rows, event = rows[time_left[rows] > 0], event + 1
        theta = quadratic.theta(phi).to(state.evaluation.theta)
        return State(target.prior(theta), {VELOCITY: velocity}), _info(phi, reads, violations)

    def _rate(self, target: Target, start: Tensor, end: Tensor) -> Tensor:
        """Return M times the temperature on the line from start to end (R, D), (R,)."""
        slope = target.bounded.bounds.slope
        assert slope is not None
        quadratic = target.quadratic
        largest = torch.maximum(slope(quadratic.theta(start)), slope(quadratic.theta(end)))
        return math.sqrt(target.dim) * target.bounded.table.total * largest

    def _turn(
        self,
        target: Target,
        at: Tensor,
        velocity: Tensor,
        chains: Tensor,
        index: Tensor,
        uniform: Tensor,
        rate: Tensor,
        temperature: Tensor,
    ) -> Tensor:
        """Turn at most one coordinate of some `chains` (A,) at the data `index` (A,), in place.

        Returns:
            whether the gradient exceeds its bound, (A,).
        """
        slope, (_, _, total) = target.bounded.bounds.slope, target.bounded.table
        assert slope is not None
        assert isinstance(target.surrogate, Surrogate)
        theta = target.quadratic.theta(at[chains])
        remainder_grad, log_lik_grad = target.surrogate.remainder_gradient(
            theta, target.data.rows(index[:, None])
        )
        root, weight = target.quadratic.root, target.bounded.bounds.weights[index]
        gradient = remainder_grad @ root
        bound = weight * slope(theta) * (1 + SLACK) + GRADIENT_ROUNDING * (log_lik_grad @ root).norm(dim=-1)
        share = (total / (weight * temperature[chains] * rate[chains]))[:, None]
        cumulative = (share * (-velocity[chains] * gradient).clamp_min(0)).cumsum(1)
        coordinate = torch.searchsorted(cumulative, uniform[:, None], right=True)[:, 0]
        turned = coordinate < target.dim
        velocity[chains[turned], coordinate[turned]] *= -1
        norm = gradient.norm(dim=-1)
        return (~((norm <= bound) & norm.isfinite())).int()


def _datum(target: Target, marks: Marks, chains: Tensor) -> tuple[Tensor, Tensor]:
    """Return data in proportion to their bounds, and uniforms, of some `chains`, each (A,)."""
    slot, coin, uniform = (mark[chains, -1] for mark in (marks.slot, marks.coin, marks.uniform))
    cut, other, _ = target.bounded.table
    return torch.where(coin < cut[slot], slot, other[slot]), uniform


def first_times(rate: Tensor, change: Tensor, exponential: Tensor) -> Tensor:
    """Return the first arrivals of processes with the rates max(0, rate + change t), each (R, D); inf for none.

    The integral of the rate reaches the Exponential(1) number e at 2 e / (a + sqrt(a^2 + 2 b e)) for a rate a > 0 and a
    change b, if the root is real. A negative rate is 0 until -a / b.
    """
    root = rate.clamp_min(0).square() + 2 * change * exponential
    rising = (root.clamp_min(0).sqrt() - rate) / change
    falling = 2 * exponential / (rate + root.clamp_min(0).sqrt())
    time = torch.where(rate > 0, torch.where(root >= 0, falling, torch.inf), rising)
    return torch.where((rate <= 0) & (change <= 0), torch.inf, time)


def _check_rate(expected: Tensor, at: Tensor) -> None:
    """Refuse to go on where the bounds are so wide that a step would not end."""
    if bool((wide := ~(expected < MOST)).any()):
        i = int(wide.nonzero()[0])
        raise too_wide(float(expected[i]), float(at[i].norm()))


def too_wide(expected: float, distance: float) -> UserError:
    """Return the error of a step that would read `expected` data, at this many standard deviations from the mode."""
    return UserError(
        f"the bounds on the gradients are too wide for the zig-zag sampler: a step would read {expected:.2g} data, "
        f"{distance:.3g} standard deviations from the mode; begin near the mode (step_size: auto does), choose "
        "surrogate=taylor2 (target.surrogate in a configuration), or scale the features. Where outcomes are rare, it "
        "may happen all the same: smh2 and hmc go on."
    )


def _info(phi: Tensor, reads: Tensor, violations: Tensor) -> Info:
    finite = phi.isfinite().all(1)
    unknown, none = torch.full_like(phi[:, 0], torch.nan), torch.zeros_like(reads)
    return Info(
        accepted=finite,
        log_ratio=unknown,
        log_ratio_var=unknown,
        batch_size=reads,
        n_lik=none,
        n_lik_overhead=none,
        n_grad=2 * reads,
        diverging=~finite,
        violations=violations,
    )
