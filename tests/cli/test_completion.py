"""Shell completion: the candidates for a line, and the scripts in the installed shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from mhrun.cli.commands import COMMANDS
from mhrun.cli.completion import _KEYS, _VALUES, SCRIPTS, candidates
from mhrun.cli.configuration.composition import composed
from mhrun.cli.listing.key_tree import key_tree
from mhrun.cli.main import run
from mhrun.engine.assemble import _DTYPES
from mhrun.engine.execution.executors import EXECUTORS
from mhrun.paths import CONF
from mhrun.target.precision import BF16, FP32, TF32
from mhrun.target.target import TEMPERS


def test_the_values_of_settings_are_those_that_are_accepted():
    """Completion imports neither torch nor the parts, so that it repeats these lists."""
    accepted = {
        "dtype": tuple(_DTYPES),
        "precision": (FP32, TF32, BF16),
        "executor": EXECUTORS,
        "target.temper": TEMPERS,
    }
    assert {key: _VALUES[key] for key in accepted} == accepted
    config = OmegaConf.load(CONF / "config.yaml")
    assert {key for key in _KEYS if "." not in key and not key.startswith(("hydra/", "+"))} <= set(config)
    assert all(key.rpartition(".")[2] in config[key.partition(".")[0]] for key in _KEYS if "." in key)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("mhrun gm", ["gmm_tied_means"]),
        ("mhrun li", ["list"]),
        ("mhrun experiment=gm", ["experiment=gmm_tied_means"]),
        (
            "mhrun list temp",
            ["temperature_drop", "temperature_drop_100k", "temperature_drop_small", "tempered_bounds"],
        ),
        ("mhrun gmm_tied_means la", ["lam="]),  # a setting of its own
        ("mhrun experiment=gmm_tied_means scale=", ["scale=paper", "scale=quick", "scale=smoke"]),
        ("mhrun -m gmm_tied_means scale=smoke,", ["scale=smoke,paper", "scale=smoke,quick"]),
        ("mhrun gmm_tied_means executor=c", ["executor=compiled"]),
        ("mhrun gmm_tied_means data=mixt", ["data=mixture"]),
        ("mhrun gmm_tied_means rule@methods.mint.", ["rule@methods.mint.kernel.rule="]),
        ("mhrun gmm_tied_means rule@methods.mint.kernel.rule=bar", ["rule@methods.mint.kernel.rule=barker"]),
        ("mhrun gmm_tied_means meth", ["methods."]),
        ("mhrun gmm_tied_means methods.mi", ["methods.mint.", "methods.mint_stored."]),
        ("mhrun gmm_tied_means methods.mint.sched", ["methods.mint.schedules."]),
        (
            "mhrun gmm_tied_means methods.mint.schedules.step_size.",
            [f"methods.mint.schedules.step_size.{key}=" for key in ("acceptance", "start", "window")],
        ),
        ("mhrun gmm_tied_means data=table data.fi", ["data.file="]),
        (
            "mhrun gmm_tied_means +method@methods.new=sgld methods.new.kernel.d",
            ["methods.new.kernel.dynamics."],
        ),
        ("mhrun gmm_tied_means ~methods.mc", ["~methods.mcmc"]),
        ("mhrun gmm_tied_means +method@methods.rm", ["+method@methods.rmsprop=rmsprop"]),
        ("mhrun gmm_tied_means --dr", ["--dry-run"]),
        ("mhrun gmm_tied_means --cfg ", ["job"]),
        ("mhrun compare --re", ["--reference"]),
        ("mhrun check rul", ["rule="]),
        ("mhrun check rule=b", ["rule=barker"]),
        ("mhrun completion ", ["bash", "fish", "zsh"]),
        ("mhrun completion bash ", []),
        ("mhrun --project ", []),  # a folder, which the shell completes
        ("mhrun nothing_like_it", []),
        ("mhrun --project nowhere gm", []),
    ],
)
def test_what_a_line_can_become(line, found):
    assert candidates(line) == found


def _flat(keys, prefix=""):
    for key, below in keys.items():
        yield f"{prefix}{key}"
        if isinstance(below, dict):
            yield from _flat(below, f"{prefix}{key}.")


@pytest.mark.parametrize("experiment", ["gmm_tied_means", "temperature_drop", "worst_case"])
def test_keys_are_those_of_the_composed_configuration(experiment):
    config = OmegaConf.to_container(composed([f"experiment={experiment}"]), resolve=False)
    del config["hydra"]
    assert set(_flat(key_tree(experiment, {}, []))) == set(_flat(config))


def test_a_line_begins_with_commands_and_experiments():
    assert {*COMMANDS, "gmm_tied_means", "experiment="} <= set(candidates("mhrun "))


def test_experiments_and_parts_of_a_project_complete(tmp_path):
    for path, text in {
        "experiment/own.yaml": "defaults: [/method@methods.a: mint]\nknob: 1\nscales: {tiny: {n: 1}}\n",
        "rule/ours.yaml": "",
    }.items():
        (tmp_path / "mine" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / path).write_text(text)
    assert candidates("mhrun --config-dir mine ow") == ["own"]
    assert candidates("mhrun --config-dir mine own kn") == ["knob="]
    assert candidates("mhrun --config-dir=mine own scale=") == ["scale=tiny"]
    assert candidates("mhrun --project mine own rule@methods.a.kernel.rule=o") == [
        "rule@methods.a.kernel.rule=ours"
    ]
    (tmp_path / "mine" / "experiment" / "own.yaml").write_text("a: [1\n")
    assert candidates("mhrun --config-dir mine own kn") == []  # the command itself reports it


def test_runs_and_their_methods_complete(tmp_path):
    from mhrun.store.folder import RunFolder

    folder = RunFolder(tmp_path / "outputs" / "gmm_tied_means" / "0123456789ab")
    folder.create({"experiment": "gmm_tied_means"})
    folder.write_summary({"status": "complete", "methods": {"mint": {}, "mcmc": {}}})
    assert candidates("mhrun report g") == ["gmm_tied_means"]
    assert candidates("mhrun compare gmm_tied_means:m") == ["gmm_tied_means:mcmc", "gmm_tied_means:mint"]


# --- The scripts --------------------------------------------------------------------------------------------

LINES = {
    "mhrun gm": "gmm_tied_means",
    "mhrun gmm_tied_means scale=sm": "scale=smoke",
    "mhrun gmm_tied_means rule@methods.mint.kernel.rule=bar": "rule@methods.mint.kernel.rule=barker",
}
# Each prints what the last word of the line $1 is completed to.
DRIVERS = {
    "bash": """
source "$2"
COMP_LINE="$1"; COMP_POINT=${#1}; read -ra COMP_WORDS <<< "$1"
_mhrun
word="${1##*[[:space:]]}"; tail="${word##*[$COMP_WORDBREAKS]}"
printf '%s\\n' "${word%"$tail"}${COMPREPLY[0]}" "${#COMPREPLY[@]}"
""",
    "zsh": """
compdef() { }
compadd() { print -rl -- "${@[-1]}" 1 }
source "$2"
words=(${(s: :)1}); CURRENT=$#words
_mhrun
""",
    "fish": "source $argv[2]; set found (complete -C $argv[1]); printf '%s\\n' $found[1] (count $found)",
}
OPTIONS = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["-N"]}


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Return a function that completes a line in a shell with this `mhrun`."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "mhrun"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mhrun "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))

    def completed(name, script, line):
        (tmp_path / "script").write_text(script)
        driver = [DRIVERS[name], *(["driver"] if name != "fish" else [])]
        words = [name, *OPTIONS[name], "-c", *driver, line, str(tmp_path / "script")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        return done.stdout.splitlines()

    return completed


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_completes_in_its_shell(name, shell, capsys):
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    assert run(["completion", name]) == 0
    script = capsys.readouterr().out
    for line, found in LINES.items():
        first, count = shell(name, script, line)
        assert first.strip() == found
        assert count == "1"
