"""Runs a pilot, or reads the one that a folder keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from mhrun.engine.announced import announced
from mhrun.engine.defaults import gradients_of
from mhrun.engine.execution.threads import limited
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.method import Method
from mhrun.engine.model_checks.properties import check_model
from mhrun.engine.pilot.acceptance import tune
from mhrun.engine.pilot.adaptation import adapt, quarter_period, with_evaluations_of
from mhrun.engine.pilot.dynamics import step_of_dynamics
from mhrun.engine.pilot.open_settings import is_open, leapfrog_is_open
from mhrun.engine.pilot.result import PilotResult, filled, load, save
from mhrun.engine.pilot.sentences import NETWORK, line
from mhrun.engine.pilot.start import ScaledStart, explored_for, scaled_start
from mhrun.engine.pilot.trajectories import allows_trajectories, judged_start, with_open_step
from mhrun.errors import UserError
from mhrun.kernels import MetropolisHastings, ZigZag
from mhrun.random import derive_key
from mhrun.store.pilot_facts import PilotFacts
from mhrun.target.function_space import is_network
from mhrun.types.scale import Scale

_WITHOUT_GRADIENTS = "the log-likelihood is not differentiable, or depends on no parameter"
_ZIG_ZAG = 1.0  # time between draws of the zig-zag sampler, in standard deviations


def piloted(method: Method, folder: Path | None, note: Callable[[str], None]) -> Method:
    """Return a method with the settings that a pilot finds, and what it found; the method itself if none are open.

    Args:
        method: checked; its data can be loaded.
        folder: of the method, where the pilot is kept: another call reads it. None keeps nothing.
        note: called with one line on what was found.
    """
    if not is_open(method):
        return method
    result = load(method, folder)
    if result is None:
        takes_gradients = method.kernel.of_a_chain.takes_gradients
        check_model(method.target, method.first_points()[:1], takes_gradients=takes_gradients)
        # Sums over threads round differently.
        with limited(1), method.exact_products(), announced(f"{method.name}: the pilot", note):
            result = pilot(method)
        note(line(method.name, result.facts))
        if folder is not None:
            save(result, folder)
    return filled(method, result)


def pilot(method: Method) -> PilotResult:
    """Find the settings that a method leaves open.

    Raises:
        UserError: a dynamics on a model without gradients.
    """
    rungs = method.kernel.rungs
    method = replace(method, kernel=method.kernel.of_a_chain.for_pilot())
    key = derive_key(method.seed, f"{method.name}/pilot")
    temperature = method.plan.controls(method.plan.start(), method.shape.total, 1).temperature[0]
    surface = Surface(method.target, float(temperature.min()), method.seed)
    start, facts = _begun(method, surface, temperature, key, rungs)
    choice = _chosen(method, surface, start, temperature, key)
    step = choice.step_size.expand(method.shape.chains).contiguous()
    why = facts.get("why", "") + choice.facts["why"]
    n_grad = facts["n_grad"] + choice.facts.get("n_grad", 0) + surface.n_grad
    facts |= choice.facts | {"why": why, "n_lik": choice.facts.get("n_lik", 0), "n_grad": n_grad}
    if method.target.surrogate is not None:
        facts["control_variate"] = True
    facts |= {
        "given": not method.plan.is_open,
        "scheduled": not method.plan.is_open and method.plan.varies_step_size,
        "step_size": float(choice.step_size.log().mean().exp()),
        "step_size_by_chain": step.tolist(),
        "m": choice.m,
        "acceptance": choice.acceptance,
    }
    if choice.scale is not None:
        facts["scale"] = "dense" if choice.scale.dense else "diagonal"
    if choice.leapfrog_steps is not None:
        facts["leapfrog_steps"] = choice.leapfrog_steps
    return PilotResult(
        step, choice.theta, choice.scale, choice.acceptance, choice.m, choice.leapfrog_steps, facts
    )


def _begun(
    method: Method, surface: Surface, temperature: Tensor, key: int, rungs: int
) -> tuple[ScaledStart, PilotFacts]:
    """Return where chains begin, with a scale that draws have judged if it is in doubt, and what is known of it."""
    theta = method.first_points()
    facts: PilotFacts = {"n_grad": 0}
    try:
        found = explored_for(method, surface, theta[::rungs], key)
        start = scaled_start(method, found, theta, temperature, key, rungs)
        facts |= found.facts(method.target.model)
    except UserError as error:
        if not method.kernel.decides:
            raise
        reason = f"the search for a mode failed ({str(error).rstrip('.')})"
        reason = reason if gradients_of(method.target) else _WITHOUT_GRADIENTS
        start, facts["why"] = ScaledStart(theta), f"{reason}, so that there is no scale; "
    if start.doubt is not None and is_network(method.target.model):
        # Draws would change nothing: weights have no scale that fits all modes.
        start = start._replace(doubt=NETWORK)
    elif start.doubt is not None and allows_trajectories(method, start.doubt):
        start, rounds, facts["n_grad"] = judged_start(method, start, temperature, key)
        if rounds:
            facts["rounds"] = rounds
    if start.condition is not None:
        facts["condition"] = start.condition
    if start.whole:
        facts["whole"] = True
    facts["doubt"] = start.doubt
    return start, facts


class _Choice(NamedTuple):
    """The settings that one kind of kernel leaves open."""

    step_size: Tensor  # (C,), or (1,) for all chains
    theta: Tensor  # (C, D), where the chains are
    scale: Scale | None
    facts: PilotFacts
    m: int | None = None
    acceptance: float | None = None
    leapfrog_steps: int | None = None


def _chosen(method: Method, surface: Surface, start: ScaledStart, temperature: Tensor, key: int) -> _Choice:
    if isinstance(method.kernel, MetropolisHastings):
        return _tuned(method, method.kernel, start, temperature, key)
    if isinstance(method.kernel, ZigZag):
        why = "a zig-zag draw every standard deviation of the tempered posterior."
        return _Choice(_ZIG_ZAG * temperature.sqrt(), start.theta, start.scale, {"why": why})
    step_size, m, facts = step_of_dynamics(method, surface, start, temperature)
    return _Choice(step_size, start.theta, start.scale, facts, m)


def _tuned(
    method: Method, kernel: MetropolisHastings, start: ScaledStart, temperature: Tensor, key: int
) -> _Choice:
    """Return the settings of a kernel with an acceptance test; trajectories may change the scale."""
    scale, is_open_length = start.scale, leapfrog_is_open(kernel)
    adapted_facts: PilotFacts = {}
    if scale is not None and kernel.proposal.follows:
        known = start.curvature is not None
        # A given step size may be too short, or too long, for draws that a scale is taken from.
        tunes = method if method.plan.is_open else with_open_step(method, temperature)
        tuning, scale, rounds, _ = adapt(
            tunes, start, temperature, key, open_length=is_open_length, known=known
        )
        if tunes is not method:
            count = tuning.leapfrog_steps
            length = None if count is None else count * float(tuning.step_size.mean())
            again = tune(method, scale, tuning.theta, temperature, derive_key(key, "given"), length)
            tuning = with_evaluations_of(again, tuning)
        if rounds or not known:
            adapted_facts = {"condition": scale.condition, "rounds": rounds}
    else:
        length = quarter_period(start.curvature) if is_open_length else None
        tuning = tune(method, scale, start.theta, temperature, key, length)
    facts = tuning.facts | adapted_facts
    return _Choice(
        tuning.step_size, tuning.theta, scale, facts, tuning.m, tuning.acceptance, tuning.leapfrog_steps
    )
