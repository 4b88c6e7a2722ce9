"""Arguments of the command line as Hydra's overrides."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException

from mhrun.cli.configuration.hydra_settings import check_hydra_overrides
from mhrun.errors import UserError, cut
from mhrun.names import checked_name


def sweep_jobs(arguments: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Return the overrides of each job of a sweep, as Hydra's own sweeper will make them, and the keys swept.

    Raises:
        UserError: arguments that cannot be read as overrides, or several values and one for the same setting, or one of
            several twice: jobs would be the same.
    """
    jobs: list[list[str]] = [[]]
    swept = []
    overrides = parsed(arguments)
    for override in overrides:
        if override.is_sweep_override():
            key = override.get_key_element()
            if key in swept:
                raise UserError(f"{key} is given several values twice; give all of them in one: {key}=A,B,C.")
            try:
                choices = [f"{key}={value}" for value in override.sweep_string_iterator()]
            except HydraException as error:
                raise UserError(
                    f"{override.input_line} has no list of values to sweep over; give them, such as {key}=A,B,C or "
                    f"{key}=range(1,6)."
                ) from error
            if twice := next((choice for choice, count in Counter(choices).items() if count > 1), None):
                raise UserError(f"{override.input_line} has {twice} twice, which are one run; leave one out.")
            swept.append(key)
        else:
            choices = [override.input_line or ""]
        jobs = [[*job, value] for job in jobs for value in choices]
    for key, inputs in _by_key(overrides).items():
        if len(inputs) > 1 and key in {name.lstrip("+") for name in swept}:
            raise UserError(f"{key} is given twice, as {' and '.join(inputs)}; leave one out.")
    return jobs, swept


def swept_only(job: Sequence[str], swept: Sequence[str]) -> list[str]:
    """Return those of a job's overrides that the sweep varies."""
    return [override for override in job if override.partition("=")[0] in swept]


def given_twice(arguments: Sequence[str]) -> list[str]:
    """Return a line on each setting that is given different values, of which the last counts; `sweep_jobs` has others.

    Raises:
        UserError: arguments that cannot be read as overrides.
    """
    single = [override for override in parsed(arguments) if not override.is_sweep_override()]
    return [
        f"{inputs[-1]} overrides {' and '.join(dict.fromkeys(i for i in inputs if i != inputs[-1]))}."
        for inputs in _by_key(single).values()
        if len(set(inputs)) > 1
    ]


def _by_key(overrides: Sequence[Any]) -> dict[str, list[str]]:
    """Return the overrides that give a setting a value, as they were written, by what they set.

    Without those that a later one deletes, and without groups of settings, which are merged.
    """
    found: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element().lstrip("+~")
        if override.is_delete():
            found.pop(key, None)
        elif not isinstance(override._value, dict):
            found.setdefault(key, []).append(override.input_line or "")
    return found


_LONGEST = 20_000  # characters
_DEEPEST = 20  # brackets in one another, and parts of a key
_VARIABLE = re.compile(r"\$\{(?:oc\.decode:\$\{)?oc\.env:(\w+)\}+")  # of the environment, alone


def parsed(arguments: Sequence[str]) -> list[Any]:
    """Return arguments as Hydra's overrides.

    Raises:
        UserError: one of them cannot be read as such, is too long or too deep, or is a refused setting of Hydra.
    """
    for argument in arguments:
        _check_argument(argument)
    try:
        overrides = list(OverridesParser.create().parse_overrides(list(arguments)))
    except (HydraException, ValueError, ArithmeticError) as error:
        bad = next((w for w in arguments if "=" not in w and not w.startswith("~")), None)
        bad = bad or next((w for w in arguments if not _reads(w)), " ".join(arguments))
        raise UserError(f"'{bad}' cannot be read as an override: {_hint(bad)} (mhrun --help).") from error
    check_hydra_overrides(overrides)
    for override in overrides:
        if override.key_or_group == "experiment" and isinstance(override._value, str | QuotedString):
            checked_name(override.value(), "the experiment")
    return overrides


def _hint(argument: str) -> str:
    """Return how to write an argument that cannot be read; in double quotes a shell would replace a ``$``."""
    key, _, value = argument.partition("=")
    if variable := _VARIABLE.fullmatch(value):
        return f"write {key}=${variable[1]}, which the shell fills in"
    inner, outer = ('"', "'") if "$" in value else ("'", '"')
    values = _values_of_sweep(value)
    if any(_reads(f"{key}={each}") for each in values):
        values = [value]  # a text with commas
    quoted = f"{key}={','.join(f'{inner}{each}{inner}' for each in values)}"
    if not value or not _reads(quoted):
        return "write KEY=VALUE"
    return f"put {'each' if len(values) > 1 else 'the'} value in quotes: {outer}{quoted}{outer}"


def _values_of_sweep(value: str) -> list[str]:
    """Return the values between the commas of a sweep, which are in no brackets; one if spaces are beside a comma."""
    values, depth = [""], 0
    for character in value:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and not depth:
            values.append("")
        else:
            values[-1] += character
    return values if all(each and each == each.strip() for each in values) else [value]


def _check_argument(argument: str) -> None:
    """Refuse an argument that would take minutes to read, or more levels than Python can go down."""
    excerpt = cut(argument, 60)
    if any("\ud800" <= character <= "\udfff" for character in argument):
        raise UserError(f"{excerpt!r} is not UTF-8.")
    if len(argument) > _LONGEST:
        raise UserError(
            f"'{excerpt}' has {len(argument):,} characters, more than {_LONGEST:,}; put it into a file."
        )
    depth = deepest = 0
    for character in argument:
        depth += (character in "[{(") - (character in "]})")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST or argument.partition("=")[0].count(".") > _DEEPEST:
        raise UserError(f"'{excerpt}' has more than {_DEEPEST} levels.")


def _reads(argument: str) -> bool:
    try:
        return bool(OverridesParser.create().parse_overrides([argument]))
    except (HydraException, ValueError, ArithmeticError):
        return False
