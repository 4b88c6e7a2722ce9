"""Collect what the paper-scale runs in outputs/ found: claims, metrics and figures, for the documentation.

    python docs/_made/collect.py [outputs]

Writes docs/results/PAPER.json (claims), docs/results/metrics/EXPERIMENT.json (metrics and counts), the figures and
thumbnails of docs/images that gallery.yaml names, and then rewrites the numbers that pages quote (refresh.py).

Runs are in no repository, so their verdicts are written down here, with the run that each is of. Of several complete
runs with a paper's settings the one that finished last counts, whatever it found; claims are judged anew by the rules
as they stand. What has no such run is left, so that a machine with few runs forgets nothing: claims whose rules have
changed are judged anew by the metrics that were written down. Results of another results version
(`mhrun.store.identity.RESULTS_VERSION`) are removed, as their random numbers or distributions are no longer those of
the code.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gallery
import refresh
import yaml

from mhrun.cli.configuration.compose import compose_config
from mhrun.paths import EXPERIMENTS, ROOT
from mhrun.report.claims.judge import Judged, judge_all
from mhrun.report.claims.verdicts import FAILED, JUDGED, NOT_JUDGED, PASSED
from mhrun.report.metrics import from_json
from mhrun.store.checksums import read_sealed
from mhrun.store.folder import RunFolder, runs, sweeps
from mhrun.store.identity import RESULTS_VERSION, departures
from mhrun.store.sweep import jobs_of_sweep

RESULTS = ROOT / "docs" / "results"
# Of a claim: what changes with a run. The rest is in claims.yaml.
_KEPT = ("id", "ours", "se", "rule", "holds", "verdict", "why")
_COUNTS = (
    *("label", "chains", "steps", "warmup", "accept_rate", "minibatch_size_mean", "all_data_share"),
    "log_ratio_noise_sd",
    *("likelihood_evals", "overhead_evals", "gradient_evals", "wall_s"),
)
_DURATIONS = """\
# Seconds that the methods of an experiment took at scale=paper, the report not counted, on two cores of an AMD EPYC
# or of a busy Intel Xeon.
# `make docs-results` writes this file; `mhrun list` shows it."""
_JUDGED = (*JUDGED, PASSED, FAILED)


def main(outputs: Path) -> None:
    """Write down what the runs in a folder say, one file for each paper."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    found = {"experiments": _of_runs(outputs), "sweeps": _of_sweeps(outputs)}
    for book in sorted(EXPERIMENTS.glob("*/claims.yaml")):
        paper, path = book.parent.name, RESULTS / f"{book.parent.name}.json"
        old: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        new = {
            kind: dict(
                sorted(
                    (
                        _current(old.get(kind, {})) | {e: r for (p, e), r in there.items() if p == paper}
                    ).items()
                )
            )
            for kind, there in found.items()
        }
        new["experiments"] = {
            name: _judged_again(paper, name, run) for name, run in new["experiments"].items()
        }
        path.write_text(
            json.dumps(new, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )
        print(f"{path.relative_to(ROOT)}: {', '.join([*new['experiments'], *new['sweeps']]) or 'no run yet'}")
    last = {
        folder.experiment: folder for folder in sorted(runs(outputs), key=_finished) if _is_at_scale(folder)
    }
    for experiment, folder in last.items():
        path = RESULTS / "metrics" / f"{experiment}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            json.dumps(_measured(folder), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
            encoding="utf-8",
        )
    for path in sorted((RESULTS / "metrics").glob("*.json")):
        if json.loads(path.read_text(encoding="utf-8")).get("results_version") != RESULTS_VERSION:
            path.unlink()
    write_durations(list(last))
    gallery.take({experiment: folder.path / "report" for experiment, folder in last.items()})


def _judged_again(paper: str, experiment: str, run: dict[str, Any]) -> dict[str, Any]:
    """Return what a run found, with those claims judged by its written metrics whose rule is not what it was."""
    path = RESULTS / "metrics" / f"{experiment}.json"
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not recorded or recorded["run"] != run["run"]:
        return run
    config = {"experiment": experiment, "report": {"paper": paper}, "runtime": {"departures": []}}
    before = {claim["id"]: claim for claim in run["claims"]}
    claims = []
    for claim in _as_dicts(judge_all(config, from_json(recorded["metrics"]))):
        old = before.get(claim["id"])
        claims.append(claim if old is None or _is_judged_otherwise(old, claim) else old)
    return run | {"claims": claims}


def _is_judged_otherwise(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a claim has another rule or metric, or is judged where it was not, or the other way round.

    If only the verdict differs, that is by rounding: six figures may be beyond a limit that the metric itself is not.
    """
    both = {old["verdict"], new["verdict"]}
    is_same_kind = len(both) == 1 or both == set(JUDGED) or both == {PASSED, FAILED}
    is_same_number = all(_short(old[key]) == new[key] for key in ("ours", "se"))
    return not (is_same_kind and is_same_number and old["rule"] == new["rule"] and old["why"] == new["why"])


def write_durations(collected: Sequence[str]) -> None:
    """Write the seconds that methods took into conf/durations.yaml, which `mhrun list` shows.

    Those of other experiments than the collected ones stay: they may be of a quieter machine.
    """
    path = ROOT / "conf" / "durations.yaml"
    seconds = {name: float(value) for name, value in yaml.safe_load(path.read_text(encoding="utf-8")).items()}
    for name in collected:
        methods = json.loads((RESULTS / "metrics" / f"{name}.json").read_text(encoding="utf-8"))["methods"]
        total = sum(method.get("wall_s") or 0.0 for method in methods.values())
        if total and (ROOT / "conf" / "experiment" / f"{name}.yaml").exists():  # not of a report alone
            seconds[name] = total
    # Without an exponent, which YAML reads as text where there is no decimal point.
    lines = [f"{name}: {float(f'{value:.3g}'):g}" for name, value in sorted(seconds.items())]
    path.write_text("\n".join([_DURATIONS, *lines]) + "\n", encoding="utf-8")


def _of_runs(outputs: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for folder in sorted(runs(outputs), key=_finished):
        config = folder.config() if _is_current(folder) else {}
        paper = (config.get("report") or {}).get("paper")
        if paper and (config.get("runtime") or {}).get("departures") == []:
            summary = folder.summary() or {}
            judged = judge_all(config, from_json(summary.get("metrics") or {}))
            if judged:
                found[str(paper), folder.experiment] = _run(folder, summary) | {"claims": _as_dicts(judged)}
    return found


def _of_sweeps(outputs: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what sweeps found that have the paper's values, as their reports judged it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for place in sweeps(outputs):
        summary = read_sealed(place / "summary.json") or {}
        jobs = [job for job in jobs_of_sweep(place) if job.is_done]
        judged = [Judged(**claim) for claim in summary.get("claims", [])]
        if not jobs or not any(map(_is_found, judged)):
            continue
        folders = [job.folder for job in jobs]
        if not all(_is_current(folder) and folder.config().get("scale") == "paper" for folder in folders):
            continue
        last = max(folders, key=_finished)
        paper = (last.config().get("report") or {}).get("paper")
        entry = _run(last, last.summary() or {}) | {"run": place.name, "claims": _as_dicts(judged)}
        key = str(paper), place.parent.parent.name
        if key not in found or found[key]["finished"] <= entry["finished"]:
            found[key] = entry
    return found


def _is_found(claim: Judged) -> bool:
    """Return whether a claim was judged, or has a number though it is not judged."""
    return claim.verdict in _JUDGED or (claim.verdict == NOT_JUDGED and claim.ours is not None)


def _is_at_scale(folder: RunFolder) -> bool:
    """Return whether a run is current, and has the settings of its experiment at the paper's scale."""
    if not _is_current(folder) or (config := folder.config()).get("scale") != "paper":
        return False
    recorded = (config.get("runtime") or {}).get("departures")
    # Without a paper no results are recorded.
    if recorded is None and not (config.get("report") or {}).get("paper"):
        reference = compose_config([f"experiment={folder.experiment}", "scale=paper"], compare=False)
        recorded = departures(config, reference)
    return recorded == []


def _measured(folder: RunFolder) -> dict[str, Any]:
    """Return the metrics of a run's report and what its methods counted, to six figures."""
    summary = folder.summary() or {}
    metrics = {
        name: [_short(value["value"]), _short(value["se"])] if isinstance(value, Mapping) else _short(value)
        for name, value in (summary.get("metrics") or {}).items()
    }
    methods = {
        name: {key: _short(counts[key]) for key in _COUNTS if key in counts}
        for name, counts in (summary.get("methods") or {}).items()
    }
    return _run(folder, summary) | {"metrics": metrics, "methods": methods}


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _current(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return those results that are of this results version."""
    return {name: run for name, run in results.items() if run.get("results_version") == RESULTS_VERSION}


def _is_current(folder: RunFolder) -> bool:
    """Return whether a run is complete, and of this results version."""
    return folder.is_complete() and (folder.summary() or {}).get("results_version") == RESULTS_VERSION


def _run(folder: RunFolder, summary: Mapping[str, Any]) -> dict[str, Any]:
    versions = summary.get("versions") or {}
    return {
        "run": folder.digest,
        "finished": _finished(folder)[:10],
        "version": f"{versions.get('mhrun')} ({versions.get('source')})",
        "results_version": RESULTS_VERSION,
        "seed": folder.config().get("seed"),
    }


def _finished(folder: RunFolder) -> str:
    return str((folder.summary() or {}).get("finished") or "")


def _as_dicts(judged: list[Judged]) -> list[dict[str, Any]]:
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in claim._asdict().items()
            if key in _KEPT
        }
        for claim in judged
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs"))
    refresh.main(check=False)
