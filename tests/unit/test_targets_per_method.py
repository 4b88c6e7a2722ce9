"""Methods of one run with data or a model of their own."""

from __future__ import annotations

import numpy as np
import pytest
from kit import assert_same_bits, config, contents

from mhrun.cli.main import run
from mhrun.engine.assemble import methods_of
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.errors import UserError
from mhrun.report.run import Run
from mhrun.store.identity import digest, method_digest

FEW = ("~methods.mcmc", "~methods.sgld", "~methods.sghmc", "steps=40", "warmup=50", "report={}")


def own(method):
    node = f"methods.{method}.data"
    return (f"+data@{node}=mixture", f"{node}.n=500", f"{node}.means=[0.0,2.0]", f"{node}.variance=2.0")


OWN, EQUAL = own("mint"), own("mint_stored")


def test_methods_share_the_targets_that_are_equal(outputs):
    methods = {method.name: method for method in methods_of(config(outputs, *FEW, *OWN, *EQUAL))}
    mine, shared = methods["mint"].target, methods["tempered_mcmc"].target
    assert mine is methods["mint_stored"].target
    assert mine is not shared
    assert (mine.n, shared.n) == (500, 10_000)
    assert float(mine.data.fields["x"].mean()) == pytest.approx(1.0, abs=0.3)
    plain = methods_of(config(outputs, *FEW))
    assert len({id(method.target) for method in plain}) == 1


@pytest.mark.long
def test_a_method_with_data_of_its_own_runs_as_an_experiment_with_those_data(outputs):
    alone = ("~methods.tempered_mcmc", "~methods.mint_stored", "m=50", "lam=0.2", "temperature=5")
    one = run_experiment(config(outputs, *FEW, *OWN, *alone), Silent())
    other = run_experiment(config(outputs, *FEW, "data.n=500", "data.means=[0.0,2.0]", *alone), Silent())
    assert one.digest != other.digest
    assert_same_bits(contents(one, "mint"), contents(other, "mint"))
    assert Run(one).target_of("mint").n == Run(other).target_of("mint").n == 500
    assert Run(one).target.n == 10_000
    assert Run(one).target_of("mint") is not Run(one).target


@pytest.mark.long
def test_a_report_finds_the_target_of_each_method(outputs):
    folder = run_experiment(config(outputs, *FEW, *OWN, *EQUAL), Silent())
    found = Run(folder)
    assert found.target_of("tempered_mcmc") is found.target
    assert found.target_of("mint") is found.target_of("mint_stored")
    x = found.target_of("mint").data.fields["x"].numpy()
    assert np.array_equal(x, methods_of(found.config)[0].target.data.fields["x"].numpy())


def test_an_experiment_whose_methods_all_have_data_needs_none(outputs):
    settings = config(outputs, *FEW, *OWN, *EQUAL, "~methods.tempered_mcmc", "m=20", "temperature=5")
    settings["data"] = {}
    assert len(methods_of(settings)) == 2
    del settings["methods"]["mint"]["data"]
    with pytest.raises(UserError, match="mint has no data, nor has the experiment; choose one"):
        methods_of(settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("+methods.mint.data=5",), "methods.mint.data = 5 must be a group of settings"),
        (
            ("+methods.mint.data.n=5",),
            "methods.mint.data = {'n': 5} must be a group of settings, with a _target_",
        ),
        (("+data@methods.mint.data=mixture",), "methods.mint.data.n must be given"),
        ((*OWN, "+methods.mint.target.temper=neither"), "mint: temper = 'neither' is unknown"),
        (OWN, "mint: m = 1000 is more than the n = 500 data"),
    ],
)
def test_mistakes_in_the_parts_of_one_method_are_reported_in_a_line(outputs, capsys, words, message):
    base = ("experiment=gmm_tied_means", "scale=smoke", f"runtime.outputs={outputs}", *FEW)
    more = ("m=1000",) if words is OWN else ()
    assert run([*base, *words, *more]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def with_target(tmp_path, *words):
    return config(tmp_path, *FEW, "+methods.mint.target={gradient_noise:2.0}", *words)


def test_a_methods_target_keeps_the_experiments_other_settings(outputs):
    settings = with_target(outputs, "target.temper=likelihood", "target.common_batch=true")
    mine, shared = (methods_of(settings)[place].target for place in (0, 1))
    assert next(iter(settings["methods"])) == "mint"
    assert (mine.temper, mine.gradient_noise, mine.common_batch) == ("likelihood", 2.0, True)
    assert (shared.temper, shared.gradient_noise, shared.common_batch) == ("likelihood", 0.0, True)


def test_digests_cover_the_settings_that_a_methods_target_inherits(outputs):
    """Settings that have their default value are left out, as in the digests of earlier runs."""
    plain = with_target(outputs)
    for word in ("target.temper=likelihood", "target.replacement=true", "target.energy_noise=1.0"):
        changed = with_target(outputs, word)
        assert method_digest(changed, "mint") != method_digest(plain, "mint")
        written = with_target(outputs, word, f"+methods.mint.{word}")
        assert digest(written) == digest(changed) != digest(plain)
    written = with_target(outputs, "+methods.mint.target.common_batch=false")
    assert digest(written) == digest(plain)
    assert method_digest(written, "mint") == method_digest(plain, "mint")
