"""Checks of contracts: reported costs and fields, reproducibility, resuming, compiled forms, extreme step sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from mhrun.check.case import Case
from mhrun.check.models import Counting
from mhrun.check.results import FAILS, HOLDS, NONE, CheckResult
from mhrun.check.subject import Subject
from mhrun.check.targets import Known, free_mean, gaussian_mean, holed, regression
from mhrun.check.trajectories import ChainPaths
from mhrun.compiled import compile_loop
from mhrun.errors import UserError
from mhrun.parts import ARRIVALS, Kernel
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target
from mhrun.types import BOUND_KINDS, INFO_DEFAULTS, INFO_DTYPES, Controls, Evaluation, State
from mhrun.types.state import aux_fault

_COUNTED = 120  # steps whose evaluations are counted: passes over all data may come every 100
_ABSURD = (1e-200, 1e8, 1e200)


def _minibatch_chains(
    subject: Subject, known: Known, target: Target, ladders: int
) -> tuple[Kernel, float, np.ndarray, np.ndarray]:
    """Return a kernel with minibatches, its step size, and the temperatures and starting points of its chains."""
    kernel = subject.made(subject.n, subject.m, target)
    chains = ladders * subject.rungs
    base = subject.n / subject.effective if kernel.decides else 1.0
    temperature = subject.temperatures(chains, base)
    theta = known.draw(np.random.default_rng(subject.seed), temperature)
    step = subject.step_for(Case(kernel, known, subject.target(known), base)) / (1 if kernel.decides else 8)
    return kernel, step, temperature, theta


def plain(subject: Subject) -> Known:
    """Return a Gaussian mean, for measurements with minibatches, whose model has no faster forms."""
    return free_mean(subject.n)


def costs(subject: Subject) -> Iterator[CheckResult]:
    """The reported numbers of evaluations are the actual ones.

    An acceptance test is counted without a Taylor surrogate: its terms are reported as log-likelihoods, and the model
    sees derivatives.
    """
    known = plain(subject)
    model = Counting(known.model)
    is_taylor_of_test = subject.surrogate in BOUND_KINDS and subject.make(subject.n, subject.m).decides
    target = known._replace(model=model).target("none" if is_taylor_of_test else subject.surrogate)
    kernel, step, temperature, theta = _minibatch_chains(subject, known, target, 6)
    streams = Streams(derive_key(subject.seed, "check"), len(theta))
    first = kernel.start(target, torch.from_numpy(theta.copy()), Draws(streams, 0))
    state = subject.follow(kernel, target, theta, 1, step, temperature).state
    model.values = model.gradients = 0
    trajectory = subject.follow(kernel, target, theta, range(2, 2 + _COUNTED), step, temperature, state=state)
    yield _shapes(
        trajectory, len(theta), aux_fault(first.aux, state.aux) or aux_fault(first.aux, trajectory.state.aux)
    )
    claimed, gradients = (int(trajectory.stat(name).sum()) for name in ("n_lik", "n_grad"))
    separate = kernel.separate_gradients()
    actual, evaluations = model.values + model.gradients, claimed + separate * gradients
    if kernel.is_sequential:
        # A growing test reads ahead at most as much again. With arrivals, all chains read as many as the one that has
        # most.
        thins = kernel.rule is not None and kernel.rule.wants == ARRIVALS
        least = model.values / (10 if thins else 2) + separate * gradients
    else:  # the gradient of a sum over all data may take a separate pass
        separate_pass = kernel.pairing is None or kernel.pairing.keeps_full_sums
        least = actual - (1 - separate) * gradients * separate_pass
    right = least - 0.5 <= evaluations <= actual + 0.5 and gradients == model.gradients
    detail = (
        f"reports {claimed:,} log-likelihoods and {gradients:,} gradients, {model.values:,} and {model.gradients:,} "
        f"were made" + " (some read ahead)" * kernel.is_sequential
    )
    if not right:
        detail += _miscounted(claimed, gradients, model, separate, (least, actual))
    yield CheckResult("cost counting", HOLDS if right else FAILS, detail)


def _miscounted(
    n_lik: int, n_grad: int, model: Counting, separate: float, allowed: tuple[float, float]
) -> str:
    """Return the expected counts of a step."""
    if n_grad != model.gradients:
        return f"; n_grad must be {model.gradients:,}"
    low, high = (f"{number:,.0f}" for number in allowed)
    expected = high if low == high else f"from {low} to {high}"
    if not n_grad:
        return f"; n_lik must be {expected}"
    share = (allowed[1] - n_lik) / n_grad
    remedy = f"; with these counts it must be {share:.3g}" if 0 <= share <= 1 else ""
    return (
        f"; n_lik + separate_gradients n_grad = {n_lik + separate * n_grad:,.0f} evaluations, must be {expected}. "
        "separate_gradients(), the share of gradients from passes that give no log-likelihood, is "
        f"{separate:.3g}{remedy}"
    )


def _shapes(trajectory: ChainPaths, chains: int, changed: str) -> CheckResult:
    wrong = []
    for name, dtype in INFO_DTYPES.items():
        value = getattr(trajectory.infos[0], name)
        if value is None and name in INFO_DEFAULTS:
            continue
        if (
            not isinstance(value, Tensor)
            or value.shape != (chains,)
            or (value.dtype == torch.bool) != (dtype == "bool")
        ):
            wrong.append(name)
    faults = [f"{name} must be ({chains},), {INFO_DTYPES[name]}" for name in wrong] + [changed] * bool(
        changed
    )
    return CheckResult(
        "what a step reports", FAILS if faults else HOLDS, "; ".join(faults) or "every field is (C,)"
    )


def repeatable(subject: Subject) -> Iterator[CheckResult]:
    """The same seed gives bitwise the same chains, and a chain does not depend on the others."""
    known = plain(subject)
    target, check_name = subject.target(known), "same seed, same chains"
    kernel, step, temperature, theta = _minibatch_chains(subject, known, target, 5)
    first = subject.follow(kernel, target, theta, 30, step, temperature).theta
    second = subject.follow(
        subject.made(subject.n, subject.m, target), target, theta, 30, step, temperature
    ).theta
    same = torch.equal(first, second)
    detail = (
        "two runs are bitwise equal" if same else "two runs differ: random numbers must come from `draws`"
    )
    yield CheckResult(check_name, HOLDS if same else FAILS, detail)
    check_name, rungs = "chains independent", subject.rungs
    if not same:
        yield CheckResult(check_name, NONE, "not compared, because chains are not repeatable")
        return
    ladder = slice(3 * rungs, 4 * rungs)
    single = subject.follow(
        kernel, target, theta[ladder], 30, step, temperature[ladder], first_chain=3 * rungs
    ).theta
    difference = float((first[:, ladder] - single).abs().max() / known.scale)
    text = "a chain" if rungs == 1 else "a ladder"
    detail = f"{text} alone and among five: {difference:.1e} standard deviations apart"
    yield CheckResult(check_name, HOLDS if difference < 1e-6 else FAILS, detail, difference)


def resuming(subject: Subject) -> Iterator[CheckResult]:
    """A state that was saved and loaded continues identically in a new kernel."""
    known = plain(subject)
    target = subject.target(known)
    kernel, step, temperature, theta = _minibatch_chains(subject, known, target, 4)
    uninterrupted = subject.follow(kernel, target, theta, 20, step, temperature).theta
    first, second = (subject.made(subject.n, subject.m, target) for _ in range(2))
    half = subject.follow(first, target, theta, 8, step, temperature)
    tensors = {name: _written(value) for name, value in half.state.evaluation.tensors().items()}
    aux = {name: _written(value) for name, value in half.state.aux.items()}
    loaded = State(Evaluation.of(tensors), aux)
    rest = subject.follow(
        second, subject.target(known), theta, range(9, 21), step, temperature, state=loaded
    ).theta
    same = torch.equal(torch.cat([half.theta, rest]), uninterrupted)
    detail = (
        "an interrupted and an uninterrupted run are bitwise equal"
        if same
        else "some of what a step depends on is not in the state"
    )
    yield CheckResult("resuming", HOLDS if same else FAILS, detail)


def _written(value: Tensor) -> Tensor:
    return torch.from_numpy(value.numpy().copy())


def compiled(subject: Subject) -> Iterator[CheckResult]:
    """The compiled loop and the torch step agree, in several coordinates and, of a dynamics, with half the noise."""
    check_name, known = "compiled equals plain", regression(subject.n)
    target = subject.target(known)
    kernel, step, temperature, theta = _minibatch_chains(subject, known, target, 4)
    key = derive_key(subject.seed, "check")
    loop = compile_loop(kernel, target, key, 1)
    if loop is None:
        yield CheckResult(check_name, NONE, "it has no compiled form")
        return
    steps = 40
    noise = temperature if kernel.decides else 0.5 * temperature
    slow = subject.follow(kernel, target, theta, steps, step, temperature, noise_temperature=noise)
    t, noise_t = (
        torch.from_numpy(of_chains).expand(steps, -1).contiguous() for of_chains in (temperature, noise)
    )
    with torch.no_grad():
        start = kernel.start(target, torch.from_numpy(theta.copy()), Draws(Streams(key, len(theta)), 0))
        _, record = loop.advance(start, 1, Controls(torch.full_like(t, step), t, noise_t))
    difference = (
        float((torch.from_numpy(record["theta"]).transpose(0, 1) - slow.theta).abs().max()) / known.scale
    )
    wrong = [
        name
        for name in ("accepted", "batch_size", "n_lik", "n_grad", "diverging")
        if not np.array_equal(record[name].T, slow.stat(name).numpy())
    ]
    detail = (
        f"{steps} steps of a {known.name}, {difference:.1e} standard deviations apart"
        + f"; {', '.join(wrong)} differ" * bool(wrong)
    )
    yield CheckResult(check_name, FAILS if wrong or not difference < 1e-3 else HOLDS, detail, difference)


def absurd(subject: Subject) -> Iterator[CheckResult]:
    """At any step size a chain stays finite or reports that it stopped, and it never accepts a NaN log-likelihood."""
    check_name, known = "absurd step sizes", plain(subject)
    target = subject.target(known)
    kernel, _, temperature, theta = _minibatch_chains(subject, known, target, 4)
    texts = []
    for step in _ABSURD:
        try:
            trajectory = subject.follow(kernel, target, theta, 10, step, temperature)
        except UserError:
            texts.append(f"{step:g} is refused")
            continue
        if not trajectory.theta.isfinite().all():
            yield CheckResult(check_name, FAILS, f"at step size {step:g} theta is not finite")
            return
    # Bounds are finite where log-likelihoods are no numbers: they do not hold there.
    checks_holes = kernel.decides and not (kernel.rule is not None and kernel.rule.exact)
    if checks_holes:
        exact = subject.made(30, 30, holed())
        begin = np.full((len(theta), 1), 0.7)
        alike = gaussian_mean(30)
        step = subject.step_for(Case(exact, alike, alike.target())) * 4
        trajectory = subject.follow(exact, holed(), begin, 60, step, subject.temperatures(len(theta)))
        if not float(trajectory.theta.max()) <= 1:
            yield CheckResult(check_name, FAILS, "a move to a NaN log-likelihood was accepted")
            return
    detail = f"finite at {', '.join(f'{step:g}' for step in _ABSURD)}" if not texts else ", ".join(texts)
    yield CheckResult(check_name, HOLDS, detail + ", and with NaN log-likelihoods" * checks_holes)
