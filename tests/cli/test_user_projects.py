"""Models, data and code of the user's own: projects, what is part of a run's identity, and the tutorial as written."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from mhrun.build import build, trusted_object
from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.main import run
from mhrun.cli.parsing import parse_command_line
from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.models.user_function import Named, UserFunction
from mhrun.paths import CONF, PACKAGE, STARTERS
from mhrun.random import Draws, Streams
from mhrun.report.build import report_parts
from mhrun.report.run import Run
from mhrun.store import sources
from mhrun.store.folder import RunFolder
from mhrun.store.identity import method_digest
from mhrun.target import Target

TUTORIAL = PACKAGE.parent / "docs" / "own-model.md"


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Let a test trust projects, and forget their modules afterwards."""
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    monkeypatch.chdir(tmp_path)
    path, there = list(sys.path), set(sys.modules)
    forget()
    yield
    sys.path[:] = path
    for name in set(sys.modules) - there:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    forget()


def forget():
    """A process keeps what it knows of code for as long as it runs that code."""
    sources._closure.cache_clear()
    sources._digest_of_code.cache_clear()


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MODEL = "import helper\ndef log_lik(theta, rows):\n    return helper.square(rows.x[:, 0] - theta.mu)\n"
HELPER = "from deep.down import half\ndef square(v):\n    return -half * v ** 2\n"
FILES = {
    "own.py": MODEL,
    "helper.py": HELPER,
    "deep/__init__.py": "",
    "deep/down.py": "half = 0.5\n",
    "unused.py": "nothing = 1\n",
    "rows.csv": "a,b\n1,x\n2,y\n4,x\n3,y\n",
    "conf/model/location.yaml": "defaults: [user_function, _self_]\nlog_lik: own.log_lik\nparameters: {mu: 1}\n",
    "conf/data/rows.yaml": "defaults: [table, _self_]\nfile: rows.csv\nfeatures: [a]\n",
    "conf/experiment/mine.yaml": "# @package _global_\n"
    "defaults: [/data: rows, /model: location, /method@methods.a: mcmc]\n"
    "chains: 2\nsteps: 40\nwarmup: 50\nruntime: {report: false}\n",
}


def digest(*arguments):
    forget()
    apart = parse_command_line(["--project", "mine", "experiment=mine", *arguments])
    return RunFolder.of(compose_config(apart.rest, apart.folders)).digest


# --- Projects and identity --------------------------------------------------------------------------------


def test_a_project_runs_from_any_folder_and_is_found_again(tmp_path, capsys, monkeypatch):
    write(tmp_path / "mine", FILES)
    (tmp_path / "elsewhere").mkdir()
    outputs = f"runtime.outputs={tmp_path / 'outputs'}"
    assert run(["--project", "mine", "experiment=mine", outputs]) == 0
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    assert run(["--project", "../mine", "experiment=mine", outputs]) == 0
    assert "exists already" in capsys.readouterr().err
    assert run(["list", "--project", "../mine", "mine", outputs]) == 0
    assert "complete" in capsys.readouterr().out
    assert run(["list", "mine", outputs]) == 0  # what has been run is listed, whoever's it is
    assert "complete" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"there is no 'figures\.slopes'.*give --project DIR"):
        report_parts({"tables": {"slopes": "figures.slopes"}})
    assert len(list((tmp_path / "outputs" / "mine").glob("*/summary.json"))) == 2  # and latest


def test_the_users_files_are_part_of_what_a_run_is(tmp_path):
    write(tmp_path / "mine", FILES)
    first = digest()
    assert digest() == first
    seen = {first}
    for name, text in {
        "own.py": MODEL + "\n",
        "helper.py": HELPER + "\n",
        "deep/down.py": "half = 0.6\n",
        "rows.csv": FILES["rows.csv"] + "5,x\n",
    }.items():
        (tmp_path / "mine" / name).write_text(text)
        changed = digest()
        assert changed not in seen, name
        seen.add(changed)
        (tmp_path / "mine" / name).write_text(FILES[name])
    assert digest() == first
    (tmp_path / "mine" / "unused.py").write_text("nothing = 2\n")
    assert digest() == first
    (tmp_path / "mine").rename(tmp_path / "moved")
    (tmp_path / "mine").symlink_to(tmp_path / "moved")
    assert digest() == first


@pytest.mark.slow
def test_a_method_depends_on_the_files_that_it_uses(tmp_path):
    """Work on one method of one's own, and the others are taken from the run before."""
    walk = "import mhrun\nclass Walk(mhrun.RandomWalk):\n    pass\n"
    write(tmp_path / "mine", FILES | {"walks.py": walk, "conf/proposal/walk.yaml": "_target_: walks.Walk\n"})
    arguments = ("+method@methods.b=mcmc", "proposal@methods.b.kernel.proposal=walk")

    def digests(*more):
        forget()
        apart = parse_command_line(["--project", "mine", "experiment=mine", *arguments, *more])
        config = compose_config(apart.rest, apart.folders)
        return {name: method_digest(config, name) for name in config["methods"]}

    first = digests()
    assert digests("~methods.b") == {"a": first["a"]}
    assert digests("+method@methods.c=mcmc") | first == digests("+method@methods.c=mcmc")
    for name, changed in {
        "walks.py": {"b"},
        "own.py": {"a", "b"},
        "deep/down.py": {"a", "b"},
        "rows.csv": {"a", "b"},
    }.items():
        before = (tmp_path / "mine" / name).read_text()
        (tmp_path / "mine" / name).write_text(before + ("5,x\n" if name.endswith("csv") else "\n"))
        now = digests()
        assert {method for method in now if now[method] != first[method]} == changed, name
        (tmp_path / "mine" / name).write_text(before)
    assert digests() == first


def test_all_files_that_a_module_reads_are_part_of_a_run(tmp_path, monkeypatch):
    """What is imported from where it stands, by what was itself imported by the name of a thing in it; and folders
    without an __init__.py."""
    for name, text in {
        "pack/__init__.py": "from .helpers import f",
        "pack/helpers.py": "f = 1",
        "pack/models.py": "from .mod import attribute",
        "pack/mod.py": "from .deep.down import c\nattribute = c",
        "pack/deep/down.py": "from ..up import d\nc = d",
        "pack/up.py": "d = 1",
        "pack/unread.py": "",
        "bare/model.py": "from bare.other import x",
        "bare/other.py": "x = 1",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setenv("MHRUN_FOLDERS", str(tmp_path))
    monkeypatch.setenv("MHRUN_TRUST", "pack,bare")
    names = ("__init__", "deep/down", "helpers", "mod", "models", "up")
    assert list(sources.sources({"model": {"_target_": "pack.models.Model"}})) == [
        f"pack/{name}.py" for name in names
    ]
    found = sources.sources({"model": {"_target_": "bare.model.Model"}})
    assert list(found) == ["bare/model.py", "bare/other.py"]
    (tmp_path / "a.csv").write_text("x\n1\n")
    for data in ({"parts": [{"file": "a.csv"}]}, {"files": ["a.csv"]}, {"files": [{"file": "a.csv"}]}):
        assert "a.csv" in sources.sources({"data": data})
    model = {
        "_target_": "bare.model.Model",
        "module": {"checkpoint": "net.pt", "name": "b.c", "start": "zeros"},
    }
    assert "net.pt" not in sources.sources({"model": model})
    digests = []
    for content in (b"1", b"2"):
        (tmp_path / "net.pt").write_bytes(content)
        digests.append(sources.sources({"model": model})["net.pt"])
        assert sources.sources({"methods": {"a": {"model": model}}})["net.pt"] == digests[-1]
    assert digests[0] != digests[1]


def test_runs_without_files_of_the_users_are_who_they_were():
    assert "sources" not in compose_config(["experiment=gmm_tied_means"])


def test_a_large_file_is_known_by_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_WHOLE", 1000)
    monkeypatch.setattr(sources, "_SAMPLE", 16)
    path = tmp_path / "large.npy"
    path.write_bytes(bytes(100_000))
    first = sources.digest_of_data(path)
    assert sources.digest_of_data(path) == first
    path.write_bytes(bytes(100_001))
    assert sources.digest_of_data(path) != first


def test_an_invalid_project_gets_one_line(tmp_path, capsys):
    write(tmp_path / "taken", {"json.py": "", "conf/model/x.yaml": "{}"})
    write(tmp_path / "same", {"conf/rule/barker.yaml": "{}"})
    for where, message in (
        ("taken", "has the name of another package"),
        ("same", "has the name of one of mhrun's own"),
        ("nowhere", "no such folder, nor an installed package"),
    ):
        assert run(["--project", where, "experiment=mine"]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_an_installed_package_is_a_project_too(tmp_path, monkeypatch, capsys):
    inside = {f"lib/ownpack/{name}": text for name, text in FILES.items() if name.startswith("conf")}
    inside["lib/ownpack/__init__.py"] = ""
    inside["lib/ownpack/own.py"] = (
        "def log_lik(theta, rows):\n    return -0.5 * (rows.x[:, 0] - theta.mu) ** 2\n"
    )
    inside["lib/ownpack/conf/model/location.yaml"] = FILES["conf/model/location.yaml"].replace(
        "own.", "ownpack.own."
    )
    write(tmp_path, inside | {"rows.csv": FILES["rows.csv"]})
    monkeypatch.syspath_prepend(tmp_path / "lib")
    assert run(["--project", "ownpack", "experiment=mine"]) == 0
    assert "outputs/mine/" in capsys.readouterr().out


def test_what_merely_passes_through_the_users_code_is_refused(tmp_path):
    write(
        tmp_path / "mine",
        {"hostile.py": "from os import system\nfrom mhrun.cli.main import run\nimport os\n"},
    )
    parse_command_line(["--project", "mine", "experiment=mine"])
    for name in ("hostile.system", "hostile.run", "hostile.os", "hostile.os.system"):
        with pytest.raises(UserError):
            trusted_object(name)
        with pytest.raises(UserError):
            build({"_target_": "mhrun.models.user_function.UserFunction", "log_lik": name, "dim": 1})


def test_an_error_in_the_users_file_is_a_line(tmp_path, capsys):
    write(tmp_path / "mine", FILES | {"own.py": "import torch\ndef log_lik(theta, rows)\n    pass\n"})
    assert run(["--project", "mine", "experiment=mine"]) == 2
    assert "'own' cannot be imported: SyntaxError" in capsys.readouterr().err
    write(tmp_path / "mine", {"own.py": "def log_lik(theta, rows):\n    return rows.z - theta.mu\n"})
    assert run(["--project", "mine", "experiment=mine"]) == 2
    err = capsys.readouterr().err
    assert "log_lik failed: AttributeError: there is no 'z' here, but x (own.py, line 2)" in err
    assert err.count("\n") == err.count("mhrun:") or "Traceback" not in err


FAILING = """
from mhrun.rules.metropolis import Metropolis
class Failing(Metropolis):
    calls = 0
    def decide(self, contest, draws):
        Failing.calls += 1
        if Failing.calls > 70:
            raise ValueError("my bug")
        return super().decide(contest, draws)
"""


@pytest.mark.slow
def test_a_failure_of_the_users_code_names_the_method_and_what_is_kept(tmp_path, capsys):
    experiment = FILES["conf/experiment/mine.yaml"].replace(
        "a: mcmc]", "a: mcmc, /method@methods.b: mcmc, override /rule@methods.b.kernel.rule: failing]"
    )
    files = {"conf/rule/failing.yaml": "_target_: failing.Failing\n", "failing.py": FAILING}
    write(tmp_path / "mine", FILES | files | {"conf/experiment/mine.yaml": experiment})
    arguments = ["--project", "mine", "experiment=mine", "executor=torch", "runtime.jobs=1"]
    arguments += [f"methods.{name}.schedules.step_size.start=0.5" for name in "ab"]
    assert run(arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.match(
        r"mhrun: b stopped after step \d+ of 90: ValueError: my bug \(failing.py, line 8\)\. ", last
    )
    assert "Finished methods are kept (a, in outputs/mine/" in last
    assert "Mend your code and run the same command again" in last
    assert run(["list", "mine"]) == 0
    assert "\n      ValueError: my bug\n" in capsys.readouterr().out
    (path,) = Path("outputs/mine").glob("[0-9a-f]*[0-9a-f]")
    folder = RunFolder(path)
    folder.write_summary(folder.summary() | {"error": ""})  # as of earlier versions
    assert run(["list", "mine"]) == 0
    assert f"      see {path / 'log.txt'}\n" in capsys.readouterr().out
    write(tmp_path / "mine", {"failing.py": FAILING.replace("> 70", "> 1e9")})
    forget()
    del sys.modules["failing"]
    assert run(arguments) == 0
    assert "a: taken from run" in capsys.readouterr().err


# --- A model as functions ---------------------------------------------------------------------------------

REGRESSION = """
import torch
from torch.distributions import Normal, StudentT
def log_lik(theta, rows):
    return StudentT(4.0, theta.a + rows.x @ theta["b"], theta.s.exp()).log_prob(rows.y)
def log_prior(theta):
    return Normal(0.0, 2.0).log_prob(theta.b).sum() + Normal(1.0, 3.0).log_prob(theta.a)
def plain(theta, rows):
    return -(rows.y - theta[0]) ** 2
def summed(theta, rows):
    return plain(theta, rows).sum()
"""


@pytest.fixture
def functions(tmp_path):
    write(tmp_path / "mine", {"regression.py": REGRESSION})
    parse_command_line(["--project", "mine", "experiment=mine"])


def test_functions_make_a_model(functions, rng):
    model = UserFunction(
        "regression.log_lik",
        "regression.log_prior",
        {"a": 1, "b": 3, "s": 1},
        start={"a": 2.0, "b": [1, 2, 3]},
    )
    assert list(model.names) == ["a", "b[0]", "b[1]", "b[2]", "s"]
    assert model.init(2, Draws(Streams(0, 2), 0)).tolist() == [[2, 1, 2, 3, 0]] * 2
    x, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    target = Target(model, Dataset.of({"x": x, "y": y}))
    theta = torch.from_numpy(rng.normal(size=(4, 5)))
    found = model.log_lik(theta, target.data.part(0, 50)).numpy()
    own = model.log_lik(theta, target.data.rows(torch.arange(50).expand(4, 50))).numpy()
    for c, (a, *b, s) in enumerate(theta.tolist()):
        wanted = stats.t.logpdf(y, 4.0, a + x @ b, np.exp(s))
        assert found[c] == pytest.approx(wanted)
        assert own[c] == pytest.approx(wanted)
        prior = stats.norm.logpdf(b, 0, 2).sum() + stats.norm.logpdf(a, 1, 3)
        assert float(model.log_prior(theta)[c]) == pytest.approx(prior)
    point = theta.clone().requires_grad_()
    (grad,) = torch.autograd.grad(target.log_density(point).sum(), point)
    assert torch.allclose(target.gradients.full(theta, torch.ones(4)), grad)


def test_functions_that_do_not_fit_are_reported(functions, rng):
    rows = Dataset.of({"x": rng.normal(size=(6, 3)), "y": rng.normal(size=6)}).part(0, 6)
    assert UserFunction("regression.plain", dim=1).log_lik(torch.zeros(2, 1), rows).shape == (2, 6)
    for make, message in (
        (lambda: UserFunction("regression.nothing", dim=1), "there is no 'regression.nothing'"),
        (lambda: UserFunction("regression.plain"), "needs parameters"),
        (lambda: UserFunction("regression.plain", dim=-1), "at least one parameter"),
        (lambda: UserFunction("regression.plain", parameters=["a", "b"]), "names with sizes"),
        (lambda: UserFunction("regression.plain", parameters={"a": 0}), "is not a size"),
        (lambda: UserFunction("regression.plain", dim=2, start=[1, 2, 3]), "does not fit"),
        (
            lambda: UserFunction("regression.plain", parameters={"a": 2}, start={"b": 1}),
            "start.b is not a parameter",
        ),
        (
            lambda: UserFunction("regression.summed", dim=1).log_lik(torch.zeros(2, 1), rows),
            "one value per datum",
        ),
        (
            lambda: UserFunction("regression.log_lik", parameters={"a": 1, "b": 4, "s": 1}).log_lik(
                torch.zeros(2, 6), rows
            ),
            r"log_lik failed: RuntimeError.*\(regression.py, line 5\); it had theta \(6,\), x \(6, 3\)",
        ),
    ):
        with pytest.raises(UserError, match=message):
            make()


def test_a_tensor_may_have_the_name_of_a_method_of_a_mapping():
    value = torch.tensor(3.0)
    named = Named({"values": value, "items": value + 1, "x": value + 2})
    assert [float(named.values), float(named.items), float(named["values"])] == [3, 4, 3]
    assert list(named.keys()) == ["values", "items", "x"]
    assert {**named} == dict(named)
    with pytest.raises(AttributeError, match="there is no 'y' here, but values, items, x"):
        _ = named.y


CONSTRAINED = {
    "own.py": "from torch.distributions import Normal\n"
    "def log_lik(theta, rows):\n"
    "    each = Normal(theta.means, theta.scale).log_prob(rows.x) + theta.shares.log()\n"
    "    return each.logsumexp(-1)\n",
    "conf/model/location.yaml": "defaults: [user_function, _self_]\nlog_lik: own.log_lik\nparameters:\n"
    "  shares: Dirichlet([1, 1])\n"
    "  means: {shape: 2, prior: 'Normal(0, 3)', constraint: ordered}\n"
    "  scale: HalfNormal(1.0)\n",
}


@pytest.mark.slow
def test_runs_are_reported_and_compared_in_the_users_coordinates(tmp_path, capsys, unrendered):
    """A simplex has more numbers than the chains have coordinates."""
    write(tmp_path / "mine", FILES | CONSTRAINED)
    outputs = f"runtime.outputs={tmp_path / 'outputs'}"
    arguments = ["experiment=mine", outputs, "+methods.a.starts=[[0.3, 0.7, -1.0, 2.0, 0.8]]"]
    assert run(["--project", "mine", *arguments, "runtime.report=true"]) == 0
    found = Run(RunFolder((tmp_path / "outputs" / "mine" / "latest").resolve()))
    assert list(found.target.model.names) == ["shares[0]", "shares[1]", "means[0]", "means[1]", "scale"]
    assert found.target.dim == 4
    draws = found.draws("a")
    assert draws.shape == (2, 40, 5)
    assert np.allclose(draws[..., :2].sum(-1), 1)
    assert (draws[..., 2] < draws[..., 3]).all()
    with found.trace("a") as trace:
        assert np.array_equal(draws[..., 4], trace["posterior"]["scale"])
        assert trace["warmup_posterior"]["scale"].shape == (2, 50)
    table = (found.folder.report / "posterior.csv").read_text()
    assert "shares[1]" in table
    assert found.methods["a"]["prior"].startswith("shares: Dirichlet([1, 1]); means: Normal(0, 3); scale")
    assert run(["compare", "--project", "mine", "mine", outputs]) == 0
    assert "R-hat above 1.01" in capsys.readouterr().err  # of 40 draws


# --- The tutorial -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_tutorial_runs_as_written(tmp_path, capsys, monkeypatch, unrendered):
    monkeypatch.setattr("mhrun.cli.sweep.job.usable_cores", lambda: 1)  # a test is one of several processes
    shown = re.findall(r'```(\w+)(?: title="([^"]+)")?\n(.*?)```', TUTORIAL.read_text(), re.DOTALL)
    assert [kind for kind, _, _ in shown].count("bash") == 5
    for kind, name, text in shown:
        if name:
            path = tmp_path / name
            if (STARTERS / "regression" / name.partition("/")[2]).exists():
                assert path.read_text() == text, name
            else:
                write(tmp_path, {name: text})
        elif kind == "bash":
            for line in text.splitlines():
                command, _, remark = line.partition("  #")
                status = 1 if "exits with 1" in remark else 0
                arguments = shlex.split(command)
                assert arguments[0] == "mhrun"
                assert run(arguments[1:]) == status, (line, capsys.readouterr())
    out = capsys.readouterr().out
    assert "4 fail" in out
    pages = list((tmp_path / "outputs" / "robust").glob("*/report/index.html"))
    assert len(pages) == 4  # and latest
    assert "Mean and standard deviation of each parameter" in pages[0].read_text()


def test_init_leaves_what_is_there(tmp_path, capsys):
    assert run(["init", "mine"]) == 0
    assert "mhrun --project mine robust" in capsys.readouterr().out
    table = ["--data", "rows.csv"]
    for arguments in (["init", "mine"], ["init"], ["init", "a", "b"], ["init", "a", "--network", *table]):
        assert run(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_data_and_a_model_are_enough(tmp_path, capsys):
    """No experiment, no method and no step size are named: a default method takes their place, and says so."""
    rows = "\n".join(f"{x:.3f}" for x in torch.linspace(-1.0, 3.0, 40).tolist())
    model = "def log_lik(theta, rows):\n    return -0.5 * (rows.x[:, 0] - theta.mu) ** 2\n"
    conf = "defaults: [user_function, _self_]\nlog_lik: plain_rows.log_lik\nparameters: {mu: 'Normal(0.0, 10.0)'}\n"
    write(tmp_path, {"rows.csv": f"x\n{rows}\n", "plain_rows.py": model, "conf/model/mine.yaml": conf})
    arguments = ["--project", ".", "data=table", "data.file=rows.csv", "data.standardise=false", "model=mine"]
    few = ["steps=400", "warmup=100", "runtime.report=false", "runtime.threads=1"]
    assert run([*arguments, *few]) == 0, capsys.readouterr().err
    err = capsys.readouterr().err
    assert (
        err.count("no method was named: Hamiltonian Monte Carlo with an acceptance test on all data (HMC)")
        == 1
    )
    assert "hmc: pilot: step size" in err
    about = json.loads(Path("outputs/own/latest/summary.json").read_text())["methods"]["hmc"]
    assert about["pilot"]["settled"]
    assert abs(about["accept_rate"] - about["pilot"]["acceptance"]) < 0.15
    assert about["likelihood_evals"] > 4 * 500 * 40  # with those of the pilot
    # Words without a model are still a mistake in one line.
    assert run(arguments[:-1]) == 2
    assert "write +data=NAME" in capsys.readouterr().err


def test_methods_need_no_other_setting(tmp_path, capsys):
    """On a table with logistic regression, which says that it has no intercept."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(80, 2, generator=g)
    y = (torch.rand(80, generator=g) < torch.sigmoid(x[:, 0])).int()
    lines = [f"{a:.4f},{b:.4f},{c}" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True)]
    write(tmp_path, {"rows.csv": "\n".join(["a,b,y", *lines]) + "\n"})
    arguments = ["data=table", "data.file=rows.csv", "data.target=y", "data.outcome=sign", "model=logistic"]
    arguments += [
        "steps=30",
        "warmup=50",
        "chains=2",
        "executor=torch",
        "runtime.report=false",
    ]
    names = ("tunamh", "smh2", "mh_ss", "mhbt_rsgld", "sgbd")
    assert run([*arguments, *(f"+method@methods.{name}={name}" for name in names)]) == 0
    assert capsys.readouterr().err.count("the regression has no intercept") == 1
    found = json.loads(Path("outputs/own/latest/summary.json").read_text())["methods"]
    assert sorted(found) == sorted(names)
    for name in names:
        assert found[name]["pilot"]["step_size"] > 0
    assert found["mhbt_rsgld"]["pilot"]["acceptance"] == pytest.approx(0.387)
    # The columns
    assert compose_config([*arguments, "+method@methods.a=smh2"])["model"]["names"] == ["a", "b"]
    capsys.readouterr()
    compose_config([*arguments, "+method@methods.a=smh2", "data.intercept=true"])
    assert "intercept" not in capsys.readouterr().err
    one = compose_config([*arguments, "+method@methods.a=smh2", "data.features=[a]", "+model.names=[w]"])
    assert one["model"]["names"] == ["w"]
    schedules = compose_config([*arguments, "+method@methods.a=mhbt_rsgld"])["methods"]["a"]["schedules"]
    assert schedules["temperature"]["temperature"] == schedules["noise"]["noise_temperature"] == 1.0


ASKING = {  # methods that need more than data, a model and their name, and what they ask for first
    "cmint": "step_size",
    "mintee": "rungs",
    **dict.fromkeys(("adagrad", "adam", "planar_flow", "rmsprop", "sgd", "sgd_momentum"), "m"),
    **dict.fromkeys(("snapshot_sgd", "snapshot_sgd_momentum"), "m"),
}


@pytest.mark.slow
def test_a_method_needs_its_name_only_or_gets_one_line(tmp_path):
    """Optimisers, a variational approximation and ladders of minibatches need settings of the user's."""
    write(tmp_path, {"rows.csv": "x\n" + "1\n2\n"})
    arguments = ["data=table", "data.file=rows.csv", "model=gaussian_mean"]
    for place in (PACKAGE.parent / "conf" / "method").glob("*.yaml"):
        name = place.stem
        if name in ASKING:
            with pytest.raises(
                UserError, match=rf"'{ASKING[name]}', which [\w.]+ takes, is not given; add \+"
            ):
                compose_config([*arguments, f"+method@methods.a={name}"])
        else:
            assert compose_config([*arguments, f"+method@methods.a={name}"])["methods"]["a"], name


EXPERIMENT = """# @package _global_
defaults:
  - /data: gaussian
  - /model: gaussian_mean
  - /method@methods.walk: mcmc
  - override /schedule@methods.walk.schedules.step_size: fixed
  - _self_
steps: ${scales.${scale}.steps}
scales:
  smoke: {warmup: 10, steps: 30}
"""


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        (
            "{scale}.steps",
            "{scale}.stps",
            "steps is scales.smoke.stps, which is not given; scales.smoke has warmup, steps. Write 'stps' and "
            "'steps' alike.",
        ),
        (
            "override /schedule@methods.walk.",
            "override /schedule@methods.wlk.",
            "experiment/mine.yaml: 'override /schedule@methods.wlk.schedules.step_size' has nothing to override: "
            "nothing that its defaults name has this group. Correct it, or leave out the word override.",
        ),
    ],
)
def test_names_in_a_file_that_lead_nowhere_are_named(tmp_path, written, instead, message):
    text = EXPERIMENT.replace(written, instead)
    assert text != EXPERIMENT
    write(tmp_path, {"conf/experiment/mine.yaml": text})
    with pytest.raises(UserError) as caught:
        compose_config(["experiment=mine", "scale=smoke"], [tmp_path / "conf"])
    assert str(caught.value) == message


def test_a_value_computed_from_an_unknown_number_of_data_must_be_given(tmp_path):
    """A table's number of rows is no setting, so that adding data.n would be refused."""
    write(tmp_path, {"rows.csv": "x\n" + "1\n2\n"})
    arguments = ["data=table", "data.file=rows.csv", "model=gaussian_mean"]
    arguments += ["+method@methods.a=mintee", "+rungs=2", "+ratio=2", "chains=2"]
    with pytest.raises(UserError, match=r"give methods\.a\.kernel\.sizes a value\.$"):
        compose_config(arguments)
    method = compose_config([*arguments, "methods.a.kernel.sizes=[2,1]"])["methods"]["a"]
    assert method["kernel"]["sizes"] == [2, 1]


def test_a_part_outside_conf_is_named(tmp_path, capsys):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text((CONF / "method" / "mcmc.yaml").read_text())
    arguments = [
        "--project",
        str(tmp_path),
        "experiment=gmm_tied_means",
        "+method@methods.mine=mine",
        "--dry-run",
    ]
    assert run(arguments) == 2
    assert f"move it to '{tmp_path / 'conf' / 'method'}'" in capsys.readouterr().err
