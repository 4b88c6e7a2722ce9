"""Configurations that somebody else wrote: they run nothing, write nowhere else, and end soon."""

from __future__ import annotations

import os
import re
import time

import pytest
import yaml
from kit import FEW

from mhrun import yaml_file
from mhrun.cli.configuration.composition import composed
from mhrun.cli.configuration.file_settings import check_runtime_of_files
from mhrun.cli.configuration.resolution import bounded
from mhrun.cli.main import run
from mhrun.errors import UserError
from mhrun.names import is_name
from mhrun.store.folder import RunFolder, sweeps

SMALL = """# @package _global_
defaults:
  - /data: gaussian_sample
  - /model: gaussian_mean
  - /method@methods.mcmc: mcmc
  - _self_
title: small
step_size: 0.1
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MHRUN_TRUST", "MHRUN_FOLDERS"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")


def write(name, text, folder="conf"):
    path = os.path.join(folder, f"{name}.yaml")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def refused(capsys, *words):
    """Return the one line of a command that is the user's mistake."""
    began = time.process_time()
    status = run([*words])
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert (status, len(lines)) == (2, 1), (status, captured)
    assert lines[0].startswith("mhrun: ")
    assert time.process_time() - began < 30
    return lines[0]


FOLDER = ("--config-dir", "conf")
SHOWN = (*FOLDER, "experiment=evil", "--cfg", "job")


# --- Hydra's own settings ------------------------------------------------------------------------------------

CODE = "open('ran', 'w').write('')\n\n\ndef log_lik(theta, rows):\n    return rows.x[:, 0] * theta.a\n"
TRUSTING = """
hydra: {job: {env_set: {MHRUN_TRUST: evilmod, MHRUN_FOLDERS: conf}}}
model: {_target_: mhrun.models.user_function.UserFunction, log_lik: evilmod.log_lik, parameters: {a: 1}}
"""
CALLING = "hydra: {callbacks: {a: {_target_: shutil.copyfile, src: conf/evilmod.py, dst: ran}}}"


ADDING = """
hydra: {overrides: {task: ["+hydra.job.env_set.MHRUN_TRUST=evilmod", "+hydra.job.env_set.MHRUN_FOLDERS=conf"]}}
model: {_target_: mhrun.models.user_function.UserFunction, log_lik: evilmod.log_lik, parameters: {a: 1}}
"""


@pytest.mark.parametrize(
    ("hostile", "key"),
    [(TRUSTING, "hydra.job.env_set"), (CALLING, "hydra.callbacks"), (ADDING, "hydra.overrides")],
)
def test_a_sweep_runs_no_code_that_a_file_names(capsys, tmp_path, hostile, key):
    write("experiment/evil", "# @package _global_\ndefaults: [mixture_tests, _self_]\n" + hostile)
    (tmp_path / "conf" / "evilmod.py").write_text(CODE)
    words = ("-m", *FOLDER, "experiment=evil", "scale=smoke", "runtime.report=false", "steps=2", "warmup=50")
    assert key in refused(capsys, *words, "seed=1,2")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "outputs").exists()


HOSTILE = {  # a key of Hydra's -> what a file says
    "hydra.job.env_set": "hydra: {job: {env_set: {A: b}}}",
    "hydra.job.env_set.HOME": "hydra: {job: {env_copy: [HOME]}}",
    "hydra.job.chdir": "hydra: {job: {chdir: true}}",
    "hydra.job.config": "hydra: {job: {config: {override_dirname: {kv_sep: /}}}}",
    "hydra.callbacks": "hydra: {callbacks: {a: {_target_: mhrun.cli.main.run}}}",
    "hydra.job_logging": "hydra: {job_logging: {handlers: {a: {class: logging.FileHandler, filename: /elsewhere/x}}}}",
    "hydra.hydra_logging": "hydra: {hydra_logging: {root: {level: DEBUG}}}",
    "hydra.sweep.subdir": "hydra: {sweep: {subdir: ../../x}}",
    "hydra.sweep.dir": "hydra: {sweep: {dir: /elsewhere/x}}",
    "hydra.run.dir": "hydra: {run: {dir: /elsewhere/x}}",
    "hydra.output_subdir": "hydra: {output_subdir: ../x}",
    "hydra.mode": "hydra: {mode: RUN}",
    "hydra.verbose": "hydra: {verbose: true}",
    "hydra.env": "hydra: {env: {a: 1}}",
    "hydra.sweeper._target_": "hydra: {sweeper: {_target_: os.system}}",
    "hydra.sweeper.params": "hydra: {sweeper: {params: {seed: '1,2'}}}",
    "hydra.launcher._target_": "hydra: {launcher: {_target_: os.system}}",
    "hydra.overrides": "hydra: {overrides: {hydra: [hydra.job.env_set.A=1]}}",
    "hydra.job.name": "hydra: {job: {name: ../x}}",
    "hydra.help": "hydra: {help: {header: a}}",
}
MOVED = {  # into the node by a package, or by a group
    "hydra.job.env_set": ("defaults: [{/other@hydra.job.env_set: a}]", {"other/a": "A: b"}),
    "hydra.callbacks": (
        "defaults: [{/other: b}]",
        {"other/b": "# @package hydra.callbacks\na: {_target_: os.system}"},
    ),
    "hydra.callbacks.c": (
        "defaults: [{override /hydra/callbacks: d}]",
        {"hydra/callbacks/d": "c: {_target_: os.system}"},
    ),
    "hydra.launcher": (
        "defaults: [{override /hydra/launcher: mine}]",
        {"hydra/launcher/mine": "_target_: shutil.copyfile"},
    ),
}


@pytest.mark.parametrize("key", HOSTILE)
def test_of_hydras_settings_a_file_has_a_launcher_and_its_counts_only(capsys, key):
    write("experiment/evil", f"# @package _global_\n{HOSTILE[key]}\n")
    assert key in refused(capsys, *SHOWN)


@pytest.mark.parametrize("key", MOVED)
def test_nor_by_a_package_or_a_group(capsys, key):
    text, others = MOVED[key]
    write("experiment/evil", f"# @package _global_\n{text}\n")
    for name, content in others.items():
        write(name, content)
    assert key.replace(".launcher", "/launcher") in refused(capsys, *SHOWN).replace("'mine'", "")


@pytest.mark.slow
def test_a_default_that_the_sweep_replaces_is_composed_and_checked_too(capsys):
    """The sweep as a whole has the experiment's own choice, which none of its jobs has."""
    read = "title: '${oc.select:other.name,none}'\n"
    write("experiment/evil", "# @package _global_\ndefaults: [mixture_tests, {/other: bad}, _self_]\n" + read)
    write("other/bad", "# @package hydra.callbacks\na: {_target_: os.system}\n")
    for name in ("one", "two"):
        write(f"other/{name}", f"name: {name}\n")
    assert "hydra.callbacks" in refused(
        capsys, "-m", *FOLDER, "experiment=evil", "scale=smoke", "other=one,two"
    )


def test_a_file_may_choose_a_launcher_and_its_counts():
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    write(
        "experiment/many",
        SMALL.replace("  - _self_", "  - override /hydra/launcher: joblib\n  - _self_")
        + "hydra: {launcher: {n_jobs: 2}}\n",
    )
    from pathlib import Path

    config = composed(["experiment=many"], [Path("conf")])
    assert config.hydra.launcher.n_jobs == 2
    assert composed(["experiment=many", "hydra.launcher.n_jobs=3"], [Path("conf")]).hydra.launcher.n_jobs == 3
    write("experiment/many", SMALL + "hydra: {launcher: {n_jobs: 2, backend: x}}\n")
    with pytest.raises(UserError, match=r"hydra\.launcher\.backend"):
        composed(["experiment=many", "hydra/launcher=joblib"], [Path("conf")])


@pytest.mark.parametrize(
    "word",
    [
        "hydra.job.env_set.A=1",
        "+hydra.job.env_set.A=1",
        "++hydra.callbacks.a._target_=os.system",
        "hydra.job.env_copy=[1]",
        "hydra.sweep.dir=/elsewhere/x",
        "hydra.searchpath=[/elsewhere]",
        "hydra/job_logging=default",
        "hydra/launcher=[a]",
        "+data@hydra.job.env_set=gaussian",
        "+data@_global_.hydra.callbacks.a=gaussian",
        "+hydra.launcher.a={_target_:os.system}",
        "hydra.launcher._target_=os.system",
        "hydra={}",
        "~hydra",
    ],
)
def test_hydra_overrides_may_set_the_launcher_only(capsys, word):
    assert "is not a setting of mhrun" in refused(capsys, "experiment=worst_case", word, "--cfg", "job")


# --- References ----------------------------------------------------------------------------------------------

DOUBLING = "".join(f"a{k}: ${{a{k - 1}}}${{a{k - 1}}}\n" for k in range(1, 26))
GROWING = "".join(f"a{k}: [" + ", ".join(5 * [f"'${{a{k - 1}}}'"]) + "]\n" for k in range(1, 12))
SELECTING = DOUBLING.replace("${a", "${oc.select:a")
REFERENCES = {
    "lead to more than 500": ("a0: x\n" + DOUBLING, "a0: [1, 2]\n" + GROWING, "a0: x\n" + SELECTING),
    "is not a number": ("a: '${power:-8,0.5}'", "a: '${power:0,-1}'", "a: [['${power:9,${power:9,9}}']]"),
    "at most 100,000": (
        "a: '${ladder:2,2,1000000000000}'",
        "a: '${batch_sizes:10,1,1.0000001,1000000000}'",
        "a: '${learning_rate_steps:0.1,0.2,1000000000,5}'",
        "a: '${first_axis:1,1000000000}'",
        "a: '${learning_rates:[1.0],1000000000,5}'",
    ),
    "beyond 10^18": ("a: '${batch_sizes:10,1,2,99999}'",),
    "overflows": ("a: '${ladder:10,1000,1000}'",),
    "oc.env: ": ("a: '${oc.env:PATH}'", "a: '${oc.env:SECRET,x}'", "a: '${oc.env:MHRUN_NOT_SET}'"),
    "oc.create": ("a: '${oc.create:\"{a: 1}\"}'",),
}


@pytest.mark.parametrize("line", REFERENCES)
def test_references_are_bounded(capsys, monkeypatch, line):
    # Sooner than after 10,000
    monkeypatch.setattr("mhrun.cli.configuration.compose.bounded", lambda: bounded(500))
    for text in REFERENCES[line]:
        write("experiment/evil", SMALL + text)
        assert line in refused(capsys, *SHOWN)


def test_the_environment_that_configurations_may_have(monkeypatch):
    from pathlib import Path

    from mhrun.cli.configuration.compose import compose_config

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "11")
    monkeypatch.setenv("SLURM_JOB_NAME", "007")
    write(
        "experiment/mine",
        SMALL
        + "data: {n: 5, dim: 1}\na: ${oc.env:SLURM_JOB_NAME}\nb: ${oc.env:MHRUN_NOT_SET,null}\n"
        + "c: of ${oc.env:SLURM_JOB_ID}\n",
    )
    for value in ("${oc.env:SLURM_ARRAY_TASK_ID}", '"${oc.decode:${oc.env:SLURM_ARRAY_TASK_ID}}"'):
        config = compose_config(["experiment=mine", f"seed={value}"], [Path("conf")])
        assert (config["a"], config["b"], config["c"], config["seed"]) == ("007", None, "of 7", 11)


# --- YAML ----------------------------------------------------------------------------------------------------

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{k}: &a{k} [{', '.join(9 * [f'*a{k - 1}'])}]\n" for k in range(1, 10))
MERGING = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{k}: &a{k} {{{', '.join(f'k{j}: *a{k - 1}' for j in range(9))}}}\n" for k in range(1, 10)
)
BROKEN = {  # what is wrong -> text after SMALL's eight lines, the line of the mistake, and words of the message
    "key twice": ("a: 1\nb: 2\na: 3\n", 11, "'a' is there already, in line 9"),
    "tab": ("a:\n\tb: 1\n", 10, "a tab"),
    "tag": ("a: !foo 1\n", 9, "!foo"),
    "python tag": ("a: !!python/object/apply:os.system [touch ran]\n", 9, "!!python/object/apply:os.system"),
    "path tag": ("a: !!python/object/apply:pathlib.PosixPath [/etc]\n", 9, "!!python"),
    "binary": ("a: !!binary aGk=\n", 9, "!!binary"),
    # libyaml, which does not load this, reads a quoted text from the mark on
    "tag behind a mark": (
        '\ufeff": 1\na: !!python/object/apply:pathlib.PosixPath [/etc]\n#"\n',
        10,
        "!!python",
    ),
    "tab behind a value": ("a: 1\t\n", 9, "a tab; indent with spaces"),
    "set": ("a: !!set {b}\n", 9, "!!set"),
    "two documents": ("a: 1\n---\nb: 2\n", 10, "a second document"),
    "control character": ("a: 1\nb: \x07\n", 10, "U+0007"),
    "null character": ('a: "\\0"\n', 9, "U+0000"),
    "surrogate": ('a: "\\ud800"\n', 9, "U+D800"),
    "alias of itself": ("a: &a\n  b: *a\n", 10, "would never end"),
    "alias of nothing": ("a: *b\n", 9, "has no anchor &b"),
    "anchor repeated": ("a: &x 1\nb: &x [2]\n", 10, "the anchor &x is there already"),
    "alias bomb": (BOMB, 14, "more than 100,000 values"),
    "alias bomb of groups": (MERGING, 14, "more than 100,000 values"),
    "deep list": ("a: " + 300 * "[" + 300 * "]" + "\n", 9, "more than 50 lists"),
    "deep group": ("\n".join(k * " " + "a:" for k in range(300)), 59, "more than 50 lists"),
    "very deep": ("a: " + 50_000 * "[" + "\n", 9, "more than 50 lists"),
    "list as key": ("? [1, 2]\n: 3\n", 9, "a key is a list"),
    "bracket": ("a: [1, 2\n", 10, "expected"),
    "quote": ("a: 'b\n", 10, "end of stream"),
    "indentation": ("a: 1\n  b: 2\n", 10, "mapping values are not allowed"),
    "digits": (f"a: {5000 * '9'}\n", 9, "5,000 digits"),
    "hexadecimal": ("a: 0x_\n", 9, "cannot be read as a value"),
    "list": ("", 1, "a list"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_mistake_in_yaml_is_a_line_with_its_line(capsys, kind):
    text, line, words = BROKEN[kind]
    write("experiment/evil", SMALL + text if kind != "list" else "- 1\n")
    message = refused(capsys, *SHOWN)
    assert re.search(rf"evil\.yaml', line {line}\b", message), message
    assert words in message


def test_a_file_that_is_not_utf8_or_too_large(capsys):
    write("experiment/evil", SMALL.encode() + b"a: 1\nb: \xff\n")
    assert "line 10: byte 0xff is not UTF-8" in refused(capsys, *SHOWN)
    write("experiment/evil", SMALL + "# " + (1 << 20) * "x")
    assert "more than 1 MB" in refused(capsys, *SHOWN)


def test_defaults_that_include_themselves(capsys):
    write("experiment/evil", "# @package _global_\ndefaults:\n  - _self_\n  - evil\n")
    assert "evil.yaml', line 4: its defaults include experiment/evil" in refused(capsys, *SHOWN)
    write("experiment/evil", "# @package _global_\ndefaults:\n  - other\n")
    write("experiment/other", "# @package _global_\ndefaults:\n  - _self_\n  - /experiment: evil\n")
    assert "other.yaml', line 4: its defaults include experiment/evil" in refused(capsys, *SHOWN)


def test_a_default_outside_the_folder_is_not_found(capsys):
    write("x", "a: 1", ".")
    write("experiment/evil", "# @package _global_\ndefaults: [../../x]\n")
    assert "x" in refused(capsys, *SHOWN)


def test_the_checks_of_yaml_keep_what_is_right():
    text = "a: &a {b: [1, 2.5, 1e-7, true, null, 'x'], date: 2020-01-01}\nc: *a\nd:\n  <<: *a\n  e: ! 1\n"
    yaml_file.check(text, "here")
    for path in (*sorted((yaml_file_root() / "conf").rglob("*.yaml")),):
        yaml_file.check(path.read_text(), str(path))


def yaml_file_root():
    from mhrun.paths import ROOT

    return ROOT


def test_the_configuration_of_a_run_is_checked_when_it_is_read(tmp_path):
    parts = "\n".join(f"{part}: {{}}" for part in ("methods", "runtime", "model", "data", "target"))
    (tmp_path / "config.yaml").write_text("\n".join([*BOMB.splitlines()[:6], parts]))
    RunFolder(tmp_path).config()  # a run may have a value for each chain
    (tmp_path / "config.yaml").write_text(BOMB)
    with pytest.raises(UserError, match="more than 10,000,000 values"):
        RunFolder(tmp_path).config()


# --- Names ---------------------------------------------------------------------------------------------------

ODD = [
    "/some/victim",
    "../../../x",
    ".",
    "..",
    "",
    "a/b",
    "a\nb",
    "a b",
    "é",
    "a.b",
    "x" * 65,
    "a\0b",
    1,
    None,
    "~",
    "a\\b",
]


@pytest.mark.parametrize("name", ODD)
def test_names_are_names(name):
    assert not is_name(name)
    with pytest.raises(UserError, match="is not a name"):
        RunFolder.of({"experiment": name, "runtime": {"outputs": "outputs"}, "methods": {}})
    with pytest.raises(UserError, match="is not a name"):
        RunFolder(yaml_file_root()).method(name)


@pytest.mark.parametrize("name", [name for name in ODD if name not in ("a\0b", None)])
@pytest.mark.parametrize("place", ["methods", "figures", "sweep_tables"])
def test_names_in_a_file_are_names(capsys, tmp_path, name, place):
    (tmp_path / "victim" / "blocks").mkdir(parents=True)
    (tmp_path / "victim" / "blocks" / "kept").touch()
    name = str(tmp_path / "victim") if name == "/some/victim" else name
    node = (
        {"methods": {name: "${methods.mcmc}"}} if place == "methods" else {"report": {place: {name: "a.b"}}}
    )
    write("experiment/evil", SMALL + yaml.safe_dump(node))
    assert "is not a name" in refused(capsys, *FOLDER, "experiment=evil")
    assert (tmp_path / "victim" / "blocks" / "kept").exists()


@pytest.mark.parametrize("name", ["../experiment/worst_case", "base/five_modes", "a b", "x" * 65])
def test_names_of_experiments_are_names(capsys, name):
    assert "is not a name" in refused(capsys, f"experiment={name}", "--cfg", "job")


def test_methods_that_differ_in_capitals(capsys):
    write("experiment/evil", SMALL + "methods: {MCMC: {label: x}}\n")
    assert "has the files of mcmc where capitals make no difference" in refused(capsys, *SHOWN)


# --- Where results go ----------------------------------------------------------------------------------------

WHOLE = SMALL + "data: {n: 50, dim: 1}\n"


@pytest.mark.parametrize("place", ["/elsewhere", "../x", "a/../../x", "link/x", "a\0b"])
def test_a_file_names_no_outputs_elsewhere(tmp_path, place):
    (tmp_path / "link").symlink_to(tmp_path.parent)
    runtime = {"outputs": place, "force": False}
    with pytest.raises(UserError, match=r"a configuration file sets runtime\.outputs = "):
        check_runtime_of_files(runtime, ["seed=1", "+a.runtime.outputs=x", "data@runtime.outputs=x"])
    for word in (f"runtime.outputs={place}", f"++runtime.outputs={place}", f"runtime={{outputs:{place}}}"):
        check_runtime_of_files(runtime, [word])


@pytest.mark.slow
@pytest.mark.parametrize("node", ["outputs: '${oc.env:HOME}/x'", "force: true"])
def test_a_file_neither_removes_results_nor_writes_elsewhere(capsys, tmp_path, node):
    write("experiment/evil", f"{WHOLE}runtime: {{{node}}}\n")
    assert f"runtime.{node[:5]}" in refused(capsys, *SHOWN)
    assert f"runtime.{node[:5]}" in refused(capsys, "-m", *FOLDER, "experiment=evil", "seed=1,2")
    assert not (tmp_path / "outputs").exists()
    assert run([*SHOWN, "runtime.force=true", "runtime.outputs=/elsewhere/mine"]) == 0


def test_a_file_names_outputs_in_the_working_directory(capsys):
    """Data are only read from their folder, and verified: it may be anywhere."""
    write("experiment/evil", WHOLE + "runtime: {outputs: results/mine, data_dir: /elsewhere/data}\n")
    assert run([*SHOWN]) == 0
    assert "outputs: results/mine" in capsys.readouterr().out


def test_each_job_of_a_sweep_is_checked(capsys, tmp_path):
    """Jobs that differ in plain values are composed once before the sweep."""
    text = "places: {p1: here, p2: ../there}\nruntime: {outputs: '${oc.select:places.p${seed}}', report: false}\n"
    write("experiment/evil", WHOLE + text + "steps: -1\n")
    assert run(["-m", *FOLDER, "experiment=evil", "seed=1,2"]) == 2
    err = capsys.readouterr().err
    assert "job 1 of 2 is refused: mcmc: steps = -1 must be at least 1" in err
    assert "job 2 of 2 is refused: a configuration file sets runtime.outputs = '../there'" in err
    assert not (tmp_path.parent / "there").exists()


# --- Links in the way ----------------------------------------------------------------------------------------


def test_files_are_not_written_through_links(tmp_path):
    """A folder that somebody sent may have links where a run writes."""
    mine, place = tmp_path / "mine", tmp_path / "run"
    mine.write_text("mine")
    place.mkdir()
    for name in ("summary.json.partial", ".owner", ".owner.partial"):
        (place / name).symlink_to(mine)
    folder = RunFolder(place)
    folder.write_summary({"status": "running"})
    with folder.held(print):
        pass
    assert mine.read_text() == "mine"
    assert folder.summary() == {"status": "running"}


@pytest.mark.parametrize("part", ["sweeps", "digest", "jobs"])
def test_reports_of_sweeps_are_not_written_through_links(tmp_path, part):
    """`mhrun report` finds no sweep behind a link."""
    place = tmp_path / "outputs" / "e" / "sweeps" / "digest"
    (place / "jobs").mkdir(parents=True)
    assert sweeps(tmp_path / "outputs") == [place]
    link = {"sweeps": place.parent, "digest": place, "jobs": place / "jobs"}[part]
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    assert sweeps(tmp_path / "outputs") == []


@pytest.mark.slow
def test_a_sweep_removes_nothing_elsewhere(tmp_path, capsys):
    words = [
        "-m",
        "experiment=gmm_tied_means",
        "scale=smoke",
        *FEW,
        "~methods.sghmc",
        "warmup=50",
        "steps=-1,60",
    ]
    words += ["runtime.report=false"]
    assert run(words) == 1
    place = next((tmp_path / "outputs").glob("*/sweeps/*"))
    (place / "jobs" / "notes.txt").write_text("of the user")
    (place / "jobs" / "0007.json").write_text("{}")  # of a sweep before
    assert run(words) == 1
    assert (place / "jobs" / "notes.txt").exists()
    assert not (place / "jobs" / "0007.json").exists()
    for link in (place / "jobs", place, place.parent):
        victims = tmp_path / f"victims of {link.name}"
        link.rename(victims)
        link.symlink_to(victims)
        kept = next(victims.rglob("notes.txt")).with_name("0000.json")
        kept.write_text("{}")
        capsys.readouterr()
        assert run(words) == 2
        assert "leads elsewhere" in capsys.readouterr().err
        assert kept.read_text() == "{}"
        link.unlink()
        victims.rename(link)
