"""The command line: what people type, right and wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hydra.errors import HydraException
from kit import FEW

from mhrun.cli.commands import COMMANDS
from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.hydra_errors import explained
from mhrun.cli.main import _warned, run
from mhrun.cli.reporting import chosen_runs
from mhrun.engine.assemble import methods_of
from mhrun.engine.method_file import method_names
from mhrun.store.identity import digest

SMOKE = ["experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["experiment=gmm_tied_mean"],
            "There is no experiment 'gmm_tied_mean'. Did you mean 'gmm_tied_means'?",
        ),
        (["lst"], "'lst' is not a command, an experiment or KEY=VALUE. Did you mean 'list'?"),
        (
            ["gmm_tied_mean"],
            "'gmm_tied_mean' is not a command, an experiment or KEY=VALUE. Did you mean 'gmm_tied_means'?",
        ),
        (["gmm_tied_means", "smoke"], "Did you mean 'scale=smoke'?"),
        (
            ["gmm_tied_means", "methods.mcmc.stepsize=1"],
            "Did you mean 'methods.mcmc.schedules.step_size.start'?",
        ),
        (
            ["gmm_tied_means", "methods.sghmc.friction=1"],
            "Did you mean 'methods.sghmc.kernel.dynamics.friction'?",
        ),
        (["gmm_tied_means", "lemmas"], "experiment=gmm_tied_means and experiment=lemmas are two experiments"),
        (["gmm_tied_means", "scale=smke"], "choose smoke, quick, paper. Did you mean 'smoke'?"),
        (
            ["gmm_tied_means", "--dryrun"],
            "There is no option '--dryrun'. Did you mean '--dry-run'? mhrun --help lists",
        ),
        (
            ["compare", "--refrence", "x"],
            "Did you mean '--reference'? mhrun compare --help lists the options",
        ),
        (["check", "--jsn"], "Did you mean '--json'?"),
        (["help", "lst"], "There is no command 'lst'. Did you mean 'list'?"),
        (["completion"], "completion is for bash, zsh and fish"),
        (["completion", "bsh"], "Did you mean 'bash'?"),
        (["--fast"], "There is no option '--fast'"),
        (["seed=1"], "No experiment is named"),
        (["--cfg", "everything", *SMOKE], "use --cfg job"),
        (["--config-dir", "nowhere", *SMOKE], "there is no such folder"),
        (["--config-dir"], "needs a value"),
        (["experiment=gmm_tied_means", "a=[1,2"], "cannot be read as an override"),
        ([*SMOKE, "seed=${..}"], "seed: its ${...} cannot be read; a reference is ${NAME} or ${GROUP.NAME}"),
        ([*SMOKE, "seed=${.seed}"], "seed: its ${...} leads back to itself."),
        ([*SMOKE, "++model.x={0:1}"], "model.x: the key 0 must be text; put it in quotes."),
        ([*SMOKE, "lamm=0.3"], "There is no setting 'lamm'. Did you mean 'lam'?"),
        (
            ["model=gaussian_mean", "data=gaussian", "+method@methods.sgld=sgld", "m=20"],
            "'m' is read by this experiment, which does not set it: write +m=20.",
        ),
        (
            ["experiment=gmm_tied_means", "methods=[]"],
            "methods=[] does not fit: 'methods' is a group of settings; set one of them (methods.KEY=VALUE)",
        ),
        (
            [*SMOKE, "methods.sgld.schedules.step_size=[1e-4,1e-5]"],
            "methods.sgld.schedules.step_size=[1e-4,1e-5] does not fit: 'step_size' takes a number, which is constant,",
        ),
        (
            [*SMOKE, "methods.sgld.schedules.step_size={step_size: 1e-4}"],
            "'methods.sgld.schedules.step_size' has start, end and exponent; methods.sgld.schedules.step_size={step_",
        ),
        (
            [*SMOKE, "~methods.mimt"],
            "~methods.mimt removes nothing: methods has mint, mint_stored, tempered_mcmc, mcmc, sgld, sghmc. Did",
        ),
        (
            [*SMOKE, "lam=0.2,0.3"],
            "lam is given several values; mhrun -m runs each of them; one list is lam=[0.2,0.3]",
        ),
        ([*SMOKE, "monitor=predictive"], "If you mean to add a part, write +monitor=NAME."),
        (
            [*SMOKE, "+method@methods.mint=mint"],
            "There is a method 'mint' already; set its parts (methods.mint.KEY",
        ),
        ([*SMOKE, "+data=mixture"], "mhrun: There is a data already: write data=mixture, without the +."),
        (
            [*SMOKE, "+model=logistic"],
            "mhrun: There is a model already: write model=logistic, without the +.",
        ),
        ([*SMOKE, "+steps=9"], "mhrun: 'steps' is there already: write steps=VALUE, without the +."),
        (
            [*SMOKE, "+methods.mcmc.schedules.temperature=2"],
            "mhrun: 'methods.mcmc.schedules.temperature' is there already: write",
        ),
        (
            [*SMOKE, "methods.mint.starts=[[0,1]]"],
            "'methods.mcmc.starts' is one; to set it here too, write +methods.mint.starts=VALUE.",
        ),
        ([*SMOKE, "methods.mnt.starts=[[0,1]]"], "Did you mean 'mint'? The methods are mint, "),
        ([*SMOKE, "+method@methods.hmc=hmc", "methods.hmc.steps=9"], "write +methods.hmc.steps=VALUE"),
        ([*SMOKE, "~methods.mcmc", "methods.mnt.starts=[[0,1]]"], "mint_stored, tempered_mcmc, sgld, sghmc."),
        ([*SMOKE, "methods.mint.kernel.pairng.m=3"], "Did you mean 'methods.mint.kernel.pairing.m'?"),
        (
            [*SMOKE, "rule@methods.mint.kernel.rule=metropols"],
            "There is no rule 'metropols'. Did you mean 'metropolis'?",
        ),
        ([*SMOKE, "lam=0.5"], "lam = 0.5 must be below tau = 0.5"),
        ([*SMOKE, "lam=-0.1"], "lam = -0.1 must not be negative"),
        ([*SMOKE, "lam=abc"], "lam = 'abc' must be a number"),
        (
            [*SMOKE, "methods.sgld.schedules.step_size.step_size=0.1"],
            "There is no setting 'methods.sgld.schedules.step_size.step_size'. methods.sgld.schedules.step_size has "
            "start, end and exponent.",
        ),
        (
            ["data=gaussian", "model=logistic", "model.names=[a]"],
            "There is no setting 'model.names'. model takes it, and does not set it: write +model.names=[a].",
        ),
        (["data=gaussian", "model=logistic", "model.name=a"], "Did you mean '+model.names'?"),
        (
            ["data=gaussian", "model=logistic", "methods.smh2.thin=3"],
            "No method is named; +method@methods.smh2=NAME adds one.",
        ),
        ([*SMOKE, "methods.mint.kernel.rule.of=3"], "methods.mint.kernel.rule has no settings."),
        ([*SMOKE, "tau=1.5"], "tau = 1.5 must lie in (0, 1]"),
        ([*SMOKE, "m=10001"], "m = 10001 is more than the n = 10000 data"),
        ([*SMOKE, "methods.mint.kernel.pairing.m=20000"], "m = 20000 is more than the n = 10000 data"),
        ([*SMOKE, "methods.mint.kernel.pairing.m=0"], "m = 0 is not a valid minibatch size"),
        ([*SMOKE, "methods.mint.schedules.step_size.start=-1"], "start = -1 must be positive"),
        ([*SMOKE, "methods.sgld.schedules.step_size.end=1"], "a polynomial decay goes down"),
        ([*SMOKE, "methods.sghmc.kernel.dynamics.friction=2"], "friction = 2 must lie in (0, 1]"),
        ([*SMOKE, "chains=0"], "chains = 0 must be at least 1"),
        ([*SMOKE, "chains=abc"], "chains = 'abc' must be a whole number"),
        ([*SMOKE, "steps=1.5"], "steps = 1.5 must be a whole number"),
        ([*SMOKE, "thin=1000"], "thin = 1000 keeps none"),
        ([*SMOKE, "thin=[]"], "thin = [] must be increasing steps between 1 and 600"),
        ([*SMOKE, "thin=[3,2]"], "thin = [3, 2] must be increasing steps"),
        ([*SMOKE, "thin=[5,5]"], "thin = [5, 5] must be increasing steps"),
        ([*SMOKE, "thin=[0,5]"], "thin = [0, 5] must be increasing steps"),
        ([*SMOKE, "thin=[5,601]"], "thin = [5, 601] must be increasing steps"),
        ([*SMOKE, "thin=[1.5]"], "thin = 1.5 must be a whole number"),
        ([*SMOKE, "+methods.mint.thin=[3,2]"], "mint: thin = [3, 2]"),
        (
            [*SMOKE, "+monitor=predictive", "+data@monitor.data=mnist", "monitor.every=0"],
            "every = 0 must be",
        ),
        (
            [*SMOKE, "+monitor=predictive", "+data@monitor.data=mnist", "monitor.every=5"],
            "monitor: it needs a model that predicts classes, which TiedMeans does not",
        ),
        ([*SMOKE, "target.common_batch=no"], "common_batch = 'no' must be true or false"),
        ([*SMOKE, "thin_stats=0"], "thin_stats = 0 must be at least 1"),
        ([*SMOKE, "thin_stats=1000"], "thin_stats = 1000 keeps none"),
        ([*SMOKE, "+methods.mint.thin_stats=1.5"], "mint: thin_stats = 1.5 must be a whole number"),
        ([*SMOKE, "+methods.mint.starts={normal: -1}"], "methods.mint.starts = {'normal': -1} is unknown"),
        (
            [*SMOKE, "~methods.mint.kernel.rule", "+methods.mint.kernel.rule={sigma: 1}"],
            "methods.mint.kernel: rule names no part; give it a _target_, or choose one of conf/",
        ),
        (
            [*SMOKE, "methods.mint.kernel.rule=barker"],
            "rule = barker is a name, not a part; write rule@methods.mint.kernel.rule=barker.",
        ),
        (
            [*SMOKE, "methods.sgld.schedules.step_size=fast"],
            "methods.sgld.schedules.step_size = 'fast' is no schedule; give a number, or choose one of conf/schedule",
        ),
        (
            [*SMOKE, "+methods.sgld.schedules.stepsize=1e-4"],
            "a number is a schedule of step_size, temperature, noise_temperature only. Did you mean 'step_size'?",
        ),
        (
            [*SMOKE, "+schedule@methods.sgld.schedules.step_size=fixed"],
            "write schedule@methods.sgld.schedules.step_size=fixed, without the +.",
        ),
        ([*SMOKE, "methods.sgld.schedules.step_size=-1"], "sgld: step_size = -1 must be positive"),
        ([*SMOKE, "method@methods.hmc=hmc"], "to add it, write +method@methods.hmc=hmc."),
        ([*SMOKE, "rule@methods.mink.kernel.rule=barker"], "There is no method 'mink'. Did you mean 'mint'?"),
        (
            [*SMOKE, "rule@methods.sgld.kernel.rule=barker"],
            "methods.sgld.kernel is Unadjusted, which has no part 'rule'; it has dynamics.",
        ),
        (["experiment=shop"], "shows the experiments; one of a project needs --project FOLDER."),
        ([*SMOKE, "+methods.mint.kernel.rule.sigma=1"], "takes no 'sigma'"),
        ([*SMOKE, "device=tpu"], "device = 'tpu' is not available"),
        ([*SMOKE, "dtype=float8"], "dtype = 'float8' is unknown"),
        ([*SMOKE, "executor=maybe"], "executor = 'maybe' is unknown"),
        # The fifth of six methods; the four before it have a compiled loop.
        (
            [*SMOKE, "executor=compiled", "dynamics@methods.sgld.kernel.dynamics=adam"],
            "sgld has no compiled loop here",
        ),
        (
            [*SMOKE, "executor=compiled", "dtype=float32"],
            "mint, mint_stored, tempered_mcmc, mcmc, sgld, sghmc have no compiled loop here",
        ),
        ([*SMOKE, "target.temper=prior"], "temper = 'prior' is unknown"),
        ([*SMOKE, "data.n=0"], "n = 0 must be at least 1"),
        ([*SMOKE, "model.variance=-1"], "positive variances"),
        ([*SMOKE, "+model.variace=1"], "takes no 'variace'"),
        ([*SMOKE, "model._target_=os.system"], "not in a trusted package"),
        (["experiment=gmm_tied_means", "scale=quik"], "There is no scale 'quik'; choose smoke, quick, paper"),
        (["experiment=gmm_tied_means", "scale="], "scale is empty; choose smoke, quick, paper"),
        (["experiment=gmm_tied_means", "scale=null"], "scale is empty; choose smoke, quick, paper"),
        (["-m", *SMOKE, "lam=0.2"], "A sweep needs a key with several values"),
        ([*SMOKE, "--dry-run=false"], "--dry-run takes no value; leave out '=false', or the option."),
        ([*SMOKE, "--cfg="], "--cfg needs a value"),
        ([*SMOKE, "+target.tempr=posterior"], "takes no 'tempr'. Did you mean 'temper'?"),
        ([*SMOKE[:2], "runtime.threads=0"], "runtime.threads = 0 must be a whole number"),
        ([*SMOKE, "runtime.block_seconds=often"], "runtime.block_seconds = 'often' must be a number"),
        (["list", "gmm_tied_mean"], "There is no experiment 'gmm_tied_mean'. Did you mean 'gmm_tied_means'?"),
        (["list", "--all"], "There is no option '--all'"),
        (
            ["gmm_tied_means", "--scale", "smoke"],
            "no option '--scale'. Settings have no dashes: write scale=smoke.",
        ),
        (["--scale", "smoke", "gmm_tied_means"], "write scale=smoke."),
        (["gmm_tied_means", "--lam=0.3"], "write lam=0.3."),
        (["gmm_tied_means", "--methods.mint.schedules.step_size.start", "0.1"], "step_size.start=0.1."),
        (["gmm_tied_means", "--seed", "--dry-run"], "write seed=VALUE."),
        ([*SMOKE, "runtime.force=no"], "runtime.force = 'no' must be true or false"),
        ([*SMOKE, "runtime.report=no"], "runtime.report = 'no' must be true or false"),
        ([*SMOKE, "target.replacement=no"], "replacement = 'no' must be true or false"),
        (
            [*SMOKE, "report.sweep=ess"],
            "report.sweep = 'ess' must be a list of metrics, such as [accept_rate]",
        ),
        (
            [*SMOKE, "+report.colours=[mint]"],
            "report.colours = ['mint'] must be the methods that share a colour",
        ),
        (
            [*SMOKE, "report.sweep=[false,ess]"],
            "report.sweep = [False, 'ess'] must be a list of names of metrics",
        ),
        ([*SMOKE, "+report.colours={a: mint}"], "report.colours.a = 'mint' must be a list of methods"),
        (
            [*SMOKE, "+report.colours={a: [mint], b: [mint]}"],
            "report.colours: mint has two colours, a and b; leave one out",
        ),
        ([*SMOKE, "m=100.5"], "m = 100.5 must be a whole number"),
        ([*SMOKE, "methods.mint.kernel.pairing.m=abc"], "m = 'abc' must be a whole number"),
        ([*SMOKE, "temperature=abc"], "temperature = 'abc' must be a number, or one for each chain"),
        ([*SMOKE, "temperature=[1,2]"], "temperature has 2 values for 4 chains"),
        ([*SMOKE, "data.means=[]"], "means = []"),
        ([*SMOKE, "data.seed=-1"], "seed = -1"),
        ([*SMOKE, "+data.weights=[1,2]"], "weights = [1, 2] must be 2 shares"),
        ([*SMOKE, "model.start=[0]"], "two numbers each"),
        ([*SMOKE, "steps=inf"], "steps = inf must be a whole number"),
        (
            [*SMOKE, "methods=null"],
            "methods = null must be a group of methods; leave it out, or add a method with +",
        ),
        ([*SMOKE, "scales=null"], "scales = null must be a group of scales"),
        (["experiment=null"], "experiment = null names no experiment: choose one of "),
        ([*SMOKE, "data=null"], "data = null names no data: choose one of "),
        (
            [*SMOKE, "monitor={every: 10}"],
            "with monitor=NAME, or +monitor=NAME where there is none yet, and set monitor.every=VALUE.",
        ),
        (
            [*SMOKE, "+monitor={every: 10}"],
            "monitor = {every: 10} names no monitor: choose one of calibration, ",
        ),
        ([*SMOKE, "+methods.mine.label=x"], "methods.mine has no kernel"),
        ([*SMOKE, "seed=abc"], "seed = 'abc' must be a whole number"),
        (
            [*SMOKE, "seed=${oc.decode:${oc.env:SLURM_JOB_ID}}"],
            ": write seed=$SLURM_JOB_ID, which the shell fills in",
        ),
        (
            ["-m", *SMOKE, "title=N(1.0, 2),N(0.1, 2)"],
            "put each value in quotes: \"title='N(1.0, 2)','N(0.1, 2)'\"",
        ),
        ([*SMOKE, "title=N(1.0), N(0.1)"], "put the value in quotes: \"title='N(1.0), N(0.1)'\""),
        ([*SMOKE, "title=a;b,c"], "put the value in quotes: \"title='a;b,c'\""),
        (["predict", "--help"], "'predict' is not a command, an experiment or KEY=VALUE."),
        ([*SMOKE, "title=${scale}ö"], "put the value in quotes: 'title=\"${scale}ö\"'"),
        ([*SMOKE, "+methods.mint.warmup=10"], "mint: warmup = 10 is too short to tune"),
        (
            ["report", "nothing"],
            "'nothing' is not an experiment with runs in outputs, the folder of a run or sweep",
        ),
        (["report"], "There is no run in outputs yet"),
        (["report", "--all"], "There is no option '--all'"),
        (["fetch", "mnst"], "Did you mean 'mnist'?"),
        (["fetch", "--force"], "There is no option '--force'"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(arguments, message, tmp_path, capsys):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# @package _global_\ndefaults: [/modl: ok, _self_]\n",
            "There is no group 'modl' of 'ok'. Did you mean 'model'?",
        ),
        (
            "defaults: [/data: gaussian, /model: gaussian_mean, /method@methods.mcmc: mcmc, _self_]\n",
            "experiment/mine.yaml lacks its first line: # @package _global_",
        ),
        (
            "defaults: [/data: gaussian, /model: gaussian_mean, _self_]\n# @package _global_\n",
            "experiment/mine.yaml lacks its first line: # @package _global_",
        ),
        (
            "# @package global\ndefaults: [/data: gaussian, /model: gaussian_mean, _self_]\n",
            "experiment/mine.yaml has the package 'global', and an experiment is for the whole configuration: "
            "write # @package _global_",
        ),
    ],
)
def test_a_mistake_in_an_experiment_file_is_named(text, message, tmp_path, capsys):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "mine.yaml").write_text(text)
    assert run(["--project", str(tmp_path / "mine"), "mine"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_warning_is_one_line_and_printed_once(capsys, monkeypatch):
    monkeypatch.setattr("mhrun.cli.main._shown", set())
    for _ in range(2):
        _warned(UserWarning("dropout is off\n in layer 1"), UserWarning, "build.py", 170)
    assert capsys.readouterr().err == "mhrun: dropout is off in layer 1\n"


def test_a_wrong_number_of_parameters_comes_before_what_follows_from_it(tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "wide.yaml").write_text(
        "# @package _global_\n"
        "defaults: [/data: regression_sample, /model: logistic, /method@methods.hmc: hmc, _self_]\n"
        "data: {n: 50, dim: 5}\nmodel: {dim: 784}\n"
    )
    assert run(["--config-dir", str(tmp_path), "wide"]) == 2
    err = capsys.readouterr().err
    assert "set model.dim" in err
    assert "leapfrog" not in err


def test_an_output_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run([*SMOKE, f"runtime.outputs={tmp_path}/file/outputs"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_whole_numbers_may_be_written_as_powers_of_ten(capsys):
    assert run([*SMOKE, "m=1e2", "data.n=1e4", "--cfg", "job"]) == 0
    with_floats = compose_config([*SMOKE, "m=1e2", "data.n=1e4"])
    assert digest(with_floats) == digest(compose_config([*SMOKE, "m=100", "data.n=10000"]))
    assert methods_of(with_floats)[0].kernel.pairing.m == 100


def test_a_disk_without_room(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert run([*SMOKE, f"runtime.outputs={tmp_path}/outputs"]) == 2
    assert "free some space, raise thin" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_a_disk_that_fills_up_while_running(tmp_path, capsys, monkeypatch):
    real = os.fsync
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) == 8:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    outputs = f"runtime.outputs={tmp_path}/outputs"
    arguments = [*SMOKE, *FEW, "runtime.block_seconds=0", "runtime.report=false", outputs]
    assert run(arguments) == 2
    assert "is full; free some space and run the same command" in capsys.readouterr().err
    monkeypatch.setattr(os, "fsync", real)
    assert run(arguments) == 0
    assert "resumed at step" in capsys.readouterr().err
    (log,) = tmp_path.glob("outputs/**/log.txt")
    assert "resumed at step" in log.read_text()


def test_help_version_and_fetch(capsys):
    for arguments in ([], ["--help"], ["-h"], ["help"], ["gmm_tied_means", "--help"]):
        assert run(arguments) == 0
        assert "mhrun -m NAME KEY=A,B,C" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mhrun 0.")
    for options in (["--trust", "json"], ["--config-dir", "."]):
        assert run([*options, "--version"]) == 0
        assert capsys.readouterr().out.startswith("mhrun 0.")
        assert run([*options, "completion", "bash"]) == 0
        assert capsys.readouterr().out.startswith("# bash completion")
        assert run([*options, "help", "init"]) == 0
        assert capsys.readouterr().out.startswith("mhrun init DIR")
    assert run(["fetch"]) == 0
    assert "mnist" in capsys.readouterr().out


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "help"])
def test_each_command_has_a_page_of_its_own(command, capsys, tmp_path):
    pages = set()
    for arguments in (
        [command, "--help"],
        [command, "-h"],
        ["help", command],
        ["--project", "nowhere", command, "-h"],
    ):
        assert run(arguments) == 0
        pages.add(capsys.readouterr().out)
    assert len(pages) == 1
    assert pages.pop().startswith(f"mhrun {command}")
    assert not list(tmp_path.iterdir())  # `init --help` makes no folder of that name


def test_the_name_of_an_experiment_is_enough(capsys):
    for arguments in (
        ["gmm_tied_means", "lam=0.3"],
        ["lam=0.3", "gmm_tied_means"],
        ["experiment=gmm_tied_means", "lam=0.3"],
    ):
        assert run([*arguments, "--cfg", "job"]) == 0
        shown = yaml.safe_load(capsys.readouterr().out)
        assert (shown["experiment"], shown["lam"]) == ("gmm_tied_means", 0.3)
    assert run(["-m", "gmm_tied_means", "seed=3,4", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["seed"] == 3


def test_the_message_on_a_missing_launcher_names_the_package():
    """Hydra's own message on a machine without the plugin."""
    lacking = HydraException(
        "In 'config': Could not find 'hydra/launcher/submitit_slurm'\n\nAvailable options:"
    )
    assert "pip install hydra-submitit-launcher" in str(explained(lacking, [], []))


def test_the_configuration_of_a_sweep_is_that_of_its_first_job(capsys):
    assert run(["-m", *SMOKE, "seed=7,8", "--cfg", "job"]) == 0
    captured = capsys.readouterr()
    assert yaml.safe_load(captured.out)["seed"] == 7
    assert "the first of 2 jobs: seed=7" in captured.err


def test_the_configuration_can_be_shown(capsys):
    assert run([*SMOKE, "--cfg", "job"]) == 0
    assert "temperature: 1000.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["--version"],
        ["lst"],
        ["completion", "bash"],
        ["completion", "--line", "mhrun gmm_tied_means rule@"],
    ],
)
def test_light_commands_import_nothing_heavy(arguments, tmp_path):
    code = (
        "import sys; from mhrun.cli.main import run; run(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'hydra', 'matplotlib', 'xarray', 'numba', 'scipy', 'pandas'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_a_run_from_overrides_to_page_and_again(request, tmp_path, capsys):
    arguments = [*SMOKE, *FEW]
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert "report  outputs/gmm_tied_means/" in captured.out
    assert "mint: done" in captured.err
    page = tmp_path / captured.out.split("report  ")[1].strip()
    assert "<h1>Mixture of Gaussians with tied means</h1>" in page.read_text()
    assert run(arguments) == 0
    assert "exists already" in capsys.readouterr().err
    assert run(["list"]) == 0
    assert "smoke complete" in capsys.readouterr().out
    request.getfixturevalue("unrendered")
    run_folder = page.parent.parent
    page.unlink()  # as after a stop in the report
    assert run(arguments) == 0
    err = capsys.readouterr().err
    assert "This run is complete (" in err
    assert "making its report" in err
    assert "exists already" not in err
    page.unlink()
    assert run(["report"]) == 0
    assert capsys.readouterr().out.count("index.html") == 1
    assert page.is_file()
    for names in ([], ["gmm_tied_means"], [str(run_folder)], [run_folder.name[:6]]):
        folders, sweeps = chosen_runs(names, Path("outputs"))
        assert [folder.path.resolve() for folder in folders] == [run_folder.resolve()]
        assert sweeps == []


def test_a_broken_report_function_is_reported(capsys):
    arguments = [*SMOKE, *FEW, "report.metrics=mint.figure1.metric"]
    assert run(arguments) == 2
    assert "there is no 'mint.figure1.metric'" in capsys.readouterr().err


MODEL = """
import torch

class Location:
    dim, names = 1, ("mu",)
    def init(self, chains, draws):
        return torch.zeros(chains, 1, dtype=torch.float64)
    def log_prior(self, theta):
        return -0.5 * theta[:, 0] ** 2 / 100
    def log_lik(self, theta, rows):
        return -torch.log1p((rows["x"] - theta) ** 2)
"""


@pytest.mark.slow
def test_a_model_of_ones_own(tmp_path, capsys, monkeypatch, unrendered):
    monkeypatch.setenv("MHRUN_TRUST", "")  # put back afterwards
    for name, text in {
        "cauchy.py": MODEL,
        "model/cauchy.yaml": "_target_: cauchy.Location\n",
        "experiment/mine.yaml": "# @package _global_\n"
        "defaults: [/data: mixture, /model: cauchy, /method@methods.mint: mint]\n"
        "temperature: 10.0\nm: 50\nchains: 2\nsteps: 60\nwarmup: 50\n"
        "data: {n: 500, means: [0.0, 1.0], variance: 2.0}\n",
    }.items():
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    arguments = ["--config-dir", "mine", "experiment=mine"]
    assert run(arguments) == 2
    assert (
        "if you trust it, pass --project DIR where it is in a project of yours, else --trust PACKAGE"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "outputs").exists()
    assert run([*arguments, "--trust=cauchy"]) == 0
    assert "outputs/mine/" in capsys.readouterr().out
    assert run(["-m", *arguments, "m=20,50", "--trust", "cauchy"]) == 0
    assert run(["list", "--config-dir", "mine", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.count("quick complete") == 2
    assert "gmm_tied_means" not in out


def test_methods_are_listed_each_in_a_line(tmp_path, capsys):
    """Those of a project too; an experiment of that name comes first."""
    (tmp_path / "mine" / "method").mkdir(parents=True)
    (tmp_path / "mine" / "method" / "hop.yaml").write_text(
        "# Moves that hop\n# and skip.\ndefaults: [mint]\n"
    )
    assert run(["list", "--config-dir", "mine", "methods"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.partition("\n\n")[0].splitlines())
    assert set(method_names()) | {"hop"} == set(lines)
    assert lines["hop"] == "Moves that hop and skip."
    assert lines["mhminibatch"] == "MHminibatch (Seita et al. 2017, Algorithm 1)."
    (tmp_path / "mine" / "experiment").mkdir()
    (tmp_path / "mine" / "experiment" / "methods.yaml").write_text(
        "# @package _global_\ntitle: All of them\n"
    )
    assert run(["list", "--config-dir", "mine", "methods"]) == 0
    assert "All of them" in capsys.readouterr().out


TABLE = """
import pandas as pd

def table(run):
    '''A computation of ours.'''
    return pd.DataFrame({"value": [run.config["seed"] + 0.25]}, index=["x"])
"""


def test_an_experiment_may_be_a_computation_without_methods(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MHRUN_TRUST", "")  # put back afterwards
    place = tmp_path / "mine" / "experiment"
    place.mkdir(parents=True)
    (tmp_path / "mine" / "computed.py").write_text(TABLE)
    (place / "sums.yaml").write_text(
        "# @package _global_\ntitle: Sums\nreport: {tables: {ours: computed.table}}\n"
    )
    (place / "bare.yaml").write_text(
        "# @package _global_\ndefaults: [/data: gaussian, /model: gaussian_mean]\ndata: {n: 10}\n"
    )
    arguments = ["--config-dir", "mine", "--trust", "computed"]
    assert run([*arguments, "experiment=sums", "seed=2"]) == 0
    page = tmp_path / capsys.readouterr().out.split("report  ")[1].strip()
    assert "A computation of ours" in page.read_text()
    assert page.with_name("ours.csv").read_text().splitlines()[1] == "x,2.25"
    assert '"status": "complete"' in (page.parents[1] / "summary.json").read_text()
    assert run([*arguments, "experiment=sums", "seed=2"]) == 0
    assert "exists already" in capsys.readouterr().err
    for name in ("bare", "sums"):
        assert run([*arguments, f"experiment={name}", *["~report.tables"] * (name == "sums")]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert captured.out == ""
        assert "there is no method to run" in captured.err or name == "sums"
    assert len(list((tmp_path / "outputs").glob("*/*/summary.json"))) == 2  # and latest


@pytest.mark.slow
def test_a_folder_of_user_configurations(tmp_path, capsys, unrendered):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "own.yaml").write_text(
        "# @package _global_\n"
        "defaults: [/data: mixture, /model: tied_means, /method@methods.a: mcmc]\n"
        "temperature: 1.0\nm: 10\nchains: 2\nsteps: 60\nwarmup: 50\n"
        "data: {n: 500, means: [0.0, 1.0], variance: 2.0}\n"
    )
    assert run(["--config-dir", "mine", "experiment=own"]) == 0
    assert "outputs/own/" in capsys.readouterr().out
    assert run(["--config-dir", "mine", "experiment=onw"]) == 2
    assert "Did you mean 'own'?" in capsys.readouterr().err
