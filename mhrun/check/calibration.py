"""Simulation-based calibration of a model with a method (Talts et al. 2018).

Parameters theta* are drawn from the prior, data from the likelihood at theta*, and draws theta_1, ..., theta_R from the
method on these data. If model, simulation and method agree, the rank of theta* among the draws is uniform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from mhrun.array_types import FloatArray
from mhrun.check.results import FAILS, FALSE_ALARMS, HOLDS, NONE, CheckResult, by_uniforms
from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.models.explained import explained
from mhrun.models.function import FunctionModel
from mhrun.models.named_tensors import Named
from mhrun.models.parameters import constant_coordinates, parameters_of
from mhrun.models.weights import Weights
from mhrun.random import derive_key
from mhrun.target import Target
from mhrun.types import Model, Rows
from mhrun.types.capabilities import DrawsPrior, Simulates, offers

LOG_LIK = "log-likelihood"  # also ranked: a quantity of parameters and data (Modrak et al. 2023)
MOST, LEAST = 39, 7  # draws that theta* is ranked among
BINS = 8  # of a histogram: each has (R + 1) / 8 ranks
_SHARE = 0.5  # of the effective sample size: draws so far apart are nearly independent
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Replicates(Dataset):
    """L data sets of one size at once: chain c has data set c // times.

    Args:
        drawn: fields with new values for each data set, (L, n, ...); the others are those of `fields`.
        times: chains for each data set.
    """

    drawn: dict[str, Tensor] = field(default_factory=dict)
    times: int = 1

    @property
    def chains(self) -> int:
        """How many chains there are, times L."""
        return self.times * len(next(iter(self.drawn.values())))

    @property
    def differs_by_chain(self) -> bool:
        """True."""
        return True

    def rows(self, index: Tensor) -> Rows:
        """Return the data at `index` (C or 1, m) of each chain's data set: name -> (C, m, ...)."""
        datum_index = index.expand(self.chains, -1)
        set_index = torch.arange(self.chains).div(self.times, rounding_mode="floor")[:, None]
        return {
            name: self.drawn[name][set_index, datum_index] if name in self.drawn else value[datum_index]
            for name, value in self.fields.items()
        }

    def part(self, start: int, stop: int) -> Rows:
        """Return the rows start..stop of each chain's data set: name -> (C, stop - start, ...)."""
        return {
            name: self.drawn[name][:, start:stop].repeat_interleave(self.times, 0)
            if name in self.drawn
            else value[start:stop][None].expand(self.chains, *[-1] * value.dim())
            for name, value in self.fields.items()
        }

    def one(self, which: int) -> Dataset:
        """Return one of the data sets."""
        return Dataset(
            {
                name: self.drawn[name][which].contiguous() if name in self.drawn else value
                for name, value in self.fields.items()
            }
        )


class Simulated(NamedTuple):
    """Parameters from the prior with data from the model."""

    truth: FloatArray  # (L, P) in the user's coordinates
    data: Replicates


def refuses(model: Model) -> str | None:
    """Return why a model cannot be calibrated, or None.

    A function's model and a built-in regression draw from their declared priors. A class of another model needs
    ``sample_prior(count) -> theta (count, D)`` and ``simulate(theta (D,), rows) -> fields``.
    """
    if isinstance(model, FunctionModel | Weights):
        return model.refuses_simulation()
    wanted = {"sample_prior(count)": DrawsPrior, "simulate(theta, rows)": Simulates}
    if missing := [method for method, kind in wanted.items() if not offers(model, kind)]:
        return (
            f"{type(model).__name__} has no {' and no '.join(missing)}, by which parameters and data are drawn; add "
            f"{'them' if missing[1:] else 'it'}, or write the model as functions with parameters."
        )
    return None


def _values(model: Any, theta: Tensor) -> FloatArray:
    """Return points (L, D) as draws have them (L, P)."""
    parameters = parameters_of(model)
    points: FloatArray = (theta if parameters is None else parameters.flat(theta)).numpy()
    return points


def _prior_draws(model: Any, count: int, seed: int) -> Tensor:
    """Return draws from the prior (count, D).

    Raises:
        UserError: `sample_prior` fails, or returns something else.
    """
    key = derive_key(seed, "calibration")
    if isinstance(model, FunctionModel | Weights):
        return model.draw_prior(count, key, strict=True)
    with torch.random.fork_rng(devices=[]), explained("sample_prior", {}):
        torch.manual_seed(derive_key(key, "prior") >> 1)
        theta = torch.as_tensor(model.sample_prior(count)).detach().double()
    if theta.shape != (count, model.dim) or not theta.isfinite().all():
        raise UserError(
            f"sample_prior({count}) must return finite numbers of shape ({count}, {model.dim}), and returned "
            + ("others." if theta.shape == (count, model.dim) else f"shape {tuple(theta.shape)}.")
        )
    return theta


def simulated(model: Any, data: Dataset, replications: int, times: int, seed: int) -> Simulated:
    """Return parameters from the prior, and for each a data set from the model.

    Raises:
        UserError: the model cannot be drawn from, or `simulate` fails or returns what are no fields of the data.
    """
    if (reason := refuses(model)) is not None:
        raise UserError(reason)
    theta = _prior_draws(model, replications, seed)
    named = parameters_of(model) if isinstance(model, FunctionModel) else None
    drawn_parameters = {} if named is None else named.values(theta)
    fields: dict[str, list[Tensor]] = {}
    with torch.random.fork_rng(devices=[]):
        for k in range(replications):
            torch.manual_seed(derive_key(seed, f"simulate/{k}") >> 1)
            parameters = {name: value[k] for name, value in drawn_parameters.items()}
            rows = {name: value.clone() for name, value in data.fields.items()}
            with explained("simulate", parameters | rows):
                new = (
                    model.simulate(Named(parameters), Named(rows))
                    if parameters
                    else model.simulate(theta[k], rows)
                )
            for name, value in _fields(new, data).items():
                fields.setdefault(name, []).append(value)
    drawn = {name: torch.stack(parts) for name, parts in fields.items()}
    if any(len(value) != replications for value in drawn.values()):
        raise UserError("simulate must return the same fields each time.")
    return Simulated(_values(model, theta), Replicates(data.fields, drawn=drawn, times=times))


def _fields(new: Any, data: Dataset) -> dict[str, Tensor]:
    """Return the fields that `simulate` returned, as the data have them."""
    if isinstance(new, Tensor) and list(data.fields) == ["x"]:
        new = {"x": new}
    if not isinstance(new, Mapping) or not new:
        raise UserError(
            f"simulate must return new fields by name, such as {{'{list(data.fields)[-1]}': ...}}."
        )
    fields = {}
    for name, value in new.items():
        if name not in data.fields:
            raise UserError(f"simulate returned '{name}'; the data have {', '.join(data.fields)}.")
        like = data.fields[name]
        if not isinstance(value, Tensor) or value.shape != like.shape:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"simulate must return {name} of shape {tuple(like.shape)}, and returned {shape}."
            )
        if not value.isfinite().all():
            raise UserError(f"simulate returned {name} that is not finite.")
        fields[name] = value.detach().to(like.dtype)
    return fields


class MethodCalibration(NamedTuple):
    """Whether the ranks of a method are uniform, and the ranks."""

    result: CheckResult
    histograms: dict[str, list[int]]  # quantity -> counts of ranks in BINS bins
    p: dict[str, float]  # quantity -> p-value of uniform ranks


def calibrated(
    name: str,
    model: Any,
    given: Simulated,
    draws: FloatArray,
    ess: Callable[[FloatArray], float],
    comparisons: int,
    seed: int,
) -> MethodCalibration:
    """Judge whether the ranks of the true parameters among draws are uniform.

    Args:
        name: of the method.
        model: the model.
        given: the true parameters and the data drawn from them.
        draws: (L, chains of a data set, S, P).
        ess: the effective sample size of draws (chains, S).
        comparisons: methods that are judged; each fails by chance with probability 1e-4 / comparisons.
        seed: breaks ties of ranks.
    """
    replications, chains, steps, size = draws.shape
    free = np.setdiff1d(np.arange(size), constant_coordinates(model)).tolist()  # zeros of triangular matrices
    independent = _independent_draws(draws, free, ess)
    # Ranks 0..R in bins of equal size: R + 1 is a multiple of BINS.
    count = int(min(MOST, _SHARE * independent) + 1) // BINS * BINS - 1
    if count < LEAST:
        detail = (
            f"a data set's chains are worth {independent:.0f} independent draws of {chains * steps:,}, too few to "
            "rank; raise steps and warmup, or tune the method"
        )
        return MethodCalibration(CheckResult(name, NONE, detail), {}, {})
    all_draws = draws.reshape(replications, chains * steps, size)
    thinned = all_draws[:, np.linspace(0, chains * steps - 1, count).round().astype(int)]
    rng = np.random.default_rng(seed)
    uniforms = {
        quantity: _uniforms(values, true_values, rng)
        for quantity, true_values, values in _quantities(model, given, thinned, free)
    }
    histograms = {quantity: np.histogram(u, BINS, (0, 1))[0].tolist() for quantity, u in uniforms.items()}
    # The second of a pair sees draws that are too narrow or too wide.
    pairs = {quantity: np.column_stack((u, np.abs(2 * u - 1))) for quantity, u in uniforms.items()}
    p = {quantity: float(by_uniforms(quantity, pair, "").p or 0.0) for quantity, pair in pairs.items()}
    least = min(p, key=p.__getitem__)
    combined = by_uniforms(name, np.hstack(list(pairs.values())), "", FALSE_ALARMS / comparisons)
    detail = (
        f"{replications} data sets, ranks among {count} draws of {chains * steps:,}: least uniform is {least} "
        f"{bars(histograms[least])}, p = {p[least]:.2g} of {len(p)} quantities"
    )
    outcome = FAILS if combined.outcome == FAILS else HOLDS
    return MethodCalibration(
        CheckResult(name, outcome, detail, combined.statistic, combined.p), histograms, p
    )


def _independent_draws(draws: FloatArray, free: Sequence[int], ess: Callable[[FloatArray], float]) -> float:
    """Return how many independent draws the chains of a data set are worth: the median over data sets.

    That of a data set is the least of its coordinates in `free`; draws without an effective sample size are worth none.
    """
    by_coordinate = [[ess(set_draws[..., d]) for d in free] for set_draws in draws]
    return float(np.median(np.nan_to_num(np.min(by_coordinate, axis=1), nan=0.0)))


def _quantities(
    model: Any, given: Simulated, draws: FloatArray, free: Sequence[int]
) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Yield each quantity that is ranked: its name, its true values (L,), and its values at draws (L, R, P)."""
    for d in free:
        yield model.names[d], given.truth[:, d], draws[..., d]
    yield LOG_LIK, *_log_likelihoods(model, given, draws)


def _uniforms(values: FloatArray, truth: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return uniform numbers (L,) from ranks of the truth (L,) among values (L, R), ties broken at random."""
    ties = (values == truth[:, None]).sum(1)
    ranks = (values < truth[:, None]).sum(1) + rng.integers(0, ties + 1)
    uniforms: FloatArray = (ranks + rng.random(len(truth))) / (values.shape[1] + 1)
    return uniforms


def unseen_width(replications: int, quantities: int) -> float:
    """Return the relative error of one parameter's standard deviations that goes unseen half of the time.

    exp(1.4 z / sqrt(2 L)) - 1 for L data sets, with z the critical value of the comparisons of all quantities: the
    ranks of L data sets estimate a standard deviation as L draws do, and the uniformity of ranks is a test for
    everything, which needs 1.4 times as large an error as the best one for this (measured for 40 to 500 data sets and
    3 to 8 parameters).
    """
    z = float(norm.isf(FALSE_ALARMS / (4 * quantities)))
    return math.expm1(1.4 * z / math.sqrt(2 * replications))


def _log_likelihoods(model: Any, given: Simulated, draws: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the log-likelihood of each data set at its true parameters (L,), and at draws (L, R, P): (L, R)."""
    at_truth, at_draws = [], []
    parameters = parameters_of(model)
    for k, (true, of_set) in enumerate(zip(given.truth, draws, strict=True)):
        points = torch.from_numpy(np.vstack((true, of_set)))
        if parameters is not None:
            points = parameters.theta(parameters.named(points), "a draw")
        with torch.no_grad():
            log_lik = Target(model, given.data.one(k)).full_log_lik(points).numpy()
        at_truth.append(log_lik[0])
        at_draws.append(log_lik[1:])
    return np.asarray(at_truth), np.asarray(at_draws)


def bars(counts: Sequence[int]) -> str:
    """Return a histogram as a word of bars; a level one is flat at half height."""
    level = 2 * sum(counts) / max(1, len(counts))
    return "".join(_BARS[min(len(_BARS) - 1, int(len(_BARS) * count / max(level, 1)))] for count in counts)
