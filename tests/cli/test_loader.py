"""Configurations that are put together once: what Hydra's own loader makes of the same overrides, and its errors."""

from __future__ import annotations

import pickle

import pytest
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

from mhrun.cli.configuration import loader
from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.composition import search_path, version_base
from mhrun.cli.configuration.resolvers import register_resolvers
from mhrun.cli.main import run
from mhrun.paths import CONF
from mhrun.store.folder import RunFolder

GMM = "experiment=gmm_tied_means"
OTHER = "rule@methods.mint.kernel.rule=barker"
RULES = ("barker", "metropolis", "austere")


def loaded(kind, overrides, mode=RunMode.RUN):
    """Return what a loader makes of some overrides, or its error."""
    register_resolvers()
    with initialize_config_dir(str(CONF), "mhrun", **version_base()):
        made = kind(create_config_search_path(str(CONF)))
        try:
            found = made.load_configuration("config", [*overrides], mode, from_shell=False)
        except HydraException as error:
            return type(error), str(error), type(error.__cause__)
        return OmegaConf.to_container(found), OmegaConf.is_struct(found)


@pytest.mark.parametrize(
    "overrides",
    [
        (GMM, "scale=smoke", "lam=0.3", "~methods.mint", "+methods.sgld.steps=30"),
        (GMM, OTHER, "seed=4", "hydra.verbose=true"),
        (GMM, "data=mixture", "data.n=40", "hydra/launcher=joblib", "hydra.launcher.n_jobs=3"),
        (GMM, "data={}"),  # a group that is set to values
        (GMM, "lam=1", "steps=abc", "lam=2"),
        ("+nothing=3", "nothing=4"),
        (GMM, "nothing=3"),
        (GMM, "~nothing"),
        (GMM, "model.a.b=3"),
        ("experiment=nothing", "seed=1"),
    ],
)
def test_it_loads_what_hydra_does(overrides):
    expected = loaded(ConfigLoaderImpl, overrides)
    assert loaded(loader.Loader, overrides) == expected
    assert loaded(loader.Loader, overrides) == expected  # now that the files are put together


@pytest.mark.parametrize("chosen", ["one", "two"])
def test_defaults_may_refer_to_choices(tmp_path, chosen):
    for name, text in {
        "first/one.yaml": "a: 1\n",
        "first/two.yaml": "defaults: [deep/below, _self_]\na: 2\n",
        "first/deep/below.yaml": "c: 4\n",
        "second/one.yaml": "b: 1\n",
        "second/two.yaml": "b: 2\n",
        "experiment/refers.yaml": "# @package _global_\ndefaults: [/first: one, /second: '${first}', _self_]\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    overrides = ("experiment=refers", f"first={chosen}", f"hydra.searchpath=[{tmp_path.as_uri()}]")
    expected = loaded(ConfigLoaderImpl, overrides)
    assert expected[0]["second"]["b"] == expected[0]["first"]["a"] == {"one": 1, "two": 2}[chosen]
    assert loaded(loader.Loader, overrides) == expected


def test_of_a_sweep_too():
    overrides = (GMM, "scale=smoke", "seed=1,2", "lam=0.3")
    expected = loaded(ConfigLoaderImpl, overrides, RunMode.MULTIRUN)
    assert loaded(loader.Loader, overrides, RunMode.MULTIRUN) == expected
    assert "requires --multirun" in loaded(loader.Loader, ("seed=range(1,3)",))[1]


@pytest.fixture
def counted(monkeypatch):
    """The overrides of each time that files are put together, none being so yet."""
    monkeypatch.setattr(loader, "_bundled_compositions", {})
    times, real = [], ConfigLoaderImpl.load_configuration

    def counting(self, name, overrides, *others):
        times.append(overrides)
        return real(self, name, overrides, *others)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counting)
    return times


def test_files_are_put_together_once_for_all_values(counted):
    for k in range(3):
        assert compose_config([GMM, f"lam=0.{k + 1}", OTHER], compare=False)["lam"] == (k + 1) / 10
    assert [overrides for overrides in counted if GMM in overrides] == [[GMM, OTHER]]


@pytest.mark.slow
def test_the_compositions_used_last_are_kept(counted, monkeypatch):
    monkeypatch.setattr(loader, "_MAX_CACHED", 2)
    first, second, third = ((GMM, f"rule@methods.mint.kernel.rule={rule}") for rule in RULES)
    for overrides in (first, second, first, third, first, second):
        loaded(loader.Loader, overrides)
    assert len(counted) == 4  # the second again: the third took its place


@pytest.mark.slow
def test_jobs_of_a_sweep_are_put_together_once(counted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mhrun.cli.sweep.job.compute", lambda config, watching: RunFolder.of(config))
    run(["-m", GMM, "scale=smoke", "runtime.report=false", "seed=1,2,3,4"])
    assert sum(GMM in overrides for overrides in counted) == 2  # a job, and the sweep as a whole


def test_files_of_the_users_may_change(tmp_path):
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    for seed in (1, 2):
        file.write_text(f"# @package _global_\ndefaults: [gmm_tied_means, _self_]\nseed: {seed}\n")
        assert compose_config(["experiment=mine"], [tmp_path])["seed"] == seed


def test_what_is_kept_does_not_travel_to_workers(tmp_path):
    (tmp_path / "experiment").mkdir()
    made = loader.Loader(create_config_search_path(str(CONF)))
    with initialize_config_dir(str(CONF), "mhrun", **version_base()):
        made.load_configuration("config", [GMM, *search_path([tmp_path])], RunMode.RUN)
    assert made._kept
    again = pickle.loads(pickle.dumps(made))
    assert not hasattr(again, "_kept")
