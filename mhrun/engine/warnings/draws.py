"""Warnings about the draws of one method: R-hat, ESS, tails, rounding, acceptance and temperature."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mhrun.diagnostics.chains import ESS, LEAST_DRAWS, RHAT, diagnoses, few_points, is_apart
from mhrun.diagnostics.tails import heaviest
from mhrun.engine.diagnosis.visits import VISITS
from mhrun.engine.method import Method
from mhrun.engine.warnings.run import acceptance_range, explained_acceptance
from mhrun.kernels.stationary import samples
from mhrun.models.parameters import bounded_names
from mhrun.numbers import rounded
from mhrun.target.function_space import is_network

_FIRST, _LEFT_OUT = 50, 10  # the first 50th of the draws is compared with those after the first tenth
# Standard deviations between their means, and how many times as far off the means of as many of the others are
_FAR, _BEYOND, _ROUNDED = 5.0, 10.0, 1e-12
_AT_A_MODE = 0.01  # of the draws
_CROSSINGS = 10.0  # from one mode to another, of a chain, from which on they do cross
_RESOLVED = 30.0  # numbers of float32 within a standard deviation of draws, below which rounding is seen


def draws_warnings(
    method: Method,
    summary: Mapping[str, Any],
    draws: npt.NDArray[np.float64],
    names: Sequence[str],
    enough: float = ESS,
) -> Iterator[str]:
    """Yield the warnings of a single method that a report has aggregated over methods: R-hat, ESS, acceptance, T.

    Args:
        method: the method.
        summary: of its run.
        draws: after burn-in (C, S, D), or of a network its predictions.
        names: of the coordinates, D.
        enough: effective sample size below which there is a warning.
    """
    name = method.name
    if draws.shape[1] >= LEAST_DRAWS and np.isfinite(draws).all() and not method.kernel.optimises:
        transient = [] if is_network(method.target.model) else list(_transient_warnings(name, draws, names))
        yield from transient
        yield from precision_warnings(
            name,
            draws,
            names,
            judges_tails=not (transient or is_network(method.target.model)),
            bounded=bounded_names(method.target.model),
            is_tested=method.kernel.of_a_chain.dynamics is None,
            enough=enough,
            advice=_advice(summary.get(VISITS), is_ladder=method.kernel.rungs > 1),
        )
        if len(draws) == 1:
            yield (
                f"{name}: R-hat compares the two halves of a single chain, which cannot show a mode that it never "
                "visited. Run several, such as chains=4."
            )
    if np.sum(summary["totals"]["sum_accepted"]) > 0:
        yield from _rounding_warnings(method, draws, names)
    yield from _acceptance_warnings(method, summary)
    if method.kernel.optimises:  # its draws are no sample of a target
        return
    distribution = samples(method.kernel, method.plan)
    if distribution.tempered:
        yield f"{name}: {tempered(distribution.temperature)}"
    if distribution.is_cold:
        yield (
            f"{name}: the target is at T = {rounded(distribution.temperature)}, narrower than the posterior: its "
            "standard deviations are down to sqrt(T) times as large. Use T = 1 for the posterior."
        )


def _advice(visits: Mapping[str, Any] | None, *, is_ladder: bool) -> str:
    """Return what to do where chains hardly cross between modes that a pilot found, as a sentence; else nothing."""
    if visits is None or visits["crossings"] >= _CROSSINGS:
        return ""
    if (modes := sum(found >= _AT_A_MODE for found in visits["found"])) < 2:
        return ""
    remedy = "add hotter rungs" if is_ladder else "take a ladder (parallel_tempering)"
    return (
        f" They are at {modes} modes that the pilot found, and hardly cross between them: {remedy}, or constraint: "
        "ordered for parameters that can change places, as the means of a mixture can."
    )


def _acceptance_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the acceptance rate is not efficient, and nothing explains it."""
    shape = method.shape
    rate = float(np.sum(summary["totals"]["sum_accepted"])) / (shape.chains * shape.steps)
    limits = acceptance_range(method)
    outside = limits is not None and rate > 0 and not limits[0] <= rate <= limits[1]
    reason = explained_acceptance(method, summary) if outside else None
    if limits is not None and outside and not (reason == "unsettled" or (reason and rate > limits[1])):
        remedy = "Lower the step size."
        if rate > limits[1]:
            fewer = ", and take fewer leapfrog steps, so that trajectories stay as long"
            proposal = method.kernel.of_a_chain.proposal
            follows = proposal is not None and proposal.leapfrog_steps > 1
            remedy = f"Raise the step size{fewer * follows}."
        yield (
            f"{method.name}: acceptance {rate:.3g} is outside {limits[0]:.2f} to {limits[1]:.2f}, where it is "
            f"efficient. {remedy}"
        )


def _transient_warnings(name: str, draws: npt.NDArray[np.float64], names: Sequence[str]) -> Iterator[str]:
    """Yield a line if the first draws are far from the others, which ranks hide from R-hat and ESS.

    They make means and standard deviations wrong, though they are few.
    """
    first = draws.shape[1] // _FIRST
    if not first:
        return
    rest = draws[:, draws.shape[1] // _LEFT_OUT :]
    blocks = rest[:, : rest.shape[1] // first * first].reshape(len(draws), -1, first, draws.shape[2])
    with np.errstate(over="ignore", invalid="ignore"):  # chains on their way to infinity have other warnings
        middle, sd = rest.mean((0, 1)), rest.std((0, 1))
        gap = np.abs(draws[:, :first].mean((0, 1)) - middle)
        # Of as many draws, with their tails and correlations
        usual = np.abs(blocks.mean((0, 2)) - middle).max(0)
        begins = np.median(np.abs(draws[:, 0] - middle), 0)  # of the chains: far tails are not those of all
        moves = (sd > _ROUNDED * np.abs(middle)) & (gap > _BEYOND * usual) & (begins > _FAR * sd)
        share = np.nan_to_num(np.divide(gap, sd, out=np.zeros_like(gap), where=moves))
    worst = int(share.argmax())
    if share[worst] > _FAR:
        yield (
            f"{name}: the first {first:,} draw{'s' * (first > 1)} of each chain {'are' if first > 1 else 'is'} "
            f"{rounded(float(share[worst]))} standard deviations from the others ({names[worst]}): "
            "chains were on their way from where they began. Raise warmup."
        )


def _rounding_warnings(method: Method, draws: npt.NDArray[np.float64], names: Sequence[str]) -> Iterator[str]:
    """Yield a line if float32 has hardly any numbers where a coordinate has its posterior."""
    if method.dtype != torch.float32 or is_network(method.target.model) or not np.isfinite(draws).all():
        return
    sd = draws.std((0, 1))
    spacing = np.spacing(np.abs(draws).max((0, 1), initial=0.0).astype(np.float32)).astype(np.float64)
    share = np.where(spacing > 0, sd / np.where(spacing > 0, spacing, 1.0), np.inf)
    if len(share) and share.min() < _RESOLVED:
        worst = int(share.argmin())
        yield (
            f"{method.name}: float32 is too coarse for {names[worst]}: its numbers are {rounded(spacing[worst])} apart "
            f"at {rounded(float(draws[..., worst].mean()))}, and the draws have a standard deviation of "
            f"{rounded(float(sd[worst]))}. Take dtype=torch.float64, or subtract a constant from the parameter."
        )


def precision_warnings(
    method: str,
    draws: npt.NDArray[np.float64],
    names: Sequence[str],
    *,
    judges_tails: bool = True,
    bounded: Container[str] = (),
    is_tested: bool = True,
    enough: float = ESS,
    advice: str = "",
) -> Iterator[str]:
    """Yield a line on the largest R-hat and one on the least effective sample size, with the names of coordinates.

    Args:
        method: its name.
        draws: (C, S, D).
        names: of the coordinates, D.
        judges_tails: whether a heavy tail is looked for. Predictions of a network have none: probabilities have all
            moments, though those that are nearly 0 but for a few draws look like it.
        bounded: names of coordinates with bounds on both sides, which have all moments too.
        is_tested: whether moves are accepted or rejected; draws of a dynamics may have tails that the posterior has
            not.
        enough: effective sample size below which there is a warning.
        advice: what follows the line on R-hat.
    """
    by_coordinate = diagnoses(draws)

    def of(place: int) -> str:
        return f" ({names[place]})" if len(names) > 1 else ""

    rhats, sizes, tails = (
        np.array([getattr(diagnosis, key) for diagnosis in by_coordinate])
        for key in ("rhat", "ess", "ess_tail")
    )
    if (stuck := np.isnan(sizes)).any():
        yield f"{method}: ESS and R-hat are undefined: a coordinate never moves{of(int(stuck.argmax()))}."
    if stuck.all():
        return
    if is_apart(float(np.nan_to_num(rhats).max())):
        worst = int(np.nan_to_num(rhats).argmax())
        yield (
            f"{method}: R-hat is {rhats[worst]:.4g}{of(worst)}, above {RHAT:g}: the chains have not converged."
            + advice
        )
    if np.nanmin(sizes) < enough:
        worst = int(np.nanargmin(sizes))
        low = min(sizes[worst], enough - 1)  # 399.7 would be shown as 400
        yield f"{method}: ESS is {low:.3g}{of(worst)}, below {enough:g}: means and quantiles are imprecise."
        return
    is_judged = judges_tails and not is_apart(float(np.nan_to_num(rhats).max()))
    unbounded = [place for place, name in enumerate(names) if name not in bounded]
    if is_judged and unbounded and (heavy := heaviest(draws[..., unbounded])) is not None:
        place, index = heavy
        yield (
            f"{method}: the tail of {names[unbounded[place]]} is heavy (index {index:.2g}; from 0.5 on there is no "
            "variance, and from 1 on no mean): means and standard deviations of draws say little of the posterior. "
            + (
                "Report quantiles, or choose a prior with a lighter tail."
                if is_tested
                else "The posterior may have it, or steps too long for the noise of gradients: lower the step size, "
                "and see whether it stays."
            )
        )
    if (points := few_points(draws, float(np.nanmin(sizes)))) is not None:
        yield (
            f"{method}: only {points:,} of the draws are distinct, and their ESS says little: chains come back to the "
            "same points, as by jumps between which no other move is accepted. Lower the step size."
        )
    if np.nanmin(tails) < enough:
        worst = int(np.nanargmin(tails))
        low = min(tails[worst], enough - 1)
        yield (
            f"{method}: tail ESS is {low:.3g}{of(worst)}, below {enough:g}: standard deviations and the 5 % and "
            "95 % quantiles are imprecise. Raise steps."
        )


def tempered(temperature: float) -> str:
    """Return a sentence on what a temperature above 1 means for draws."""
    return (
        f"the target is at T = {rounded(temperature)}, not the posterior: its standard deviations are up to sqrt(T) = "
        f"{rounded(temperature**0.5)} times as large. Use T = 1 for the posterior."
    )
