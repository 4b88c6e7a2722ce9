"""``mhrun list NAME``: one experiment with its methods, settings, claims and runs."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mhrun import yaml_file
from mhrun.cli.crash import printable
from mhrun.cli.listing.outline import outline, paper, seconds_at_paper_scale
from mhrun.cli.listing.run_status import columns, status_of
from mhrun.durations import describe_duration
from mhrun.errors import UserError, cut
from mhrun.paths import CONF, claims_path
from mhrun.report.claims.recorded import RecordedResult, recorded_results
from mhrun.report.claims.verdicts import JUDGED, NOT_AT_SCALE, NOT_JUDGED, count
from mhrun.store.folder import RunFolder
from mhrun.store.identity import COUNTS, distinguishing
from mhrun.store.projects import shown

_BEYOND = "beyond the papers"  # `reproduces` of an experiment that reproduces no paper
_LINE = 110  # width of a line, unless the terminal is narrower
# Groups of claims, and what lines of a group are marked with.
_KINDS = {"experiments": "", "sweeps": " (sweep)"}


def show_experiment(
    name: str, path: Path | None, found: Sequence[RunFolder], folders: Sequence[Path]
) -> None:
    """Print an experiment; `path` is None if only its runs exist.

    Raises:
        UserError: its file cannot be read.
    """
    width = min(columns(), _LINE)
    command = _command(name, path, folders)
    print(name)
    if path is not None:
        head = outline(path)
        publication = paper(head.paper)
        for line in (
            head.title,
            head.reproduces
            and f"{'' if head.reproduces.startswith(_BEYOND) else 'reproduces '}{head.reproduces}",
            publication and f"paper: {publication.title}",
        ):
            if line:
                print(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    "))
        print(
            f"\n  run it: {command} [scale={'|'.join(head.scales)}]"
            if head.scales
            else f"\n  run it: {command}"
        )
        if (seconds := seconds_at_paper_scale().get(name)) is not None:
            print(
                f"  at scale=paper its methods take about {describe_duration(seconds)} on two cores of an AMD EPYC"
            )
        config = _composed(name, folders)
        if isinstance(config, str):
            print(f"  {config}")
        else:
            print_section("methods", _methods(config), width)
            print_section(f"settings (at scale={config['scale']})", _settings(config, head.settings), width)
        own_verdicts = _own_verdicts(found)
        results = recorded_results(head.paper) if path.parent.parent == CONF else {}
        recorded = {kind: results.get((kind, name)) for kind in _KINDS}
        lines = [*_recorded(recorded, own_verdicts), *_claims(name, head.paper, recorded, own_verdicts)]
        print_section("claims", lines, width, cuts=False)
    lines = [
        line
        for folder, settings in zip(found, _differing(found), strict=True)
        for line in _run(folder, settings)
    ]
    print_section("runs", lines or [f"not run yet: {command}"], 0)
    print()


def _command(name: str, path: Path | None, folders: Sequence[Path]) -> str:
    """Return the command that runs an experiment, with the project that it belongs to."""
    for folder in folders:
        if path is not None and path.is_relative_to(folder):
            project = folder.parent if folder.name == "conf" else folder
            is_near = project.resolve().is_relative_to(Path.cwd())
            return f"mhrun --project {os.path.relpath(project) if is_near else project} {name}"
    return f"mhrun {name}"


def print_section(title: str, lines: Sequence[str], width: int, *, cuts: bool = True) -> None:
    """Print lines below a title, cut to `width` where it is not 0, or folded there."""
    if lines:
        print(f"\n  {title}")
        for line in lines:
            if cuts or not width:
                print(f"    {cut(line, width - 4) if width else line}")
            else:
                print(textwrap.fill(line, width, initial_indent="    ", subsequent_indent="      "))


def _composed(name: str, folders: Sequence[Path]) -> dict[str, Any] | str:
    """Return the resolved configuration, or the reason for its failure."""
    from mhrun.cli.configuration.compose import compose_config

    try:
        return compose_config([f"experiment={name}"], folders, compare=False)
    except UserError as error:  # such as a missing setting
        return str(error)


def _methods(config: Mapping[str, Any]) -> list[str]:
    names = [str(name) for name in config["methods"]]
    width = max(map(len, names), default=0)
    lines = []
    for name in names:
        node = config["methods"][name]
        counts = [f"{key}={_written(node[key])}" for key in COUNTS if node.get(key) is not None]
        lines.append(f"{name:{width}}  {', '.join([*_parts(node['kernel']), *counts])}")
    return lines


def _parts(node: Any) -> Iterator[str]:
    """Yield the classes of a kernel's parts, its own first."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield str(node["_target_"]).rpartition(".")[2]
        for value in node.values():
            yield from _parts(value)


def _settings(config: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    lines = []
    for key, comment in comments.items():
        value = config.get(key)
        if isinstance(value, Mapping):
            continue
        text = cut(_written(value), 40)
        lines.append(f"{key}={text}" + (f"  # {comment}" if comment else ""))
    return lines


def _written(value: Any) -> str:
    """Return a value as written on the command line."""
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return f"{value:g}" if isinstance(value, float) else yaml_file.scalar_text(value)


def _own_verdicts(run_folders: Sequence[RunFolder]) -> dict[str, tuple[str, Any]]:
    """Return the verdict and the number of the newest run that judged a claim, by claim."""
    return {
        str(claim.get("id")): (claim["verdict"], claim.get("ours"))
        for folder in run_folders
        for claim in (folder.summary() or {}).get("claims", [])
        if claim.get("verdict") in JUDGED
    }


def _recorded(
    recorded: Mapping[str, RecordedResult | None], own_verdicts: Mapping[str, tuple[str, Any]]
) -> Iterator[str]:
    """Yield lines that say what the recorded verdicts and those of the user's runs are; none without recorded ones."""
    counted = False
    for kind, suffix in _KINDS.items():
        result = recorded[kind]
        if result is not None and result.counts[1]:
            counted = True
            verdicts = "{} of {} reproduced".format(*result.counts)
            run = f"the project's run {result.run} at scale=paper, {result.finished}"
            yield f"recorded{suffix}: {verdicts} ({run}, in docs/results)"
    if counted and own_verdicts:
        reproduced, total = count((verdict for verdict, _ in own_verdicts.values()), among=JUDGED)
        yield f"yours: {reproduced} of {total} reproduced"
    elif counted:
        yield f"yours: {NOT_AT_SCALE}"


def _claims(
    name: str,
    key: str,
    recorded: Mapping[str, RecordedResult | None],
    own_verdicts: Mapping[str, tuple[str, Any]],
) -> list[str]:
    """Return a line for each claim, with the recorded verdict and that of the user's newest run that gave one."""
    if (path := claims_path(key)) is None:
        return []
    from mhrun.report.claims.judge import claims_of, read_claims, without_run

    declared = read_claims(path)
    lines = []
    for kind, suffix in _KINDS.items():
        result = recorded[kind]
        for claim in claims_of((declared.get(kind) or {}).get(name) or {}):
            name_of_claim, none = str(claim["id"]), (without_run(claim), None)
            verdict, ours = own_verdicts.get(name_of_claim, none)
            numbers = [f"paper {claim['paper']}", _number("ours" if result is None else "yours", ours)]
            if result is not None and verdict != NOT_JUDGED:
                of_project, its_number = result.claims.get(name_of_claim, none)
                numbers.insert(1, _number("recorded", its_number))
                verdict = f"{of_project} (recorded)" + f", {verdict} (yours)" * bool(own_verdicts)
            shown = ", ".join(filter(None, numbers))
            lines.append(f"{verdict}: {claim['artefact']}{suffix}: {claim['quantity']} ({shown})")
    return lines


def _number(label: str, value: Any) -> str:
    return f"{label} {value:.4g}" if isinstance(value, int | float) else ""


def _differing(found: Sequence[RunFolder]) -> list[str]:
    """Return for each run the settings in which it differs from the others, as written on the command line.

    Projects may have experiments of one name, and the project comes first where runs are of several.
    """
    configs = list[Mapping[str, Any]]()
    for folder in found:
        try:
            configs.append(folder.config())
        except (UserError, OSError):  # damaged, or deleted meanwhile
            configs.append({})
    readable = [index for index, config in enumerate(configs) if config]
    projects = [shown(_projects_of(folder)) for folder in found]
    lines = [f"project {project or '(none)'}" if len(set(projects)) > 1 else "" for project in projects]
    for index, settings in zip(readable, distinguishing([configs[index] for index in readable]), strict=True):
        texts = [f"{path}={cut(_written(value), 40)}" for path, value in settings.items()]
        lines[index] = " ".join(filter(None, [lines[index], *texts]))
    return lines


def _projects_of(folder: RunFolder) -> list[Path]:
    """Return the projects of a run; none if its summary cannot be read."""
    try:
        return folder.projects()
    except UserError:
        return []


def _run(folder: RunFolder, settings: str) -> Iterator[str]:
    """Yield the line of a run, the settings in which it differs from the others, and why it failed."""
    run = status_of(folder)
    took = f", {describe_duration(run.seconds)} of steps" if run.seconds is not None else ""
    verdicts = f", {run.verdicts}" if run.verdicts else ""
    page = folder.report / "index.html"
    where = _short(page) if page.exists() else f"{_short(folder.path)} (without a report)"
    yield f"{folder.digest}  {run.scale:6}{run.status:12}{run.when}{took}{verdicts}  {where}"
    if settings:
        yield f"  {cut(settings, _LINE)}"
    if run.status == "failed":
        yield f"  {printable(run.error) or f'see {_short(folder.log)}'}"


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
