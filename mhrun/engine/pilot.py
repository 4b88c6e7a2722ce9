"""Pilot runs: they find the step size, the minibatch size and the scale that a method leaves open.

1. From the chains' first points, ascents to modes of the posterior, and the curvature H at the highest one
   (`mhrun.engine.curvature`). They read up to 20,000 data; with more, Newton steps on all data follow where the mode
   of the part may be off by more than half a standard deviation of the target.
2. The scale: a Cholesky factor S of H^-1 (``dense``) or 1 / sqrt(diag H) (``diagonal``). Proposals and dynamics then
   move in coordinates phi, theta = mode + S phi, in which the posterior at T = 1 has unit variance. Where that may not
   hold, as in a hierarchical model, because some directions have no curvature at the mode or the posterior is far from
   normal about it (`mhrun.engine.normality`), draws of trajectories judge the scale, and change it if it does not fit
   them (`mhrun.engine.adaptation`).
3. With trajectories of an open number of leapfrog steps: their length is a quarter of the longest period of the scaled
   target, pi/2 times its largest standard deviation, so that coordinates of a normal target end independent of where
   they began.
4. With an acceptance test, `mhrun.engine.tuning` moves the chains and tunes the step size to an acceptance rate.
5. A dynamics gets the step size at which its stationary variance is 10 % too large on a quadratic posterior; of one
   that is given, the error is estimated.

On a ladder the kernel of a rung is piloted, each chain at its own temperature and without exchanges. A kernel that
adapts its backward moves is piloted at their initial width.

The method's chains begin where the pilot leaves them. Its random numbers are functions of the seed and the method's
name: the same method has the same pilot.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mhrun.engine.adaptation import adapt
from mhrun.engine.curvature import (
    Surface,
    find_curved_modes,
    find_modes,
    on_all_data,
    spectrum,
)
from mhrun.engine.defaults import gradients_of
from mhrun.engine.dynamics_step import step_of_dynamics
from mhrun.engine.method import Method
from mhrun.engine.model_checks import check_model
from mhrun.engine.normality import spread_of_log_ratio
from mhrun.engine.scale_from_draws import ScaledStart, allows_trajectories, judged, quarter_period
from mhrun.engine.threads import limited
from mhrun.engine.tuning import tune, with_leapfrog_steps, with_m
from mhrun.errors import UserError
from mhrun.kernels import AdaptiveBackward, Firefly, MetropolisHastings, ReplicaExchange, Unadjusted, ZigZag
from mhrun.kernels.preconditioned import Scale, preconditioned
from mhrun.parts import Kernel
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.store.blocks import load_block
from mhrun.store.files import write_whole
from mhrun.store.sharing import PILOT

SCALES = ("auto", "dense", "diagonal", "none")

_LARGEST_CONDITION = 1e7  # condition number above which some directions have no curvature but for rounding
_LARGEST_SPREAD = (
    2.0  # of the log-ratio to a normal density, in nats; of posteriors that are nearly normal it is < 0.5
)
_DOUBTS = {
    "flat": " Some directions have no curvature at the mode that was found, as in a hierarchical model in centred form "
    "or with parameters that nothing determines: the scale may be far off in them. hmc takes its scale from draws.",
    "skewed": " The posterior is far from normal about the mode that was found, as of a hierarchical model in "
    "non-centred form: the scale may be far off. hmc takes its scale from draws.",
}
_DENSE, _DIAGONAL = 50, 200  # most parameters for which a scale of this kind is the default
_ZIG_ZAG = 1.0  # time between draws of the zig-zag sampler, in standard deviations
_SPREAD = 2.0  # posterior standard deviations of the points that chains begin at, about their modes
# Below the mode these points are at most so many times as far as those of a normal density, and so many nats more.
_STEEPER, _DEEPER = 2.0, 10.0


class Found(NamedTuple):
    """What a pilot found."""

    step_size: Tensor  # (C,)
    starts: Tensor  # (C, D)
    scale: Scale | None
    acceptance: float | None  # the rate that the step size has, and is tuned to
    m: int | None  # the minibatch size, if it was open
    leapfrog_steps: int | None  # of a trajectory, if their number was open
    facts: dict[str, Any]  # for people: what was chosen, why, and what it cost


def is_open(method: Method) -> bool:
    """Return whether a method leaves a setting to a pilot."""
    kernel = method.kernel.of_a_chain
    open_size = _m_is_open(kernel) or _leapfrog_is_open(kernel)
    return method.plan.is_open or open_size or method.precondition not in (None, "none")


def _m_is_open(kernel: Kernel) -> bool:
    return kernel.m_is_open or (kernel.pairing is not None and kernel.pairing.m_is_open)


def _leapfrog_is_open(kernel: Kernel) -> bool:
    return isinstance(kernel, MetropolisHastings) and kernel.proposal.leapfrog_is_open


def refuses(method: Method) -> str | None:
    """Return why a method cannot leave settings to a pilot, or None."""
    if method.precondition is not None and method.precondition not in SCALES:
        return f"precondition = '{method.precondition}' is unknown; choose {', '.join(SCALES)}."
    if not is_open(method):
        return None
    kernel = method.kernel.of_a_chain
    name = type(kernel).__name__
    if type(kernel) not in (MetropolisHastings, AdaptiveBackward, Firefly, Unadjusted, ZigZag):
        return (
            "a pilot finds the settings of MetropolisHastings, AdaptiveBackward, Firefly, Unadjusted and ZigZag, and "
            f"of ladders, alone; give {name} numbers, not auto."
        )
    if isinstance(kernel, ZigZag) and method.precondition not in (None, "none"):
        return "ZigZag has the scale of its surrogate's reference; leave out precondition."
    if isinstance(kernel, Unadjusted) and method.plan.is_open and kernel.dynamics.noise_gain is None:
        return f"no rule finds the step size of {type(kernel.dynamics).__name__}; give a number, not auto."
    if method.plan.is_open and tuple(getattr(method.target.model, "batch_norms", ())):
        return (
            "a pilot finds no step size for a network with BatchNorm, whose curvature grows without bound as weights "
            "shrink, though predictions stay: chains would hardly move. Give step_size a number, such as 0.1 / n, not "
            "auto."
        )
    if (
        isinstance(kernel, MetropolisHastings)
        and method.plan.is_open
        and kernel.proposal.best_acceptance is None
    ):
        name = type(kernel.proposal).__name__
        return f"no acceptance rate is known to be best for {name}; give a step size, not auto."
    if method.precondition in ("dense", "diagonal") and method.target.dim > _DIAGONAL:
        return (
            f"a pilot finds a scale for up to {_DIAGONAL} parameters, not {method.target.dim:,}; leave out "
            f"precondition = {method.precondition}."
        )
    if _leapfrog_is_open(kernel) and method.target.dim > _DIAGONAL:
        return (
            f"a pilot finds leapfrog_steps from the curvature, for up to {_DIAGONAL} parameters, not "
            f"{method.target.dim:,}; give a number, not auto."
        )
    return None


def piloted(
    method: Method, folder: Path | None, note: Callable[[str], None]
) -> tuple[Method, dict[str, Any] | None]:
    """Return a method with the settings that a pilot finds, and what it found; the method itself if none are open.

    Args:
        method: checked; its data can be loaded.
        folder: of the method, where the pilot is kept: another call reads it. None keeps nothing.
        note: called with one line on what was found.
    """
    if not is_open(method):
        return method, None
    settings = _load(method, folder)
    if settings is None:
        check_model(method.target, method.first_points()[:1])
        with limited(1), method.exact_products():  # sums over threads round differently
            settings = pilot(method)
        note(line(method.name, settings.facts))
        if folder is not None:
            _save(settings, folder)
    return filled(method, settings), settings.facts


def filled(method: Method, found: Found) -> Method:
    """Return the method with the settings that a pilot found."""
    kernel = method.kernel.of_a_chain
    kernel = kernel if found.m is None else with_m(kernel, found.m)
    if found.leapfrog_steps is not None:
        assert isinstance(kernel, MetropolisHastings)
        kernel = with_leapfrog_steps(kernel, found.leapfrog_steps)
    kernel = kernel if found.scale is None else preconditioned(kernel, found.scale)
    if isinstance(method.kernel, ReplicaExchange):
        ladder = copy.copy(method.kernel)
        ladder.kernel, kernel = kernel, ladder
    points = found.starts
    return replace(
        method,
        kernel=kernel,
        plan=method.plan.filled(found.step_size, found.acceptance),
        starts=lambda chains, draws: points[torch.arange(chains) % len(points)],
        precondition=None,
    )


def pilot(method: Method) -> Found:
    """Find the settings that a method leaves open.

    Raises:
        UserError: a dynamics on a model without gradients.
    """
    kernel = method.kernel.of_a_chain
    kernel = kernel.at_first() if isinstance(kernel, AdaptiveBackward) else kernel
    method = replace(method, kernel=kernel)
    target, chains = method.target, method.shape.chains
    key = derive_key(method.seed, f"{method.name}/pilot")
    temperature = method.plan.controls(method.plan.start(), method.shape.total, 1).temperature[0]
    surface = Surface(target, float(temperature.min()), method.seed)
    theta = method.first_points()
    facts: dict[str, Any] = {"given": not method.plan.is_open}
    try:
        start = _scaled_start(method, surface, theta, key, facts, temperature)
    except UserError as error:
        if not method.kernel.decides:
            raise
        reason = f"the search for a mode failed ({str(error).rstrip('.')})"
        reason = reason if gradients_of(target) else "the model has no gradients"
        start, facts["why"] = ScaledStart(theta), f"{reason}, so that there is no scale; "
    n_grad = 0
    if start.doubt is not None and allows_trajectories(method):
        start, rounds, n_grad = judged(method, start, temperature, key)
        if rounds:
            assert start.scale is not None
            facts |= {"condition": start.scale.condition, "rounds": rounds}
    facts["doubt"] = start.doubt
    theta, scale, curvature, _ = start
    if isinstance(method.kernel, MetropolisHastings):
        length = quarter_period(curvature) if _leapfrog_is_open(method.kernel) else None
        if scale is not None and method.kernel.proposal.follows:
            tuning, scale, rounds, _ = adapt(
                method, scale, theta, temperature, key, length=length, known=curvature is not None
            )
            if rounds or curvature is None:
                facts |= {"condition": scale.condition, "rounds": rounds}
        else:
            tuning = tune(method, scale, theta, temperature, key, length)
        step, theta, m, count = tuning.step_size, tuning.theta, tuning.m, tuning.leapfrog_steps
        facts |= tuning.facts | {"why": facts.get("why", "") + tuning.facts["why"]}
        acceptance = tuning.acceptance
    elif isinstance(method.kernel, ZigZag):
        step, m, acceptance, count = _ZIG_ZAG * temperature.sqrt(), None, None, None
        facts["why"] = facts.get("why", "") + (
            "a zig-zag draw every standard deviation of the tempered posterior."
        )
    else:
        step, m = step_of_dynamics(method, surface, theta, scale, curvature, float(temperature.min()), facts)
        acceptance, count = None, None
    facts |= {"n_lik": facts.get("n_lik", 0), "n_grad": facts.get("n_grad", 0) + n_grad + surface.n_grad}
    facts |= {"step_size": float(step.log().mean().exp()), "m": m, "acceptance": acceptance}
    facts |= {} if count is None else {"leapfrog_steps": count}
    facts["step_size_by_chain"] = step.expand(chains).tolist()
    return Found(step.expand(chains).contiguous(), theta, scale, acceptance, m, count, facts)


def line(name: str, facts: dict[str, Any]) -> str:
    """Return what a pilot found as one line."""
    words = [f"step size {facts['step_size']:.3g}{' as given' if facts.get('given') else ''}"]
    if facts["m"] is not None:
        words.append(f"m = {facts['m']:,}")
    if (count := facts.get("leapfrog_steps")) is not None:
        words.append(f"{count} leapfrog step{'s' * (count > 1)}")
    if "scale" in facts:
        origin = ", from draws" if "rounds" in facts else ""
        words.append(f"{facts['scale']} scale{origin} (condition number {facts['condition']:.3g})")
    cost = " and ".join(
        f"{facts[key]:.2g} {word}".replace("e+0", "e")
        for key, word in (("n_lik", "likelihoods"), ("n_grad", "gradients"))
        if facts.get(key)
    )
    doubt = _DOUBTS.get(facts.get("doubt") or "", "")
    return f"{name}: pilot: {', '.join(words)}: {facts['why'].strip()} It took {cost}.{doubt}"


def _scaled_start(
    method: Method, surface: Surface, theta: Tensor, key: int, facts: dict[str, Any], temperature: Tensor
) -> ScaledStart:
    """Return points for the chains to begin at, the scale, and the curvature in scaled coordinates, if it is known."""
    dim = method.target.dim
    if dim > _DIAGONAL:
        modes, curvature = find_modes(surface, theta), None
    else:
        modes, curvature, proper = find_curved_modes(surface, theta)
    if not bool(modes.theta.isfinite().all()):
        return ScaledStart(theta)
    if curvature is None:
        return ScaledStart(modes.theta.to(theta.dtype))
    eigenvalues, vectors = spectrum(curvature, proper=proper)
    kind = "none" if isinstance(method.kernel, ZigZag) else method.precondition or "auto"
    if kind == "auto":
        kind = "dense" if dim <= _DENSE else "diagonal"
    follows = isinstance(method.kernel, MetropolisHastings) and method.kernel.proposal.follows
    if follows and kind != "none" and not proper:
        facts["scale"] = kind
        unit = torch.eye(dim) if kind == "dense" else torch.ones(dim)
        return ScaledStart(theta, Scale(torch.zeros(dim), unit))
    root = torch.linalg.cholesky(vectors @ torch.diag(1 / eigenvalues) @ vectors.T)
    highest = modes.theta[modes.best].to(theta.dtype)  # of the data that the surface has
    modes = modes._replace(theta=on_all_data(surface, modes.theta, modes.best, curvature, proper=proper))
    best = modes.theta[modes.best].to(theta.dtype)
    z = Draws(Streams(key, len(theta)), 0).normal(Purpose.INIT, dim).cpu()
    offsets = _SPREAD * temperature.sqrt()[:, None] * (z @ root.T)
    expected = 0.5 * _SPREAD**2 * temperature.cpu() * z.square().sum(1)
    points = _inside(surface, modes.theta.double().cpu(), offsets, theta, expected)
    if kind == "none":
        return ScaledStart(points, None, curvature)
    condition = float(eigenvalues.max() / eigenvalues.min())
    facts |= {"scale": kind, "condition": condition}
    doubt = None
    if not proper and condition > _LARGEST_CONDITION:  # else coordinates have different units
        doubt = "flat"
    elif not follows and spread_of_log_ratio(surface, highest, root, key) > _LARGEST_SPREAD:
        doubt = "skewed"
    # A diagonal scale has the curvature of each coordinate with the others held fixed.
    diagonal = curvature.diagonal().abs().clamp_min(float(eigenvalues.min())).rsqrt()
    scale = Scale(best.cpu(), root if kind == "dense" else diagonal)
    factor = scale.factor if scale.dense else torch.diag(scale.factor)
    scaled = factor.T @ (vectors @ torch.diag(eigenvalues) @ vectors.T) @ factor
    return ScaledStart(points, scale, scaled, doubt)


def _inside(surface: Surface, modes: Tensor, offsets: Tensor, like: Tensor, expected: Tensor) -> Tensor:
    """Return modes + off (C, D), nearer to the mode where the density is not finite, or far below the expected.

    `expected` (C,) is how far below its mode a normal log density would be, in nats at temperature 1. In a curved ridge
    it falls by hundreds of nats more, and a chain that begins there rejects all moves.
    """
    share = torch.ones(len(modes), 1, dtype=torch.float64)
    height = surface.value_and_grad(modes.to(like))[0].cpu()
    for _ in range(10):
        points = (modes + share * offsets).to(like)
        value, _ = surface.value_and_grad(points)
        bad = ~(height - value.cpu() < _STEEPER * expected + _DEEPER * surface.temperature)
        if not bool(bad.any()):
            return points
        share[bad] /= 2
    share[bad] = 0.0
    return (modes + share * offsets).to(like)


def _save(settings: Found, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "step_size": settings.step_size.numpy(),
        "starts": settings.starts.cpu().numpy(),
        "facts": np.frombuffer(json.dumps(settings.facts).encode(), np.uint8),
    }
    if settings.scale is not None:
        arrays |= {"center": settings.scale.center.numpy(), "factor": settings.scale.factor.numpy()}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_whole(folder / PILOT, lambda file: file.write(buffer.getvalue()))


def _load(method: Method, folder: Path | None) -> Found | None:
    """Return a pilot that was kept; None if there is none, or it is damaged."""
    content = None if folder is None or not (folder / PILOT).is_file() else load_block(folder / PILOT)
    if content is None or not {"step_size", "starts", "facts"} <= content.keys():
        return None
    facts = json.loads(content["facts"].tobytes().decode())
    scale = (
        Scale(*(torch.from_numpy(content[k]) for k in ("center", "factor"))) if "factor" in content else None
    )
    starts = torch.from_numpy(content["starts"]).to(method.target.device)
    return Found(
        torch.from_numpy(content["step_size"]),
        starts,
        scale,
        facts["acceptance"],
        facts["m"],
        facts.get("leapfrog_steps"),
        facts,
    )
