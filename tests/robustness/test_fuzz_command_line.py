"""Whatever is typed: no traceback, one line for a mistake, and an exit status that is true.

Most command lines are only put together and checked, down to the parts of every method (a dry run without its trial);
some are run. The arguments are drawn from the settings that there are, values that fit them, and values that do not.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import re
import resource
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from kit import fast, many
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import mhrun.cli.dry_run as dry_run
from hydra_plugins.mhrun_project import ProjectSource
from mhrun import yaml_file
from mhrun.cli.configuration.compose import compose_config, resolved
from mhrun.cli.configuration.composition import _plain_hydra, composed
from mhrun.cli.configuration.hydra_errors import explained
from mhrun.cli.configuration.hydra_settings import check_node
from mhrun.cli.configuration.unknown_keys import key_paths
from mhrun.cli.main import run
from mhrun.cli.places import experiments
from mhrun.engine.assemble import methods_of
from mhrun.engine.cost import step_seconds
from mhrun.engine.disk_space import trace_bytes
from mhrun.engine.settings import Settings
from mhrun.errors import UserError
from mhrun.names import is_name
from mhrun.paths import CONF, ROOT
from mhrun.store.folder import RunFolder

# Those whose data are made here: whether a machine has the others does not depend on arguments.
LIGHT = ("gmm_tied_means", "gaussian_grid", "mhbt_gaussian", "mhbt_mixture", "mixture_tests", "worst_case")

EDGES = [
    "0",
    "-1",
    "1",
    "2",
    "0.5",
    "1e-3",
    "1e3",
    "inf",
    "-inf",
    "nan",
    "1e400",
    "10**3",
    "9223372036854775808",
]
NONSENSE = [
    "null",
    "true",
    "false",
    "abc",
    "''",
    "cpu",
    "cuda:7",
    "float32",
    "on",
    "off",
    "auto",
    "posterior",
    "smoke",
    "paper",
    "???",
    "${seed}",
    "${nothing.here}",
    "${times:2,3}",
    "${times:a,3}",
    "[]",
    "[1,2]",
    "[1,[2]]",
    "{}",
    "{a:1}",
    "[a",
    "{a",
    "'",
    "\\",
    "a=b",
    "../..",
    "é",
    "%s",
    "{}{}",
    "a,b",
    "range(3)",
    "choice(1,2)",
    "os.system",
    "mhrun.errors.UserError",
    "mhrun.rules.barker.Barker",
    "mhrun",
    "_target_",
]
NUMBERS = st.one_of(
    st.integers(-3, 300).map(str), st.sampled_from(EDGES), st.floats(allow_nan=True, width=32).map(repr)
)
OVERRIDES = st.sampled_from([*NONSENSE, "'a b'", "\u2028", "x" * 300])
VALUES = st.one_of(
    NUMBERS, OVERRIDES, st.text(max_size=6), st.lists(NUMBERS, max_size=4).map(lambda v: f"[{','.join(v)}]")
)


@cache
def keys(experiment: str) -> list[str]:
    """Every setting of an experiment, groups too."""
    config = OmegaConf.to_container(composed([f"experiment={experiment}"]), resolve=False)
    return [key for key in key_paths(config) if not key.startswith("hydra")]


@cache
def groups() -> dict[str, list[str]]:
    return {
        place.name: sorted(p.stem for p in place.glob("*.yaml"))
        for place in CONF.iterdir()
        if place.is_dir() and place.name not in ("hydra", "experiment")
    }


@st.composite
def override(draw: st.DrawFn, experiment: str) -> str:
    """One argument: a setting with a value, a part in a place, a setting less, or nonsense."""
    kind = draw(st.integers(0, 19))
    known = keys(experiment)
    if kind == 0:
        return draw(st.text(max_size=12))
    if kind == 1:
        return f"~{draw(st.sampled_from(known))}"
    if kind < 6:
        group = draw(st.sampled_from(sorted(groups())))
        choice = draw(st.one_of(st.sampled_from(groups()[group]), OVERRIDES))
        place = draw(st.sampled_from(["", f"@{draw(st.sampled_from(known))}"]))
        return f"{draw(st.sampled_from(['', '+', '++']))}{group}{place}={choice}"
    key = draw(st.sampled_from(known))
    if kind < 8:
        key = f"{key}.{draw(st.sampled_from(['a', '_target_', 'x-y', '', '0']))}"
    return f"{draw(st.sampled_from(['', '', '', '+', '++']))}{key}={draw(VALUES)}"


@st.composite
def command_line(draw: st.DrawFn) -> list[str]:
    experiment = draw(st.sampled_from(LIGHT))
    some = draw(st.lists(override(experiment), max_size=4))
    return [f"experiment={experiment}", "scale=smoke", *some]


def outcome(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(arguments)
    return status, out.getvalue(), err.getvalue()


# Of a setting that is given twice, and of one in a file that is not used; before anything is wrong, and once a process.
_NOTE = re.compile(r"mhrun: (.* overrides .*|the experiment sets .* which nothing reads)\.$")


def assert_one_line(arguments: list[str], status: int, err: str) -> None:
    """A mistake has status 2 and one line; anything else no line that begins as ours."""
    assert status in (0, 2), arguments
    assert "Traceback" not in err, (arguments, err)
    if status == 2:
        lines = [line for line in err.split("\n") if line.startswith("mhrun: ")]
        message = [line for line in lines if not _NOTE.match(line)]
        assert len(message) == 1, (arguments, err)
        assert len(message[0]) > len("mhrun: ") + 5, (arguments, err)
        assert message[0].isprintable(), (arguments, err)


@pytest.fixture
def _checked_only(tmp_path, monkeypatch):
    """Let a dry run end after its checks: parts are built and checked, no step is timed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mhrun.engine.estimate.costs", lambda *_: [])
    monkeypatch.setattr(dry_run, "_memory", lambda *_: [])
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def checked(arguments: list[str]) -> None:
    status, _, err = outcome([*arguments, "--dry-run"])
    assert_one_line(arguments, status, err)
    assert not Path("outputs").exists()


@fast(6)
@given(command_line())
@pytest.mark.usefixtures("_checked_only")
def test_no_arguments_cause_a_traceback(arguments):
    checked(arguments)


@pytest.mark.parametrize("numbers", ["[1,2]", "${times:2,3}"])
@pytest.mark.usefixtures("_checked_only")
def test_a_group_that_is_set_to_numbers_is_reported(numbers):
    """Found by the test below."""
    status, _, err = outcome(["experiment=gmm_tied_means", f"data={numbers}", "--dry-run"])
    assert status == 2
    assert "takes the name of one of its files" in err


@pytest.mark.slow
@many(1000)
@given(command_line())
@pytest.mark.usefixtures("_checked_only")
def test_a_thousand_command_lines_bring_no_traceback(arguments):
    checked(arguments)


# --- Configurations: what arguments can make of one, without the time that Hydra takes ---------------------------


@cache
def base(experiment: str) -> str:
    return json.dumps(compose_config([f"experiment={experiment}", "scale=smoke"], compare=False))


def leaves(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a configuration."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(leaf for key, value in inner for leaf in leaves(value, (*path, key)))]


TARGETS = sorted(
    {name for p in CONF.glob("*/*.yaml") for name in re.findall(r"(?m)^_target_: *(\S+)", p.read_text())}
)
PLAIN = st.one_of(
    st.integers(-3, 1000),
    st.sampled_from([2**31, 2**63, 2**80, -(2**63), 10**30]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.sampled_from(
        ["posterior", "stored", "auto", "cpu", "cuda:9", "normal", "prior", "float32", "given", "theta"]
    ),
    st.sampled_from(TARGETS).map(lambda name: {"_target_": name}),
    st.sampled_from(TARGETS),
    st.lists(st.one_of(st.integers(-2, 50), st.floats(), st.none()), max_size=4),
    st.dictionaries(
        st.sampled_from(["a", "x", "_target_", "m", "start", "normal"]), st.integers(-1, 5), max_size=2
    ),
    st.just([[0.0, 1.0], [1.0, 0.0]]),
)


class Edited(NamedTuple):
    """An experiment's configuration with up to three things in it changed, taken out, or put in."""

    experiment: str
    edits: list[tuple[tuple[Any, ...], Any]]  # path -> value; GONE takes out

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads(base(self.experiment))
        for (*path, last), value in self.edits:
            node: Any = config
            for key in path:  # an edit before this one may have taken the place away
                inside = isinstance(node, dict) or (
                    isinstance(node, list) and isinstance(key, int) and key < len(node)
                )
                node = node[key] if inside and (not isinstance(node, dict) or key in node) else None
            value = copy.deepcopy(value)  # or an edit after this one could put it into itself
            if isinstance(node, dict):
                node.pop(last, None) if value == GONE else node.__setitem__(last, value)
            elif isinstance(node, list) and isinstance(last, int) and last < len(node):
                node[last] = value
        return config


GONE = "(gone)"
NEW = ["a", "m", "start", "thin", "warmup", "starts", "prior", "label", "_target_", "monitor"]


@st.composite
def edited(draw: st.DrawFn) -> Edited:
    experiment = draw(st.sampled_from(LIGHT))
    paths = [
        p
        for p in leaves(json.loads(base(experiment)))
        if p and p[0] not in ("scales", "report", "experiment")
    ]
    edits = []
    for _ in range(draw(st.integers(1, 3))):
        path, kind = draw(st.sampled_from(paths)), draw(st.integers(0, 9))
        if kind == 0:
            path = (*path, draw(st.sampled_from(NEW)))
        edits.append((path, GONE if kind == 1 else draw(PLAIN)))
    return Edited(experiment, edits)


def built(config: dict[str, Any]) -> None:
    """Whatever a configuration is: it is refused in one line, or its methods are there."""
    try:
        config = resolved(OmegaConf.create(config), config["experiment"])
        Settings(config["executor"], config["runtime"]["threads"], config["runtime"]["block_seconds"])
        for method in methods_of(config):
            trace_bytes(method)
            step_seconds(method)
    except UserError as error:
        message = str(error)
        if not message.strip() or "\n" in message:
            raise AssertionError(f"no line: {message!r}") from error


@pytest.fixture
def _little_memory():
    """Less than a machine has, so that what asks for more is seen and not killed."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@fast(60)
@given(edited())
def test_no_configuration_brings_anything_but_a_refusal(changed):
    built(changed.config())


@pytest.mark.slow
@many(5000)
@given(edited())
@pytest.mark.usefixtures("_little_memory")
def test_thousands_of_configurations_bring_nothing_but_refusals(changed):
    built(changed.config())


HUGE = (2**31, 2**80, 10**30, -(2**63))
FELL = {  # where a number that is far too large once was no refusal, or took all memory
    "gmm_tied_means": ["chains", "methods.sgld.schedules.step_size.exponent"],
    "gaussian_grid": [
        "methods.text_sgld.schedules.step_size.exponent",
        "methods.text_csgld.schedules.step_size.cycles",
        "methods.sgnht.starts.uniform.1",
    ],
    "mhbt_gaussian": ["model.dim"],
    "mixture_tests": ["methods.mhminibatch_released.kernel.rule.half_width_steps"],
}


@pytest.mark.parametrize("experiment", FELL)
@pytest.mark.usefixtures("_little_memory")
def test_numbers_that_are_far_too_large_are_refused(experiment):
    for setting in FELL[experiment]:
        path = tuple(int(part) if part.isdigit() else part for part in setting.split("."))
        for value in HUGE:
            built(Edited(experiment, [(path, value)]).config())


@pytest.mark.slow
@pytest.mark.parametrize("experiment", LIGHT)
@pytest.mark.usefixtures("_little_memory")
def test_no_setting_may_be_far_too_large(experiment):
    for path in leaves(json.loads(base(experiment))):
        if path and path[0] not in ("scales", "report", "experiment"):
            for value in HUGE:
                built(Edited(experiment, [(path, value)]).config())


# --- Commands, and runs -------------------------------------------------------------------------------------

COMMANDS = [
    "list",
    "report",
    "compare",
    "fetch",
    "help",
    "-m",
    "--cfg",
    "job",
    "--trust",
    "--config-dir",
    "--dry-run",
    "--json",
    "--reference",
    "--version",
    "experiment=",
    "experiment=worst_case",
    "scale=smoke",
    "runtime.outputs=none",
    "=",
    "--",
    "-",
]


@fast(40)
@example(["list", "--config-dir"])
@example(["-m"])
@given(st.lists(st.one_of(st.sampled_from([*COMMANDS, ""]), st.text(max_size=8)), max_size=4))
@pytest.mark.usefixtures("_checked_only")
def test_no_command_brings_a_traceback(arguments):
    arguments = [
        w for w in arguments if not w.startswith("experiment=w") or {"--cfg", "--dry-run"} & set(arguments)
    ]
    status, _, err = outcome(arguments)
    assert_one_line(arguments, status, err)


@pytest.mark.slow
@many(100)
@given(command_line())
def test_runs_end_whole_or_with_a_line(tmp_path_factory, arguments):
    place = tmp_path_factory.mktemp("run")
    few = ["steps=20", "warmup=50", "chains=2", "runtime.report=false", f"runtime.outputs={place}"]
    status, _, err = outcome([*few, *arguments])
    assert_one_line(arguments, status, err)


def test_every_light_experiment_is_there():
    assert set(LIGHT) <= set(experiments())


# --- Files of somebody else's: YAML, names, Hydra's settings ------------------------------------------------------

TEXTS = sorted(
    path.read_text() for place in (ROOT / "starter", CONF / "experiment") for path in place.rglob("*.yaml")
)
PIECES = [
    *"\t\n\r #:-,[]{}&*!|>'\"%@`?~=<.0\\\0\x07\x1b\x7f\x85\xa0\u2028\ufeff\ufffe",
    *(
        "\n\n",
        "---\n",
        "...\n",
        ": ",
        "- ",
        "? ",
        "<<: *a",
        "&a ",
        "*a",
        "!!binary ",
        "!!python/name:os.system ",
    ),
    *(
        "!foo ",
        "!!set ",
        "!!int x",
        "%YAML 9.9\n",
        "# @package a b\n",
        "# @package\n",
        "# @package _global_.hydra\n",
    ),
    *(
        "|9\n",
        ">-\n",
        "${a}",
        "${",
        "$",
        "${oc.env:HOME}",
        "${a.${b}}",
        "???",
        "null: 1\n",
        "1: 2\n",
        "true: 3\n",
    ),
    *("? [1]\n", '"\\ud800"', "1e999", "0x_", "1:2:3", "9" * 500, "[" * 60, "{" * 60, "a: " * 30, "_self_"),
    *("defaults: 3\n", "defaults: [3, [4]]\n", "hydra: {job: {chdir: true}}\n", "experiment: ../x\n"),
    *("methods: {../x: 1}\n", "é", "\U0001f600", "x" * 300),
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A configuration with up to four pieces put in, taken out, doubled or moved."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.sampled_from([0, 0, 0, 1, 1, 5, 40])))
        piece = draw(st.one_of(st.sampled_from(PIECES), st.text(max_size=4), st.just(text[at:end] * 2)))
        if draw(st.booleans()):  # of whole lines
            at, end = text.rfind("\n", 0, at) + 1, end if end == at else text.find("\n", end) + 1
        text = text[:at] + piece + text[max(at, end) :]
    return text


def loaded(place: Path, text: str) -> None:
    """A file is loaded, or refused in one line that names it."""
    (place / "a.yaml").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    source = ProjectSource("fuzz", f"mhrun://{place}")
    try:
        found = source.load_config("a").config
        OmegaConf.to_container(found, resolve=False)
        yaml_file.load(place / "a.yaml")
    except UserError as error:
        one_line(error)
        if "a.yaml" not in str(error):
            raise AssertionError(f"which file? {error}") from error
    except OmegaConfBaseException as error:  # which is explained when it is composed
        one_line(explained(error, [], []))


def one_line(error: UserError) -> None:
    message = str(error)
    if not message.strip() or "\n" in message:
        raise AssertionError(f"no line: {message!r}") from error


@fast(150)
@given(mutated())
@pytest.mark.usefixtures("_checked_only")
def test_no_file_brings_anything_but_a_refusal(text):
    loaded(Path.cwd(), text)


@pytest.mark.slow
@many(1500)
@given(mutated())
@pytest.mark.usefixtures("_checked_only")
def test_thousands_of_files_bring_nothing_but_refusals(text):
    loaded(Path.cwd(), text)


@pytest.mark.slow
@many(200)
@given(mutated())
@pytest.mark.usefixtures("_checked_only")
def test_experiments_that_are_changed_anyhow_bring_no_traceback(text):
    place = Path("conf/experiment")
    place.mkdir(parents=True, exist_ok=True)
    (place / "fuzzed.yaml").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    arguments = ["--config-dir", "conf", "experiment=fuzzed", "--cfg", "job"]
    status, _, err = outcome(arguments)
    assert_one_line(arguments, status, err)


NAMES = st.one_of(
    st.text(max_size=80),
    st.text("ab01-_./\\ ~\n\0", max_size=8),
    st.from_regex(r"[A-Za-z0-9_-]{0,70}", fullmatch=True),
    st.lists(st.sampled_from(["..", ".", "", "a", "con", "~", "etc", "C:", "latest"]), max_size=5).map(
        "/".join
    ),
)


@fast(300)
@given(NAMES)
def test_a_name_stays_in_its_folder_or_is_refused(name):
    folder = RunFolder(Path("/outputs/a/b"))
    try:
        place = folder.method(name)
    except UserError as error:
        one_line(error)
        if is_name(name):
            raise
    else:
        assert place.parent == folder.path / "methods"
        assert Path(os.path.normpath(place)) == place
        assert place.name.isascii()


_KEYS = """job env_set callbacks a _target_ launcher sweeper params sweep dir subdir run job_logging handlers chdir mode
n_jobs mem_gb partition remote num_cpus init overrides hydra task searchpath runtime output_dir verbose"""
HYDRA_KEYS = st.lists(st.sampled_from(_KEYS.split()), min_size=1, max_size=4)


@fast(200)
@given(HYDRA_KEYS, PLAIN)
def test_of_hydras_settings_no_other_counts_than_those_of_launchers(keys, value):
    plain = _plain_hydra("config", "basic", ())
    node = copy.deepcopy(plain)
    inner: Any = node
    for key in keys[:-1]:
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[keys[-1]] = value
    harmless = keys[0] in ("launcher", "runtime", "searchpath", "overrides") or value is None
    try:
        check_node(node, plain, plain["overrides"]["hydra"], plain["overrides"]["task"])
    except UserError as error:
        one_line(error)
        return
    launcher = {key: value for key, value in node["launcher"].items() if key != "_target_"}
    assert harmless or node == plain or value in ({}, [])
    assert node["launcher"]["_target_"] == plain["launcher"]["_target_"]
    assert all(isinstance(v, int | float | str | dict | None) for v in launcher.values())


@pytest.mark.slow
@many(150)
@given(HYDRA_KEYS, PLAIN)
@pytest.mark.usefixtures("_checked_only")
def test_files_with_settings_of_hydras_bring_no_traceback(keys, value):
    node: Any = value
    for key in reversed(keys):
        node = {key: node}
    place = Path("conf/experiment")
    place.mkdir(parents=True, exist_ok=True)
    base = "# @package _global_\ndefaults: [gmm_tied_means, _self_]\n"
    (place / "fuzzed.yaml").write_text(base + yaml.safe_dump({"hydra": node}))
    arguments = ["--config-dir", "conf", "experiment=fuzzed", "scale=smoke", "--cfg", "job"]
    status, _, err = outcome(arguments)
    assert_one_line(arguments, status, err)
