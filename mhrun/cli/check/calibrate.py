"""``mhrun check experiment=NAME``: simulation-based calibration of a user's model with the methods of an experiment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mhrun.cli.check.calibration_output import print_json, print_table
from mhrun.cli.check.calibration_study import Setting, study_of
from mhrun.cli.check.replications import calibration_of
from mhrun.cli.configuration.overrides import parsed
from mhrun.cli.exit_status import FAILED, OK
from mhrun.errors import Refusal, UserError
from mhrun.numbers import whole_number

_REPLICATIONS, _N = 100, 500
_FEWEST_DATA_SETS = 20  # data sets whose ranks show anything
_OWN = ("replications", "n")


def is_calibration(overrides: Sequence[str]) -> bool:
    """Return whether the overrides of a check name an experiment."""
    return any(override.lstrip("+").partition("=")[0] == "experiment" for override in overrides)


def calibrate(overrides: Sequence[str], folders: Sequence[Path], *, as_json: bool) -> int:
    """Calibrate each method of an experiment, print the results, and return 1 if one fails.

    Raises:
        UserError: invalid overrides, or a model that cannot be simulated.
    """
    from mhrun.check.results import FAILS

    own = dict(map(_own_setting, filter(_is_own, overrides)))
    setting = Setting(
        overrides=tuple(override for override in overrides if not _is_own(override)),
        folders=tuple(folders),
        replications=whole_number("replications", own.get("replications", _REPLICATIONS), _FEWEST_DATA_SETS),
        n=whole_number("n", own["n"], 1) if "n" in own else None,
        most=_N,
    )
    study = study_of(setting)
    began, calibrations = time.perf_counter(), {}
    for name, method in study.methods.items():
        try:
            calibrations[name] = calibration_of(study, method, quiet=as_json)
        except Refusal as error:
            raise UserError(f"{name}: {error}") from error
    seconds = time.perf_counter() - began
    (print_json if as_json else print_table)(study, calibrations, seconds)
    has_failed = any(calibration.result.outcome == FAILS for calibration in calibrations.values())
    return FAILED if has_failed else OK


def _is_own(override: str) -> bool:
    """Return whether an override is a setting of the calibration, not of the experiment."""
    return override.partition("=")[0] in _OWN


def _own_setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of an override; several values, as of a sweep, as text."""
    (override,) = parsed([text])
    value = override.get_value_string() if override.is_sweep_override() else override.value()
    return override.key_or_group, value
