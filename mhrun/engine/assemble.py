"""Builds methods from a resolved configuration, and checks their parts and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from mhrun.build import build, check_attributes, no_part
from mhrun.engine import pilot
from mhrun.engine.method import Method
from mhrun.engine.ratios import ratio_precision
from mhrun.engine.starts import Starts, starts_of
from mhrun.errors import Refusal, UserError, nearest
from mhrun.models.parameters import parameters_of
from mhrun.monitors import Monitor
from mhrun.numbers import is_number, whole_number
from mhrun.parts import Kernel, Rule
from mhrun.schedules import Plan, Schedule
from mhrun.store.identity import CONSTANTS, COUNTS, PARTS, parts_of
from mhrun.store.netcdf import Shape
from mhrun.store.targets import Targets
from mhrun.target import Target

_DTYPES = {"float64": torch.float64, "float32": torch.float32}


def methods_of(config: Mapping[str, Any]) -> list[Method]:
    """Return the methods of a resolved configuration, checked.

    Raises:
        UserError: unknown or incompatible parts, or invalid settings.
    """
    if not isinstance(config["dtype"], str) or config["dtype"] not in _DTYPES:
        raise Refusal(f"dtype = {config['dtype']!r} is unknown; choose float64 or float32.")
    report = config.get("report") or {}
    if not config["methods"] and not config["data"] and (report.get("tables") or report.get("figures")):
        return []  # a report without methods, of computations only
    if not config["methods"]:
        raise Refusal("there is no method to run; add one, such as +method@methods.mint=mint.")
    targets = Targets(config)
    methods = []
    for name, node in config["methods"].items():
        where = f"methods.{name}"
        target = _target(name, node, config, targets)
        _check_named(node, where)
        # Counts of a method override those of the experiment.
        counts = {key: config[key] if node.get(key) is None else node[key] for key in COUNTS}
        try:
            method = assembled(
                name,
                build(node["kernel"], f"{where}.kernel"),
                target,
                build(node["schedules"], f"{where}.schedules"),
                counts | {"seed": config["seed"]},
                dtype=_DTYPES[config["dtype"]],
                starts=starts_of(
                    node.get("starts"), target.dim, f"{where}.starts", parameters_of(target.model)
                ),
                monitor=_monitor(config, node, where),
                precondition=node.get("precondition"),
                where=f"{where}.",
            )
        except Refusal as error:
            raise Refusal(f"{name}: {error}") from error
        except (ArithmeticError, MemoryError) as error:  # from a number that is far too large or too small
            message = str(error) or type(error).__name__
            raise UserError(f"{name} cannot be computed with these settings: {message}") from error
        methods.append(method)
    return methods


def _check_named(node: Mapping[str, Any], where: str) -> None:
    """Refuse a method whose kernel or a schedule names no part.

    Raises:
        UserError: there is one.
    """

    def is_named(part_node: Any) -> bool:
        return isinstance(part_node, Mapping) and "_target_" in part_node

    if not is_named(node["kernel"]):
        raise UserError(no_part(f"{where}.kernel", ""))
    for quantity, schedule in node["schedules"].items():
        if not is_named(schedule):
            raise UserError(_no_schedule(f"{where}.schedules.{quantity}", quantity, schedule))


def _no_schedule(setting: str, quantity: str, value: Any) -> str:
    """Return how to give a quantity of a method a schedule, of which one may be there to be replaced or not."""
    if quantity not in CONSTANTS and is_number(value):
        names = ", ".join(CONSTANTS)
        return f"{setting} = {value!r}: a number is a schedule of {names} only.{nearest(quantity, CONSTANTS)}"
    return (
        f"{setting} = {value!r} is no schedule; give a number, or choose one of conf/schedule with "
        f"schedule@{setting}=NAME (+schedule@{setting}=NAME where the method has none)."
    )


def assembled(
    name: str,
    kernel: Any,
    target: Target,
    schedules: Mapping[str, Any],
    counts: Mapping[str, Any],
    *,
    dtype: torch.dtype,
    starts: Starts | None,
    monitor: Any,
    precondition: str | None = None,
    where: str = "",
) -> Method:
    """Return a checked method from its parts; used by `mhrun.sample` and the command line.

    Args:
        name: of the method.
        kernel: how the chains move.
        target: the target density.
        schedules: by name.
        counts: `COUNTS` and the seed, as given.
        dtype: of the state.
        starts: starting points; None for those of the model.
        monitor: observes the chains during the run, or None.
        precondition: the scale that a pilot finds, see `Method`.
        where: prefix of the names of settings, for messages.

    Raises:
        Refusal: invalid counts, or incompatible parts.
        UserError: a part is not of its kind.
    """
    chains, warmup, steps, seed, thin = _checked_counts(counts)
    check_kind("kernel", kernel, Kernel, f"{where}kernel")
    for quantity, schedule in schedules.items():
        check_kind("schedule", schedule, Schedule, f"{where}schedules.{quantity}")
    plan = Plan(schedules, chains, warmup, steps)
    names = () if thin is None else target.model.names
    thin_stats = None if counts["thin_stats"] is None else whole_number("thin_stats", counts["thin_stats"])
    shape = Shape(chains, names, warmup, steps, plan.kept(thin), thin_stats, parameters_of(target.model))
    if monitor is not None:
        check_kind("monitor", monitor, Monitor, f"{where}monitor")
        monitor = monitor.bind(plan.collected, warmup, warmup + steps, rungs=kernel.rungs)
    target = target.with_ratio_in(ratio_precision(kernel, target, plan)).with_passes_of(
        kernel.of_a_chain.pass_size
    )
    method = Method(name, kernel, target, plan, shape, seed, dtype, starts, monitor, precondition)
    method.check()
    if (refusal := pilot.refusal(method)) is not None:
        if isinstance(refusal, pilot.TooManyParameters):  # the declared number may not match the data
            method.check_data()
        raise refusal
    return method


class _Counts(NamedTuple):
    """How many chains and steps, and which of the steps are kept."""

    chains: int
    warmup: int
    steps: int
    seed: int
    thin: int | tuple[int, ...] | None  # every so many draws, the steps of some, or None to keep none


def _checked_counts(settings: Mapping[str, Any]) -> _Counts:
    """Return the counts that settings give.

    Raises:
        Refusal: one is no whole number, or out of its range.
    """
    chains, warmup, steps, seed = (
        whole_number(key, settings[key]) for key in ("chains", "warmup", "steps", "seed")
    )
    if not all(abs(count) < 2**31 for count in (chains, warmup, steps)):
        raise Refusal("chains, warmup and steps must be below 2^31.")
    for key, count, least in (("chains", chains, 1), ("steps", steps, 1), ("warmup", warmup, 0)):
        if count < least:
            raise Refusal(f"{key} = {count} must be at least {least}.")
    if seed.bit_length() > 63:
        raise Refusal(f"seed = {seed} must be a whole number of at most 63 bits.")
    return _Counts(chains, warmup, steps, seed, _thin(settings["thin"]))


def _thin(value: Any) -> int | tuple[int, ...] | None:
    """Return the setting `thin`: every so many draws, the steps of some, or None to keep none."""
    if value is None:
        return None
    return (
        tuple(whole_number("thin", step) for step in value)
        if isinstance(value, list)
        else whole_number("thin", value)
    )


def check_data(methods: Sequence[Method]) -> None:
    """Load the data of all methods and check that their models can evaluate them, before anything is computed.

    Raises:
        UserError: data cannot be loaded or used by a model, or chains start at a density that is not finite.
    """
    for method in methods:
        try:
            method.check_data()
        except Refusal as error:
            raise Refusal(f"{method.name}: {error}") from error


def _target(name: str, node: Mapping[str, Any], config: Mapping[str, Any], targets: Targets) -> Target:
    """Return the target of a method, see `parts_of`."""
    for part, part_node in parts_of(config, name).items():
        if not isinstance(part_node, Mapping) or (part != "target" and "_target_" not in part_node):
            raise UserError(
                f"methods.{name} has no {part}, nor has the experiment; choose one: "
                f"+{part}@methods.{name}.{part}=NAME."
                if not part_node
                else f"methods.{name}.{part} = {part_node!r} must be a group of settings, with a _target_."
            )
    try:
        return targets.of(name)
    except Refusal as error:
        raise Refusal(f"{name}: {error}" if any(map(node.get, PARTS)) else str(error)) from error


def _monitor(config: Mapping[str, Any], node: Mapping[str, Any], where: str) -> Any:
    """Return the experiment's monitor with the method's own settings; None if there is none."""
    parts = [config.get("monitor") or {}, node.get("monitor") or {}]
    if not any(parts):
        return None
    if not all(isinstance(part, Mapping) for part in parts) or not any("_target_" in part for part in parts):
        raise UserError(
            f"{where}.monitor names no monitor; add one with +monitor=predictive, or give it a _target_."
        )
    return build({**parts[0], **parts[1]}, f"{where}.monitor")


_IN_PYTHON = {"kernel": "wrap a dynamics, as in mhrun.Unadjusted(mhrun.SGLD(), m=100)"}


def check_kind(kind: str, part: Any, base: type, where: str) -> None:
    """Refuse a part that is not of its kind, or that hides a method of its base class."""
    check_attributes(part, f"{where}: ")
    if not isinstance(part, base):
        folder = "method" if kind == "kernel" else kind
        choices = [f"choose one of conf/{folder}"] if where.startswith("methods.") else []
        if kind == "kernel" and isinstance(part, Rule):
            wrapped = f"give mhrun.MetropolisHastings(proposal, pairing, {type(part).__name__}(...))"
        else:
            wrapped = _IN_PYTHON.get(kind, "")
        advice = " or ".join(filter(None, [*choices, wrapped]))
        raise UserError(f"{where}: {type(part).__name__} is not a {kind}{advice and f'; {advice}'}.")
