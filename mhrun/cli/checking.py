"""``mhrun check``: correctness checks of a part, a method or a kernel."""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun import yaml_file
from mhrun.cli.calibrating import STYLES, calibrate, is_calibration
from mhrun.cli.composition import composed
from mhrun.cli.hydra_errors import cause, explained
from mhrun.cli.resolution import bounded
from mhrun.cli.resolvers import register_resolvers
from mhrun.errors import Refusal, UserError, reason

if TYPE_CHECKING:
    from rich.table import Table

    from mhrun.check.subject import Subject
    from mhrun.check.verdict import Verdict
    from mhrun.parts import Kernel

_OF_SCHEDULES = (
    "a schedule of your own is checked as each run begins: shapes and signs of its values, and that they do not "
    "depend on how steps are divided into blocks."
)
_OF_AN_EXPERIMENT = ("model", "data", "monitor", "target")  # which a part is checked without
_KINDS = ("rule", "pairing", "proposal", "dynamics", "kernel")


def check(words: Sequence[str], folders: Sequence[Path], *, as_json: bool = False) -> int:
    """Run the checks of a part, print their verdicts, and return 1 if one fails or has no power.

    Raises:
        UserError: invalid arguments, or incompatible parts.
    """
    if not words:
        raise UserError(
            "check needs a part: mhrun check rule=NAME, an experiment of your own, experiment=NAME, or the dotted name "
            "of a class (mhrun check --help)."
        )
    if is_calibration(words):
        return calibrate(words, folders, as_json=as_json)
    for word in words:
        if (part := word.lstrip("+").partition("=")[0]) in _OF_AN_EXPERIMENT:
            raise UserError(
                f"check takes no {part}: parts are checked on targets with known distributions. A model is checked "
                f"with its priors and methods: mhrun check experiment=NAME {word.lstrip('+')}."
            )
    config = _composed(list(words), folders)
    import torch

    from mhrun.check.suite import run_suite
    from mhrun.check.verdict import NOT_PASSED

    torch.set_num_threads(1)  # the targets are small
    subject = _subject(config, " ".join(words))
    names = config.checks  # one check needs no brackets
    checks = (
        None if names is None else [str(name) for name in (names if OmegaConf.is_list(names) else [names])]
    )
    began, verdicts = time.perf_counter(), []
    try:
        for verdict in run_suite(subject, checks):
            verdicts.append(verdict)
            if not as_json and sys.stderr.isatty():
                print(f"\r\x1b[K{verdict.check}: {verdict.outcome}", end="", file=sys.stderr, flush=True)
    except Refusal as error:
        raise UserError(f"{' '.join(words)}: {error}") from error
    finally:
        if not as_json and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr)
    seconds = time.perf_counter() - began
    (_as_json if as_json else _as_table)(verdicts, subject, seconds)
    return 1 if any(verdict.outcome in NOT_PASSED for verdict in verdicts) else 0


def _composed(words: list[str], folders: Sequence[Path]) -> DictConfig:
    """Return the settings of a check; a dotted name becomes a part of its kind."""
    register_resolvers()
    name: str | None = None
    kind, arguments = "", dict[str, Any]()
    if any(word.partition("=")[0].partition("@")[0] == "schedule" for word in words):
        raise UserError(_OF_SCHEDULES)
    if "=" not in words[0]:
        name = words.pop(0)
        kind, arguments = _of_a_name(name, words)
        words = [word for word in words if word.partition("=")[0] not in arguments]
    try:
        config = composed(words, folders, "check")
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, words, folders, "check") from error
    if name is not None:
        OmegaConf.set_struct(config, False)
        config[kind] = {"_target_": name, **arguments}
    return config


def _of_a_name(name: str, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the kind of a class and its arguments: those of the command line, and the minibatch size m."""
    from mhrun import parts
    from mhrun.build import trusted_object
    from mhrun.schedules.plan import Schedule

    if "." not in name:
        raise UserError(
            f"'{name}' is not a dotted name; give FILE.CLASS, such as {name}.MyRule, or rule=NAME."
        )
    try:
        part = trusted_object(name)
    except UserError as error:
        raise UserError(f"{error}{_checkable(name)}") from error
    for kind in _KINDS:
        if isinstance(part, type) and issubclass(part, getattr(parts, kind.title())):
            parameters = inspect.signature(part).parameters
            settings = {key: value for key, _, value in (word.partition("=") for word in words)}
            arguments = {key: _read(key, value) for key, value in settings.items() if key in parameters}
            return kind, ({"m": "${m}"} if "m" in parameters else {}) | arguments
    if isinstance(part, type) and issubclass(part, Schedule):
        raise UserError(f"{name}: {_OF_SCHEDULES}")
    bases = ", ".join(kind.title() for kind in _KINDS)
    raise UserError(
        f"{name} is not a class of a part; a part derives from a base class of mhrun.parts: {bases}."
        f"{_checkable(name)}"
    )


def _checkable(name: str) -> str:
    """Return a sentence with the classes of a name's module that can be checked; empty if it is not imported."""
    from mhrun import parts

    module_name = name.rpartition(".")[0]
    if (module := sys.modules.get(module_name)) is None:
        return ""
    bases = tuple(getattr(parts, kind.title()) for kind in _KINDS)
    classes = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, bases)
        and value.__module__ == module_name
        and not inspect.isabstract(value)
    ]
    return f" {module_name} has {', '.join(sorted(classes))}." if classes else f" {module_name} has no part."


def _read(key: str, text: str) -> Any:
    """Return an argument of a class, parsed as in a configuration.

    Raises:
        UserError: it cannot be read.
    """
    import yaml

    yaml_file.check(text, f"{key}={text}")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{key}={text} cannot be read as a value (KEY=VALUE, as in YAML).") from error


_LOWER_BOUND = "lower_bound"  # how the names of these surrogates begin
_LEAST = {"seed": 0, "chains": 200, "n": 1, "m": 1, "effective": 1}  # fewer chains cannot show a distribution


def _number(config: DictConfig, key: str) -> Any:
    value, is_whole = config[key], key != "effective"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not _LEAST[key] <= value < float("inf") or (is_whole and value != int(value)):
        form = "a whole number" if is_whole else "a number"
        raise UserError(f"{key} = {value!r} must be {form}, at least {_LEAST[key]}.")
    return int(value) if is_whole else float(value)


def _subject(config: DictConfig, name: str) -> Subject:
    from mhrun.check.subject import Subject

    settings = {key: _number(config, key) for key in _LEAST}
    step = config.step_size
    if step is not None and (isinstance(step, bool | str) or not 0 < step < float("inf")):
        raise UserError(f"step_size = {step!r} must be a positive number, or null for a search.")

    def make(n: int, m: int) -> Kernel:
        """Return the kernel for n data and minibatches of m; the exact one for m = n."""
        sized_config = OmegaConf.merge(config, {"n": n, "m": m})
        assert isinstance(sized_config, DictConfig)
        return _kernel(sized_config, exact=m == n)

    kernel = make(settings["n"], settings["m"])  # a mistake is reported before any check runs
    size = None if step is None else float(step)
    # What is named first here decides the others, as in `_kernel`.
    kind = next(
        (
            part
            for part in ("kernel", "method", "dynamics", "rule", "pairing", "proposal")
            if config.get(part)
        ),
        "kernel",
    ).replace("method", "kernel")
    surrogate = _surrogate(config, kernel)
    return Subject(name, make, step_size=size, surrogate=surrogate, kind=kind, **settings)


def _surrogate(config: DictConfig, kernel: Kernel) -> str:
    """Return the surrogate of the checks' targets: none, unless the kernel needs a lower bound.

    Their bounds on terms are of log-likelihoods and not of the remainders of a Taylor polynomial, so that methods with
    such a surrogate are checked without it.

    Raises:
        UserError: the kernel does not run without it.
    """
    from mhrun.check.targets import gaussian_mean
    from mhrun.types import BOUND_KINDS

    gaussian = gaussian_mean(1)
    surrogate = OmegaConf.select(config, "method.target.surrogate", default="none")
    bounds = (
        [str(surrogate)]
        if str(surrogate).startswith(_LOWER_BOUND)
        else [_LOWER_BOUND, f"{_LOWER_BOUND}_untuned"]
    )
    if kernel.refuses(gaussian.target()) is not None:
        for name in bounds:
            if kernel.refuses(gaussian.target(name)) is None:
                return name
        if str(surrogate) in BOUND_KINDS:
            raise UserError(
                f"it needs target.surrogate={surrogate}, and the checks have no targets with bounds on the remainders "
                "of an expansion; compare its draws with those of hmc or mcmc on a small target (mhrun compare)."
            )
    return "none"


def _kernel(config: DictConfig, *, exact: bool) -> Kernel:
    from mhrun.build import build
    from mhrun.kernels import MetropolisHastings, Unadjusted
    from mhrun.pairing.full import Full
    from mhrun.pairing.growing import Growing
    from mhrun.pairing.shared import Shared
    from mhrun.pairing.thinned import Thinned
    from mhrun.parts import ARRIVALS, SUPPLY
    from mhrun.proposals.random_walk import RandomWalk
    from mhrun.rules.metropolis import Metropolis
    from mhrun.rules.mh_minibatch import MHMinibatch

    def part(name: str) -> Any:
        node = _plain(config, name)
        return build(node, name) if node else None

    kernel = part("kernel") or _of_method(config)
    if kernel is not None:
        return kernel
    if (dynamics := part("dynamics")) is not None:
        return Unadjusted(dynamics, None if exact else int(config.m))
    proposal, pairing, rule = (part(name) for name in ("proposal", "pairing", "rule"))
    if proposal is pairing is rule is None:
        raise UserError("this names no part; give rule=, proposal=, pairing=, dynamics= or method=NAME.")
    if rule is None:
        rule = MHMinibatch(config.m) if pairing is not None and pairing.offers == SUPPLY else Metropolis()
    if pairing is None and rule.wants == ARRIVALS:
        pairing = Thinned()
    if pairing is None:
        pairing = Growing() if rule.wants == SUPPLY else Full() if exact else Shared(int(config.m))
    return MetropolisHastings(proposal or RandomWalk(), pairing, rule)


def _of_method(config: DictConfig) -> Any:
    from mhrun.build import build

    node = _plain(config, "method.kernel")
    return build(node, "method.kernel") if node else None


def _plain(config: DictConfig, path: str) -> dict[str, Any]:
    """Return a node of the settings, resolved."""
    try:
        node = OmegaConf.select(config, path)
        if not node:
            return {}
        if missing := sorted(OmegaConf.missing_keys(node)):
            raise UserError(f"{path}.{missing[0]} must be given; add {path}.{missing[0]}=VALUE.")
        with bounded():
            settings: dict[str, Any] = OmegaConf.to_container(node, resolve=True)  # type: ignore[assignment]
        return settings
    except RecursionError as error:
        raise UserError(f"{path} is too deep: groups, lists or ${{...}} in one another.") from error
    except OmegaConfBaseException as error:
        if (ours := cause(error)) is not None:
            raise ours from error
        raise UserError(f"{path}: {reason(error)}; add it as +KEY=VALUE.") from error


def _as_table(verdicts: Sequence[Verdict], subject: Subject, seconds: float) -> None:
    from rich.console import Console

    from mhrun.check.declared import denials

    title = f"mhrun check {subject.name}".replace("[", r"\[")
    screen = sys.stdout.isatty()
    console = Console(width=None if screen else 10_000)
    console.print(f"[bold]{title}[/]", highlight=False)  # a table would pad it
    if screen:
        console.print(_table(_merged(verdicts)))
    else:  # into a file or a pipe go plain columns, a line for each check
        rows = [("check", "verdict", "what was found"), *(verdict[:3] for verdict in _merged(verdicts))]
        widths = [max(len(row[k]) for row in rows) for k in range(2)]
        for check, outcome, detail in rows:
            print(f"{check:<{widths[0]}}  {outcome:<{widths[1]}}  {detail}")
    for line in (*_conclusion(verdicts, subject, seconds), *denials(subject, verdicts)):
        console.print(line, highlight=False)
    if _biased(verdicts, subject) and subject.kind != "dynamics":
        console.print(
            "A rule that takes no account of minibatch noise is biased with minibatches: that is not judged. One that "
            "is meant to be right with them has exact = True or corrects_noise = True on its class: then a bias "
            "fails.",
            highlight=False,
        )


def _table(verdicts: Sequence[Verdict]) -> Table:
    from rich.table import Table

    table = Table()
    for heading in ("check", "verdict", "what was found"):
        table.add_column(heading)
    for verdict in verdicts:
        style = STYLES[verdict.outcome]
        table.add_row(verdict.check, f"[{style}]{verdict.outcome}[/]", verdict.detail.replace("[", r"\["))
    return table


def _conclusion(verdicts: Sequence[Verdict], subject: Subject, seconds: float) -> list[str]:
    """Return what failed, and how often that happens by chance, which is beside the point if all of it crashed."""
    from mhrun.check.verdict import FAILS, FALSE_ALARMS, NO_POWER

    failed = [verdict for verdict in verdicts if verdict.outcome == FAILS]
    lists = {
        f"{len(failed)} fail": [verdict.check for verdict in failed],
        "No power": [verdict.check for verdict in verdicts if verdict.outcome == NO_POWER],
        "Biased": _biased(verdicts, subject),
    }
    # Names contain commas.
    sentences = [f"{heading}: {'; '.join(names)}." for heading, names in lists.items() if names]
    found = " ".join(sentences if failed else ["no check fails.", *sentences])
    if failed and all(verdict.crashed for verdict in failed):
        return [f"{found} {seconds:.0f} s. Seed {subject.seed}."]
    alarms = f"{FALSE_ALARMS:.0e}".replace("e-0", "e-")
    chance = f"A correct kernel fails this page with probability {alarms}."
    return [f"{found} {seconds:.0f} s. {chance} Seed {subject.seed}.", _unseen(verdicts, subject)]


def _biased(verdicts: Sequence[Verdict], subject: Subject) -> list[str]:
    """Return the checks that measured a bias, which is none of a proposal."""
    from mhrun.check.verdict import MEASURED

    if subject.kind == "proposal":
        return []
    return [v.check for v in verdicts if v.outcome == MEASURED and ": biased (" in v.detail]


def _merged(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return verdicts to print: one for all checks that raised the same error, in the place of the first."""
    counts = Counter(verdict.detail for verdict in verdicts if verdict.crashed)
    printed: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        count = counts[verdict.detail] if verdict.crashed else 1
        name = f"{count} checks" if count > 1 else verdict.check
        printed.setdefault((name, verdict.detail), verdict._replace(check=name))
    return list(printed.values())


def _unseen(verdicts: Sequence[Verdict], subject: Subject) -> str:
    """Return what errors the checks do not see: of the variance where they judge it, or in standard errors."""
    from mhrun.check.verdict import Z

    limits = [verdict.unseen for verdict in verdicts if verdict.unseen is not None]
    setting = f"chains={25 * subject.chains}"
    if not limits:
        return f"An error within {Z:.1f} standard errors (±) passes unseen; with {setting} they are a fifth as large."
    low, high = f"{100 * min(limits):.2g}", f"{100 * max(limits):.2g}"
    size = f"{low} %" if low == high else f"{low} to {high} %, depending on the target,"
    return (
        f"A variance that is off by less than {size} passes unseen; with {setting} a fifth of that is seen."
    )


def _as_json(verdicts: Sequence[Verdict], subject: Subject, seconds: float) -> None:
    from mhrun import __version__
    from mhrun.check.verdict import FALSE_ALARMS, NO_POWER

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and value - value != 0 else value

    content: Mapping[str, Any] = {
        "checked": subject.name,
        "version": __version__,
        "seed": subject.seed,
        "false_alarms": FALSE_ALARMS,
        "seconds": round(seconds, 1),
        "fails": sum(verdict.outcome == "fails" for verdict in verdicts),
        "no_power": sum(verdict.outcome == NO_POWER for verdict in verdicts),
        "checks": [{key: finite(value) for key, value in verdict._asdict().items()} for verdict in verdicts],
    }
    print(json.dumps(content, indent=2))
