"""Restrictions on Hydra's settings.

The node ``hydra`` of a configuration is code: it names environment variables, classes to call before and after each
job, log files, and folders. A configuration may come from someone else. A file can therefore only choose a launcher and
its counts; the command line can choose a launcher and all of its settings except classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from mhrun.errors import UserError
from mhrun.names import is_name
from mhrun.numbers import is_number

_COUNTS = frozenset(  # of launchers; numbers
    (
        "n_jobs",
        "timeout_min",
        "cpus_per_task",
        "gpus_per_node",
        "gpus_per_task",
        "tasks_per_node",
        "nodes",
        "mem_gb",
        "array_parallelism",
        "max_num_timeout",
        "signal_delay_s",
        "init.num_cpus",
        "init.num_gpus",
        "remote.num_cpus",
        "remote.num_gpus",
        "remote.max_retries",
    )
)
_QUEUES = frozenset(("partition", "account", "qos"))  # of SLURM; names
# Filled in by Hydra after composition, or compared separately.
_FILLED_IN = ("hydra.runtime.", "hydra.job.override_dirname", "hydra.overrides.", "hydra.searchpath")
LAUNCHER = "hydra/launcher"


def is_of_hydra(override: Override) -> bool:
    """Return whether an override changes a setting of Hydra, by its key or by the package after its @."""
    places = [override.key_or_group.replace("/", "."), *(p for p in (override.package,) if p)]
    return any("hydra" in place.removeprefix("_global_.").split(".")[:1] for place in places)


def check_hydra_overrides(overrides: Sequence[Override]) -> list[str]:
    """Return the overrides that are settings of Hydra.

    Raises:
        UserError: a setting other than a launcher or a setting of a launcher.
    """
    lines = []
    for override in overrides:
        if not is_of_hydra(override):
            continue
        key, line = override.key_or_group, override.input_line or ""
        parts = key.split(".")
        launcher = key == LAUNCHER and not override.package and is_name(override.value())
        setting = parts[:2] == ["hydra", "launcher"] and len(parts) > 2 and not override.package
        if "_target_" in line or not (
            launcher or setting or line in ("hydra.verbose=true", "hydra.verbose=false")
        ):
            name = line.partition("=")[0].lstrip("+~")
            raise UserError(
                f"'{name}' is not a setting of mhrun; of Hydra's settings, hydra/launcher=NAME and "
                "hydra.launcher.KEY=VALUE are accepted."
            )
        lines.append(line)
    return lines


def check_node(
    node: Mapping[str, Any], plain: Mapping[str, Any], overrides: Sequence[str], task: Sequence[str]
) -> None:
    """Refuse changes of Hydra's settings by configuration files, except a launcher's counts.

    Args:
        node: the composed node ``hydra``, not resolved.
        plain: the same without the user's files, with the same launcher.
        overrides: the command line's overrides of Hydra's settings.
        task: all other overrides. Hydra passes its recorded overrides to each job of a sweep, so a file may not add
            any.

    Raises:
        UserError: a setting that a file may not change.
    """
    for path, value in _differences(node, plain, "hydra"):
        name = path.removeprefix("hydra.launcher.")
        is_count = value is None or is_number(value)
        if (
            path.startswith(_FILLED_IN)
            or (name in _COUNTS and is_count)
            or (name in _QUEUES and isinstance(value, str) and all(map(is_name, value.split(","))))
        ):
            continue
        raise _refused(path)
    recorded = node.get("overrides")
    if not isinstance(recorded, Mapping) or recorded.get("hydra") != [*overrides]:
        raise _refused("hydra.overrides")
    if recorded.get("task") != [*task] or set(recorded) - {"hydra", "task"}:
        raise _refused("hydra.overrides.task")


def _refused(path: str) -> UserError:
    if path.startswith("hydra.sweeper.params"):
        return UserError(
            f"a configuration file sets {path}: give the values on the command line, as in -m seed=1,2."
        )
    return UserError(
        f"a configuration file sets {path}, which could run or overwrite anything; of Hydra's settings files have "
        "the launcher and its counts, such as hydra.launcher.n_jobs. Remove it, or give it on the command line."
    )


def _differences(settings: Any, plain: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each setting that differs from `plain`; None for a missing one."""
    if isinstance(settings, Mapping) and isinstance(plain, Mapping):
        for key in [*settings, *(key for key in plain if key not in settings)]:
            yield from _differences(settings.get(key), plain.get(key), f"{path}.{key}")
    elif isinstance(settings, Mapping) and settings and plain is None:
        for key, value in settings.items():
            yield from _differences(value, None, f"{path}.{key}")
    elif type(settings) is not type(plain) or settings != plain:
        yield path, settings
