"""Words of the command line that nothing reads are refused; nodes of files, and what a ${...} refers to, are not."""

from __future__ import annotations

import pytest

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.composition import composed
from mhrun.cli.configuration.unread import check_read, references_of
from mhrun.cli.main import run
from mhrun.errors import UserError

GMM = "experiment=gmm_tied_means"

OWN = """\
# @package _global_
defaults:
  - /data: gaussian
  - /model: gaussian_mean
  - /method@methods.mcmc: mcmc
  - _self_
data: {n: 100}
methods: {mcmc: {schedules: {step_size: {step_size: 0.1}}}}
temperature: 1.0
places: {first: 1}
"""


def refused(overrides, folders=()):
    with pytest.raises(UserError) as error:
        check_read(overrides, composed(overrides, folders), lambda some: composed(some, folders))
    return str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "+start.scale=-1",
            "+start.scale=-1 sets 'start', which nothing reads. Did you mean '+model.start.scale'?",
        ),
        ("+stepz=3", "+stepz=3 sets 'stepz', which nothing reads. Did you mean 'steps'?"),
        ("++stepz=3", "++stepz=3 sets 'stepz', which nothing reads."),
        ("+rule=barker", "Did you mean 'rule@methods.mint.kernel.rule=barker'?"),
        ("+rule@mint.kernel=barker", "sets 'mint', which nothing reads."),
    ],
)
def test_a_setting_that_nothing_reads_is_refused(override, message):
    assert message in refused([GMM, override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "+methods.mint.stepz=3",
            "methods.mint.stepz is a setting that nothing reads. Did you mean 'steps'?",
        ),
        *(
            (
                f"+report.{wrong}={{}}",
                f"report.{wrong} is a setting that nothing reads. Did you mean '{right}'?",
            )
            for wrong, right in {
                "figurs": "figures",
                "metricss": "metrics",
                "table": "tables",
                "sweeps": "sweep",
            }.items()
        ),
        ("+runtime.job=1", "runtime.job is a setting that nothing reads. Did you mean 'jobs'?"),
        (
            "+methods.mint.epoch=5",
            "methods.mint.epoch is a setting that nothing reads. methods.mint may have",
        ),
    ],
)
def test_a_setting_of_a_method_that_nothing_reads_is_refused(override, message):
    with pytest.raises(UserError) as error:
        compose_config([GMM, override])
    assert message in str(error.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["+methods.mint.steps=30", "+methods.sgld={thin:2}"],
        ["+methods.mint.epoch=5", "methods.mint.label=${methods.mint.epoch}"],
        ["+methods.mint.epoch=5", "methods.mint.label=${.epoch}"],
    ],
)
def test_settings_of_a_method_that_are_read_are_not_refused(overrides):
    compose_config([GMM, *overrides])


@pytest.mark.parametrize(
    "overrides",
    [
        ["+epoch=5", "methods.mint.label=${epoch}"],  # another override refers to it
        ["+shares.a=5", "methods.mint.label='${times:${shares.a},2}'"],
        ["++seed=3", "+target.other=none", "+monitor.every=5"],  # settings that every experiment has
        ["+method@methods.more=mcmc", "+data@methods.more.data=gaussian"],
        ["++lam=0.3"],  # of the experiment's file
        ["scale=smoke", "steps=5", "warmup=5", "thin=1"],  # though nothing refers to it now
    ],
)
def test_settings_that_are_read_are_not_refused(overrides):
    overrides = [GMM, *overrides]
    check_read(overrides, composed(overrides), composed)


@pytest.mark.parametrize(
    ("method", "override", "is_refused"),
    [
        ("", "temperature=4", True),
        ("", "++temperature=4", True),
        ("", "~temperature", False),
        ("  - /method@methods.mint: mint\n", "temperature=4", False),
        ("report: {metrics: mine.metrics}\n", "temperature=4", False),
        ("report: {figures: {one: mine.figure}}\n", "temperature=4", False),
        ("others: {first: '${..temperature}'}\n", "temperature=4", False),
    ],
)
def test_a_temperature_that_no_method_reads_is_refused(method, override, is_refused, tmp_path):
    """Its runs would be at T = 1, and be taken for others."""
    in_defaults = method.startswith(" ")
    own = OWN.replace("places: {first: 1}\n", "")
    text = own.replace("  - _self_\n", f"{method}  - _self_\n") if in_defaults else own + method
    folders = project_with(tmp_path, text)
    if is_refused:
        assert "no method of this experiment (mcmc) reads it" in refused(
            ["experiment=mine", override], folders
        )
    else:
        overrides = ["experiment=mine", override]
        check_read(overrides, composed(overrides, folders), lambda some: composed(some, folders))


def test_what_a_reference_is():
    node = {"a": "${b.c} and ${times:${d},2}", "e": ["${ f }", "${oc.select:g,1}", "${.h}"], "i": "${j[0]}"}
    assert references_of(node) == {"b", "d", "f", "g", "j"}


def project_with(tmp_path, text):
    (tmp_path / "conf" / "experiment").mkdir(parents=True, exist_ok=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(text)
    return (tmp_path / "conf",)


@pytest.mark.parametrize(("wrong", "meant"), [("chanis: 8", "chains"), ("warmpu: 20", "warmup")])
def test_a_misspelt_setting_of_a_file_is_refused(wrong, meant, tmp_path):
    folders = project_with(tmp_path, f"{OWN}{wrong}\n")
    key = wrong.partition(":")[0]
    assert refused(["experiment=mine"], folders) == (
        f"the experiment sets '{key}', which nothing reads. Did you mean '{meant}'?"
    )


def test_settings_of_a_file_that_a_reference_or_the_code_of_the_project_names_are_read(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("MHRUN_FOLDERS", str(tmp_path))
    (tmp_path / "figures.py").write_text("def spread(run):\n    return run.config['chanes'] * 2\n")
    (tmp_path / "figures.notes.md").write_text("At {{ config.warmups }}.\n")
    text = OWN.replace("places: {first: 1}", "chanes: 3\nwarmups: 1\nstepe: 0.1").replace(
        "step_size: 0.1", "step_size: '${stepe}'"
    )
    folders = project_with(tmp_path, text)
    for more in ([], ["methods.mcmc.schedules.step_size.step_size=0.2"]):  # read without the override
        overrides = ["experiment=mine", *more]
        check_read(overrides, composed(overrides, folders), lambda some: composed(some, folders))
    assert not capsys.readouterr().err


def test_another_setting_of_a_file_that_nothing_reads_is_warned_of(tmp_path, capsys):
    folders = project_with(tmp_path, OWN)
    overrides = ["experiment=mine"]
    check_read(overrides, composed(overrides, folders), lambda some: composed(some, folders))
    assert capsys.readouterr().err == "mhrun: the experiment sets places, which nothing reads.\n"


@pytest.mark.slow
def test_nodes_of_a_file_may_be_anything_and_a_scale_needs_scales(tmp_path, monkeypatch, capsys):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(OWN)
    folders = (tmp_path / "conf",)
    for overrides in ([], ["places.first=2"], ["+places.second=2"], ["++places.second=2"]):
        overrides = ["experiment=mine", *overrides]
        check_read(overrides, composed(overrides, folders), lambda some: composed(some, folders))
    assert refused(["experiment=mine", "scale=smoke"], folders) == (
        "scale=smoke: this experiment has no scales; leave it out, or give steps= and warmup= instead."
    )
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--dry-run"], ["--cfg", "job"], ["-m", "seed=1,2"]):
        assert run(["--project", ".", "experiment=mine", "scale=smoke", *more]) == 2
        err = capsys.readouterr().err
        assert "scale=smoke: this experiment has no scales" in err
        assert err.splitlines()[-1].startswith("mhrun: ")
    assert not (tmp_path / "outputs").exists()
