"""What a pilot found, as a line and as warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mhrun.engine.landscape.known_modes import SHARE
from mhrun.engine.method import Method
from mhrun.numbers import in_figures
from mhrun.store.pilot_facts import KnownMode, PilotFacts

_COORDINATES = 4  # of a mode, that are named
# Of the share of a mode, in draws, from which on R-hat and ESS judge whether chains cross. The coldest rungs of
# ladders that exchange more often than they cross have few draws at one mode, all of them alike.
_VISITED, _VISITED_BY_LADDERS = 0.1, 0.3
_LONG_TRAJECTORY = 25  # leapfrog steps from which a dense scale is named
NETWORK = "network"
_DOUBTS = {
    NETWORK: " The posterior of a network is far from normal, and this scale is a guess: judge predictions, and "
    "give a step size where they do not settle.",
    "flat": " Some directions have no curvature at the mode that was found, as in a hierarchical model in centred form "
    "or with parameters that nothing determines: the scale may be far off in them. hmc takes its scale from draws.",
    "skewed": " The posterior is far from normal about the mode that was found, as of a hierarchical model in "
    "non-centred form: the scale may be far off. hmc takes its scale from draws.",
}


_FAR_FROM_MODE = " Its control variate is that of the mode, and takes little noise off where the draws are."


def line(name: str, facts: PilotFacts) -> str:
    """Return what a pilot found as one line."""
    size = f"{facts['step_size']:.3g}{' as given' if facts.get('given') else ''}"
    if facts.get("scheduled"):
        size = f"at most {facts['step_size']:.3g} after burn-in by its schedule"
    words = [f"step size {size}"]
    if facts["m"] is not None:
        words.append(f"m = {facts['m']:,}")
    if (count := facts.get("leapfrog_steps")) is not None:
        words.append(f"{count} leapfrog step{'s' * (count > 1)}")
    if "scale" in facts:  # as a setting: without it the step size would be another step
        origin = " from draws" if "rounds" in facts else ""
        words.append(f"precondition={facts['scale']}{origin} (condition number {facts['condition']:.3g})")
    cost = " and ".join(
        f"{in_figures(count, 2)} {word}"
        for count, word in ((facts.get("n_lik"), "likelihoods"), (facts.get("n_grad"), "gradients"))
        if count
    )
    doubt = _DOUBTS.get(facts.get("doubt") or "", "")
    if facts.get("control_variate") and facts.get("doubt") in ("flat", "skewed"):
        doubt += _FAR_FROM_MODE
    if "moved" in facts:
        doubt += f" {moved(**facts['moved'])}"
    if "neck" in facts:
        doubt = f" {neck(facts['neck'])}"
    if "flat_along" in facts:
        doubt = f" {improper(facts['flat_along'], is_density=facts.get('is_density', False))}"
    if facts.get("scale") == "diagonal" and (count or 0) >= _LONG_TRAJECTORY:
        doubt += (
            " Trajectories are long because parameters are correlated: precondition=dense may need few steps, and "
            "standardised (whitened) parameters too."
        )
    return f"{name}: pilot: {', '.join(words)}: {facts['why'].strip()} It took {cost}.{doubt}"


def pilot_warnings(method: Method, visits: Mapping[str, Any] | None, beyond: float | None) -> Iterator[str]:
    """Yield what a pilot found that makes the draws of a method doubtful.

    Args:
        method: after its pilot, if it had one.
        visits: of `mhrun.engine.diagnosis.visits.Visits`; None if they are unknown.
        beyond: that of draws so far from the mode that was found; None if it is unknown.
    """
    if (facts := method.pilot) is None:
        return
    name = method.name
    if not facts.get("settled", True) and "flat_along" not in facts:
        yield (
            f"{name}: the pilot's step size did not settle: acceptance {facts['acceptance_found']:.3g}, aimed at "
            f"{facts['aim']:.2f}. Give a step size, or better starting points{_lower_aim(facts)}."
        )
    if "flat_along" in facts:
        yield f"{name}: {improper(facts['flat_along'], is_density=facts.get('is_density', False))}"
    if (mass := facts.get("beyond")) is not None and (beyond or 0.0) < _VISITED * mass["share"]:
        yield f"{name}: {far_away(mass['at'], mass['radius'], mass['share'], beyond)}"
    if (modes := facts.get("modes")) is not None:
        is_ladder = method.kernel.rungs > 1
        if missed := list(_missed(modes, visits, _VISITED_BY_LADDERS if is_ladder else _VISITED)):
            yield f"{name}: {modes_missed(missed, is_ladder=is_ladder)}"
    if facts.get("doubt") == "flat" and "flat_along" not in facts and method.dtype == torch.float32:
        yield (
            f"{name}: in float32 the curvature of the log posterior is no larger than rounding in some directions, "
            "so that the scale of the moves may be wrong. Take dtype=torch.float64, or standardise the data."
        )
    if "heavy" in facts:
        yield f"{name}: {without_variance(**facts['heavy'])}"


def _lower_aim(facts: PilotFacts) -> str:
    """Return what else to do where too few moves are accepted at any step size."""
    return (
        "; if shorter steps are not accepted more often, aim lower (acceptance)"
        if facts["acceptance_found"] < facts["aim"]
        else ""
    )


def improper(direction: str, *, is_density: bool = False) -> str:
    """Return what a direction without an end means, as sentences.

    Args:
        direction: in words.
        is_density: whether the log posterior levels off at 0 in all directions.
    """
    if is_density:
        return (
            "The log posterior levels off at 0 far from its mode, as a density does: return its logarithm, "
            "without which chains wander without end."
        )
    return (
        f"The log posterior does not fall off along {direction}: it may be improper, and chains wander without end. "
        "Give these parameters priors, or leave one of them out."
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.2%}" if share >= 1e-4 else "less than 0.01%"


class Missed(NamedTuple):
    """A mode with less of the draws than of the mass."""

    at: Mapping[str, float]
    share: float  # of its mass in that of all known modes
    found: float | None  # of the draws, of ladders those of the coldest rungs; None if it is unknown
    begins: bool  # whether a chain begins there


def _missed(modes: Sequence[KnownMode], visits: Mapping[str, Any] | None, enough: float) -> Iterator[Missed]:
    """Yield the modes that have less than `enough` of their share of the draws."""
    for k, mode in enumerate(modes):
        share, found = (mode["share"], None) if visits is None else (visits["share"][k], visits["found"][k])
        # Less if chains went to a mode of more mass than those that the pilot found
        matters = share >= min(SHARE, mode["share"] / 2)
        if matters and (found or 0.0) < enough * share and not (mode["begins"] and found is None):
            yield Missed(mode["at"], share, found, mode["begins"])


def modes_missed(missed: Sequence[Missed], *, is_ladder: bool = False) -> str:
    """Return what modes with hardly any draws mean, as sentences on the one with the largest share.

    Args:
        missed: these modes.
        is_ladder: whether the chains are rungs of ladders.
    """
    at, share, found, begins = max(missed, key=lambda mode: mode.share)
    place, of_all = _place(at), _percent(share)
    mode = f"The posterior has another mode, at {place}, with about {of_all} of the mass of all known ones"
    others = len(missed) - 1
    more = f" The same holds for {others} more mode{'s' * (others > 1)}." if others else ""
    draws = "hardly any" if found is None else _percent(found) if found else "none"
    if is_ladder:
        begun = "ladders begin there" if begins else "no ladder begins there"
        return (
            f"{mode}; {begun}, and {draws} of the draws of the coldest rungs are there: ladders hardly cross, and "
            "R-hat need not show it. Add hotter rungs, take more steps, or give the coldest rung of each ladder its "
            f"own start.{more}"
        )
    if begins:
        return (
            f"{mode}; chains begin there, and {draws} of the draws are there: chains leave it and hardly return, "
            f"which R-hat need not show. Take more steps, or a ladder (parallel_tempering).{more}"
        )
    return (
        f"{mode}, and no chain begins there: chains may never visit it, and R-hat would not show that. Give each chain "
        f"its own start, or take a ladder (parallel_tempering).{more}"
    )


def _place(at: Mapping[str, float]) -> str:
    """Return the first coordinates of a point, in words."""
    shown = ", ".join(f"{name} = {value:.3g}" for name, value in list(at.items())[:_COORDINATES])
    return shown + (", ..." if len(at) > _COORDINATES else "")


def far_away(at: Mapping[str, float], radius: float, share: float, found: float | None) -> str:
    """Return what mass far from the mode means that draws lack, as sentences.

    Args:
        at: the mode.
        radius: in standard deviations by the curvature there.
        share: of the posterior beyond it.
        found: of the draws; None if it is unknown.
    """
    draws = "hardly any" if found is None else _percent(found) if found else "none"
    return (
        f"About {_percent(share)} of the posterior is more than {radius:.2g} standard deviations, by the curvature at "
        f"its mode, from there ({_place(at)}), and {draws} of the draws: the mode is a narrow peak of a wide density, "
        "which chains do not leave, and R-hat does not show that. Ladders hardly cross either: sample the two "
        "separately, or make the peak wider."
    )


def without_variance(direction: str, power: float) -> str:
    """Return what a tail without a variance means, as sentences."""
    return (
        f"Far out along {direction} the posterior falls off only as the power -{power:.2g} of the distance: it has no "
        "variance, chains hardly get there, and quantiles in the tail may be wrong though R-hat and ESS look right. "
        "Give these parameters priors with lighter tails."
    )


def moved(ascents: int, of: int, nats: float) -> str:
    """Return what became of ascents that ended at modes with hardly a share of the posterior, as a sentence."""
    return (
        f"{ascents} of {of} searches ended at a mode with a share of about e^-{nats:,.0f} of the posterior, by its "
        "height and curvature: chains that would begin there begin at the highest one."
    )


def neck(nats: float) -> str:
    """Return what it means that the highest mode has less mass than the starting points, as a sentence."""
    return (
        f"The highest mode has about e^-{nats:,.0f} of the mass near the starting points, like the neck of a funnel: "
        "chains begin at these points."
    )
