"""``mhrun check experiment=NAME``: simulation-based calibration of a user's model with the methods of an experiment."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhrun.cli.compose import compose_config
from mhrun.durations import in_words
from mhrun.errors import Refusal, UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mhrun.check.calibration import Calibration, Simulated
    from mhrun.engine.method import Method
    from mhrun.engine.watcher import Silent
    from mhrun.target import Target

STYLES = {
    "holds": "green",
    "fails": "bold red",
    "no power": "bold red",
    "measured": "yellow",
    "does not apply": "dim",
}

_REPLICATIONS, _STEPS, _N = 100, 5000, 500
_FEWEST = 20  # data sets whose ranks show anything
_SHOWN = 12  # quantities whose histograms are printed, the least uniform first
_EVERY = 10.0  # seconds between lines on the progress
_OWN = ("replications", "n")


def is_calibration(words: Sequence[str]) -> bool:
    """Return whether the words of a check name an experiment."""
    return any(word.lstrip("+").partition("=")[0] == "experiment" for word in words)


def calibrate(words: Sequence[str], folders: Sequence[Path], *, as_json: bool = False) -> int:
    """Calibrate each method of an experiment, print the verdicts, and return 1 if one fails.

    Raises:
        UserError: words that mean nothing, or a model that cannot be simulated.
    """
    settings = {key: value for key, _, value in (w.partition("=") for w in words) if key in _OWN}
    rest = [word for word in words if word.partition("=")[0] not in _OWN]
    replications = _whole_number("replications", settings.get("replications", str(_REPLICATIONS)), _FEWEST)
    config = compose_config(rest, folders, compare=False, check=True) | {"device": "cpu"}
    import torch

    from mhrun.check.calibration import refuses, simulated
    from mhrun.engine.assemble import methods_of

    torch.set_num_threads(1)
    methods = methods_of(config)
    keys = {word.partition("=")[0] for word in rest}
    began, calibrations = time.perf_counter(), dict[str, Any]()
    simulations: dict[int, Simulated] = {}
    for method in methods:
        target = method.target
        if (reason := refuses(target.model)) is not None:
            raise UserError(f"{method.name}: {reason}")
        if id(target) not in simulations:
            data = _first(target, _whole_number("n", settings.get("n", str(min(_N, target.n))), 1))
            simulations[id(target)] = simulated(
                target.model, data, replications, method.shape.chains, int(config["seed"])
            )
        drawn = simulations[id(target)]
        drawn = drawn._replace(data=_times(drawn.data, method.shape.chains))
        counts = {
            key: getattr(method.shape, key) if key in keys else min(getattr(method.shape, key), _STEPS)
            for key in ("warmup", "steps")
        }
        try:
            calibrations[method.name] = _calibration(method, drawn, counts, len(methods), as_json)
        except Refusal as error:
            raise UserError(f"{method.name}: {error}") from error
    seconds = time.perf_counter() - began
    (_as_json if as_json else _as_table)(
        str(config["experiment"]), calibrations, methods, simulations, seconds
    )
    return 1 if any(calibration.verdict.outcome == "fails" for calibration in calibrations.values()) else 0


def _calibration(
    method: Method, simulation: Simulated, counts: Mapping[str, int], methods: int, quiet: bool
) -> Calibration:
    """Run a method on each data set, and judge the ranks."""
    import numpy as np
    import torch

    from mhrun.check.calibration import Calibration, calibrated
    from mhrun.check.verdict import NONE, Verdict
    from mhrun.diagnostics.chains import ess
    from mhrun.engine.pilot import is_open

    replications = len(simulation.truth)
    plan = method.plan.filled(torch.ones(method.shape.chains), None) if is_open(method) else method.plan
    hot = plan.controls(plan.start(), method.shape.total, 1).temperature[0, :: method.kernel.rungs]
    if bool((hot != 1).any()):
        detail = f"it samples at temperature {float(hot.max()):g}, not the posterior"
        return Calibration(Verdict(method.name, NONE, detail), {}, {})
    if _at_once(method):
        chains, watcher = method.shape.chains * replications, None if quiet else _reporting(method.name)
        draws, valid = _run(method, simulation.data, counts, chains, method.seed, watcher)
        draws = draws.reshape(replications, -1, *draws.shape[1:])
    else:
        parts, sets, valid = [], _Sets(method.name, replications), True
        for k in range(replications):
            watcher = _reporting(f"{method.name}, data set 1") if k == 0 and not quiet else None
            set_draws, set_is_valid = _run(
                method, simulation.data.one(k), counts, method.shape.chains, method.seed + k, watcher
            )
            valid = valid and set_is_valid
            parts.append(set_draws[:: method.kernel.rungs])
            if not quiet:
                sets.done(k + 1)
        draws = np.stack(parts)
    if not valid:
        return Calibration(Verdict(method.name, NONE, "only some of its draws are valid"), {}, {})
    model = method.target.model
    return calibrated(method.name, model, simulation, draws, ess, methods, method.seed)


def _reporting(name: str) -> Silent:
    """Return what prints the progress of a method's run, after ten seconds and then every ten."""
    from mhrun.engine.progress import Progress

    class Named(Progress):
        def _print(self, line: str) -> None:
            super()._print(f"{name}: {line}")

    return Named()


class _Sets:
    """Prints how many data sets are done and how long the others will take: after the first, and every ten seconds."""

    def __init__(self, name: str, replications: int) -> None:
        self._name, self._all = name, replications
        self._began = self._last = time.monotonic()

    def done(self, count: int) -> None:
        """Note that `count` data sets are done."""
        now = time.monotonic()
        seconds_left = (now - self._began) / count * (self._all - count)
        is_long = seconds_left >= _EVERY if count == 1 else now - self._last >= _EVERY
        if not is_long or count == self._all:
            return
        self._last = now
        print(
            f"mhrun: {self._name}: {count} of {self._all} data sets, about {in_words(seconds_left)} left",
            file=sys.stderr,
            flush=True,
        )


def _at_once(method: Method) -> bool:
    """Return whether data sets can be run as chains of one run: a step reads for all chains, and no pilot is needed.

    Built-in models have full-data sums and compiled loops, which read the one data set of a target.
    """
    from mhrun.engine.pilot import is_open
    from mhrun.kernels import MetropolisHastings, Unadjusted
    from mhrun.models.function import FunctionModel
    from mhrun.parts import DIFFERENCE

    if is_open(method):  # a pilot finds the settings for one posterior
        return False
    if not isinstance(method.target.model, FunctionModel) or method.target.surrogate is not None:
        return False
    if type(method.kernel) is MetropolisHastings:
        return method.kernel.pairing is not None and method.kernel.pairing.offers == DIFFERENCE
    return type(method.kernel) is Unadjusted


def _run(
    method: Method,
    data: Any,
    counts: Mapping[str, int],
    chains: int,
    seed: int,
    watcher: Silent | None = None,
) -> tuple[npt.NDArray[np.float64], bool]:
    """Return the draws (C, S, P) of a method on other data, and whether all are valid."""
    from mhrun.engine.assemble import assembled
    from mhrun.engine.pilot import piloted
    from mhrun.engine.run_method import run_method
    from mhrun.engine.settings import Settings
    from mhrun.engine.watcher import Silent
    from mhrun.store.netcdf import flat_draws, open_trace

    other_counts = {"chains": chains, "thin": 1, "thin_stats": None, "seed": seed}
    method_on_data = assembled(
        method.name,
        method.kernel,
        method.target.on(data),
        method.plan.schedules,
        {**counts, **other_counts},
        dtype=method.dtype,
        starts=method.starts,
        monitor=None,
        precondition=method.precondition,
    )
    method_on_data.check_data()
    method_on_data, _ = piloted(method_on_data, None, lambda line: None)
    with tempfile.TemporaryDirectory(prefix="mhrun-") as folder:
        run_method(method_on_data, Path(folder), Settings(), watcher or Silent(), lambda: False, {})
        with open_trace(Path(folder)) as trace:
            return flat_draws(trace["posterior"]), bool(trace["sample_stats"]["valid"].all())


def _first(target: Target, n: int) -> Any:
    """Return the first n data of a target."""
    from mhrun.data import Dataset

    return Dataset({name: value[:n] for name, value in target.data.fields.items()})


def _times(data: Any, times: int) -> Any:
    import dataclasses

    return dataclasses.replace(data, times=times)


def _whole_number(key: str, text: str, least: int) -> int:
    if not text.isdigit() or int(text) < least:
        raise UserError(f"{key} = {text} must be a whole number, at least {least}.")
    return int(text)


def _as_table(
    experiment: str,
    calibrations: Mapping[str, Calibration],
    methods: Sequence[Method],
    simulations: Mapping[int, Simulated],
    seconds: float,
) -> None:
    from rich.console import Console
    from rich.table import Table

    from mhrun.check.calibration import bars, unseen_width
    from mhrun.check.verdict import FALSE_ALARMS

    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title=f"calibration of {experiment}", title_justify="left", title_style="bold")
    for heading in ("method", "verdict", "what was found"):
        table.add_column(heading)
    for name, calibration in calibrations.items():
        table.add_row(
            name,
            f"[{STYLES[calibration.verdict.outcome]}]{calibration.verdict.outcome}[/]",
            calibration.verdict.detail,
        )
    console.print(table)
    for name, calibration in calibrations.items():
        if not calibration.histograms:
            continue
        ranks = Table(title=f"ranks of {name}", title_justify="left", title_style="bold")
        for heading in ("quantity", "ranks", "counts", "p"):
            ranks.add_column(heading)
        for quantity in sorted(calibration.p, key=calibration.p.__getitem__)[:_SHOWN]:
            counts = calibration.histograms[quantity]
            row = (
                quantity.replace("[", r"\["),
                bars(counts),
                " ".join(map(str, counts)),
                f"{calibration.p[quantity]:.2g}",
            )
            ranks.add_row(*row)
        console.print(ranks)
        if len(calibration.p) > _SHOWN:
            console.print(f"and {len(calibration.p) - _SHOWN} more, nearer to uniform.", highlight=False)
    failed = [name for name, calibration in calibrations.items() if calibration.verdict.outcome == "fails"]
    judged = sum(calibration.verdict.outcome in ("holds", "fails") for calibration in calibrations.values())
    conclusion = (
        f"{len(failed)} fail: {', '.join(failed)}. Model, simulate and method do not agree: ∪ draws too narrow, "
        "∩ too wide, a tilt is bias"
        if failed
        else f"no method fails, {len(calibrations) - judged} not judged"
        if judged < len(calibrations)
        else "no method fails"
    )
    n = next(iter(simulations.values())).data.n
    console.print(
        f"{conclusion}. {seconds:.0f} s; {n:,} data in a set; methods that are right have a failure with probability "
        f"{FALSE_ALARMS:g}; seed {methods[0].seed}.",
        highlight=False,
    )
    quantities = max((len(calibration.p) for calibration in calibrations.values()), default=0)
    if judged > len(failed) and quantities:
        replications = len(next(iter(simulations.values())).truth)
        console.print(
            f"What passes unseen half of the time with {replications} data sets: a standard deviation that is off by "
            f"{unseen_width(replications, quantities):.0%}. Four times the replications halve it. Smaller errors "
            "are seen by mhrun check rule= or method=, and by mhrun compare.",
            highlight=False,
        )


def _as_json(
    experiment: str,
    calibrations: Mapping[str, Calibration],
    methods: Sequence[Method],
    simulations: Mapping[int, Simulated],
    seconds: float,
) -> None:
    from mhrun import __version__
    from mhrun.check.verdict import FALSE_ALARMS

    content = {
        "checked": f"experiment={experiment}",
        "version": __version__,
        "seed": methods[0].seed,
        "false_alarms": FALSE_ALARMS,
        "seconds": round(seconds, 1),
        "fails": sum(calibration.verdict.outcome == "fails" for calibration in calibrations.values()),
        "checks": [
            {
                **calibration.verdict._asdict(),
                "ranks": calibration.histograms,
                "p_of_quantities": calibration.p,
            }
            for calibration in calibrations.values()
        ],
    }
    print(json.dumps(content, indent=2))
