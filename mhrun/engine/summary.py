"""The summary of a run, summary.json in its folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mhrun.engine.diagnosis.batch_sizes import batch_sizes
from mhrun.engine.diagnosis.faults import fault_of
from mhrun.engine.log import log
from mhrun.engine.machine import machine, versions
from mhrun.engine.method import Method, prior_attribute
from mhrun.engine.warnings.noise import log_ratio_noise, log_ratio_skew
from mhrun.engine.warnings.run import acceptance_range, explained_acceptance, valid_share, warnings_of
from mhrun.kernels.stationary import samples
from mhrun.models.parameters import constant_coordinates
from mhrun.paths import user_folders
from mhrun.store.folder import RunFolder
from mhrun.store.identity import FORMAT, RESULTS_VERSION
from mhrun.store.netcdf import COLLECTED
from mhrun.target.function_space import is_network


def first_summary(config: Mapping[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Return the summary of a run whose methods are still to come, with what an earlier part of it has recorded."""
    recorded = folder.summary() or {}
    summary: dict[str, Any] = {
        "experiment": config["experiment"],
        "scale": config["scale"],
        "seed": config["seed"],
        "digest": folder.digest,
        "status": "running",
        "format": FORMAT,
        "results_version": RESULTS_VERSION,
        "started": recorded.get("started") or time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "machine": machine(str(config["device"])),
        "projects": [str(folder) for folder in user_folders()],
        "methods": {},
        "metrics": {},
        "claims": [],
    }
    # Report code that changed between two parts of a run.
    sources = [*recorded.get("sources", []), summary["versions"]["source"]]
    summary["sources"] = list(dict.fromkeys(sources))
    if len(summary["sources"]) > 1:
        log.warning("this run was begun with another state of the code: %s", ", ".join(summary["sources"]))
    return summary


def summary_of_method(method: Method, node: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a run's summary on a finished method.

    Args:
        method: the method, after its pilot.
        node: its configuration.
        summary: what `run_method` returned.
    """
    shape, pilot = method.shape, method.pilot
    # NaN is null in the summary.
    totals = {name: np.asarray(values, dtype=float) for name, values in summary["totals"].items()}
    decisions = shape.chains * shape.steps
    accept_rate = float(totals["sum_accepted"].sum()) / decisions
    sizes = batch_sizes(summary, method.target.n, decisions)
    skew, skew_95 = log_ratio_skew(summary)
    return {
        "label": node.get("label", method.name),
        "samples": samples(method.kernel, method.plan)._asdict(),
        **prior_attribute(method.target.model),
        "accept_rate": accept_rate,
        "all_data_share": sizes.on_all / decisions,
        "n_accept_tests": decisions if method.kernel.decides else 0,
        "accept_range": acceptance_range(method),  # in which it is efficient
        "explained_acceptance": explained_acceptance(method, summary),
        "tuned_to": method.plan.tuned_to,
        "accept_rate_by_chain": (totals["sum_accepted"] / shape.steps).tolist(),
        "step_size_by_chain": summary["step_size"],  # at the last step
        "minibatch_size_mean": sizes.overall_mean,
        "minibatch_size_sd": sizes.overall_sd,
        "log_ratio_noise_sd": log_ratio_noise(summary),
        "log_ratio_skew": skew,
        "log_ratio_skew_95": skew_95,
        "likelihood_evals": int(totals["n_lik"].sum()) + (pilot or {}).get("n_lik", 0),
        "overhead_evals": int(totals["n_lik_overhead"].sum()),
        "gradient_evals": int(totals["n_grad"].sum()) + (pilot or {}).get("n_grad", 0),
        "separate_gradients": method.kernel.separate_gradients(),
        "network": is_network(method.target.model),
        "rungs": method.kernel.rungs,
        "exchange_every": method.kernel.exchange_every,
        "constant": constant_coordinates(method.target.model),
        "after_burn_in": _after_burn_in(summary, totals),
        "reference_n_grad": summary.get("reference_n_grad", 0),  # of the mode and its derivatives
        "diverging": int(totals["sum_diverging"].sum()),
        "valid_share": valid_share(method, summary),
        "steps": shape.steps,
        "warmup": shape.warmup,
        "chains": shape.chains,
        "thin": _describe_thin(method),
        "thin_stats": shape.stats_thin,
        "wall_s": summary["wall_s"],
        "executor": summary["executor"],
        "torch_threads": summary.get("torch_threads"),
        "arithmetic": method.arithmetic,
        "fault": fault_of(summary),
        "warnings": warnings_of(method, summary),
    } | ({} if pilot is None else {"pilot": dict(pilot)})


def _after_burn_in(summary: Mapping[str, Any], totals: Mapping[str, Any]) -> dict[str, float]:
    """Return evaluations and seconds after burn-in."""
    counts = {name: float((totals[name] - totals[f"warmup_{name}"]).sum()) for name in ("n_lik", "n_grad")}
    return counts | {"wall_s": summary["wall_s"] - summary["warmup_wall_s"]}


def _describe_thin(method: Method) -> int | list[int] | str | None:
    """Return which draws are kept, for the summary; None if none are."""
    thin = method.shape.thin
    if not isinstance(thin, tuple):
        return thin
    return list(thin) if method.plan.collected is None else COLLECTED  # which may be many
