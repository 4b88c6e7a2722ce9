"""Estimates computed after the last step of a method, from which its warnings are derived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mhrun.engine.diagnosis.excess_variance import excess_variance
from mhrun.engine.diagnosis.exchange_noise import EXCHANGE_NOISE, exchange_noise
from mhrun.engine.diagnosis.fit import fit_warnings, judges_fit
from mhrun.engine.diagnosis.flat_regions import FLAT_REGIONS, flat_regions
from mhrun.engine.diagnosis.kinetic import kinetic_temperature
from mhrun.engine.diagnosis.mean_bias import mean_bias
from mhrun.engine.diagnosis.mixing import UNSETTLED, rhat_of_unsettled
from mhrun.engine.diagnosis.outside import OUTSIDE, share_outside
from mhrun.engine.diagnosis.sampled_gradients import sampled_gradients
from mhrun.engine.diagnosis.selection import SELECTION, selection_shift
from mhrun.engine.diagnosis.term_noise import TERM_NOISE, term_noise
from mhrun.engine.diagnosis.virial import least_variance_ratio, variance_ratio
from mhrun.engine.diagnosis.visits import BEYOND, VISITS, draws_beyond, visits
from mhrun.engine.diagnosis.width import WIDTH, width_of_draws
from mhrun.engine.method import Method
from mhrun.errors import raised_in, reason_of
from mhrun.store.netcdf import KINETIC, open_trace
from mhrun.types import Controls, State

if TYPE_CHECKING:
    import xarray as xr

T = TypeVar("T")


class Diagnosis:
    """Estimates of a method, each isolated: a failure of one is reported, and no draws are lost.

    Args:
        method: whose steps have ended.
        note: called with one line on each estimate that failed.
    """

    def __init__(self, method: Method, note: Callable[[str], None]) -> None:
        self._method, self._note = method, note

    def of_fit(self, folder: Path) -> list[str] | None:
        """Return warnings about the model's fit from the draws in a folder; None if the fit is not judged."""

        def warnings() -> list[str]:
            with open_trace(folder) as trace:
                return fit_warnings(self._method, trace)

        return (
            self._tried("the fit of the model", warnings) if judges_fit(self._method.target.model) else None
        )

    def of_fit_by(self, trace: xr.DataTree) -> list[str] | None:
        """Return warnings about the model's fit from the draws of a trace; None if that fails."""
        return self._tried("the fit of the model", lambda: fit_warnings(self._method, trace))

    def of_state(self, state: State, last: Controls) -> dict[str, Any]:
        """Return the facts that are from the last state, with the controls of the last step (1, C)."""
        kinetic = self._tried(
            "the kinetic temperature", lambda: kinetic_temperature(self._method, state, last)
        )
        return _known(**{KINETIC: kinetic})

    def of_draws(self, folder: Path, state: State) -> dict[str, Any]:
        """Return the facts that are from the draws in a folder, or from the last state if it keeps none."""
        trace = self._tried("what draws show", lambda: open_trace(folder, cache=False))
        if trace is None:
            return {}
        with trace:
            return self._of_trace(trace, state)

    def _of_trace(self, trace: xr.DataTree, state: State) -> dict[str, Any]:
        method = self._method
        sampled = self._tried("gradients at the draws", lambda: sampled_gradients(method, trace))
        bias = ratio = least = None
        if sampled is not None:
            bias = self._tried("the bias of means", lambda: mean_bias(method, sampled))
            ratio = self._tried("the width by gradients", lambda: variance_ratio(sampled))
            least = self._tried("the width by gradients", lambda: least_variance_ratio(sampled))
        return _known(
            **{
                VISITS: _as_dict(self._tried("visits of modes", lambda: visits(method, trace))),
                BEYOND: self._tried("draws far from the mode", lambda: draws_beyond(method, trace)),
                WIDTH: self._tried("the width of the draws", lambda: width_of_draws(method, trace)),
                TERM_NOISE: _as_dict(
                    self._tried("the noise of decisions", lambda: term_noise(method, trace))
                ),
                FLAT_REGIONS: _as_dict(
                    self._tried("the energies of the rungs", lambda: flat_regions(method, trace))
                ),
                SELECTION: _as_dict(
                    self._tried("the selection of minibatches", lambda: selection_shift(method, trace))
                ),
                EXCHANGE_NOISE: self._tried("the noise of exchanges", lambda: exchange_noise(method, trace)),
                UNSETTLED: self._tried("R-hat", lambda: rhat_of_unsettled(method, trace)),
                OUTSIDE: self._tried(
                    "the support of the posterior", lambda: share_outside(method, trace, sampled)
                ),
            },
            excess_variance=self._tried(
                "the effect of minibatch noise",
                lambda: excess_variance(method, trace, state),
            ),
            mean_bias=_as_dict(bias),
            variance_ratio=ratio,
            narrow_ratio=least,
        )

    def _tried(self, what: str, estimate: Callable[[], T]) -> T | None:
        """Return an estimate, or None if it fails."""
        try:
            return estimate()
        # It may call the user's model at any draw, on all data. Hours of computing do not depend on it.
        except Exception as error:
            self._note(
                f"{self._method.name}: {what} cannot be estimated ({reason_of(error)}; {raised_in(error)}), so that a "
                "warning may be missing."
            )
            return None


def _as_dict(estimate: NamedTuple | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate._asdict()


def _known(**facts: Any) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}
