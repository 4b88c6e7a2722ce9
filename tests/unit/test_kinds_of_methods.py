"""Which methods are exact: every ready-made method, as its parts declare it, and as tables and pages say."""

from __future__ import annotations

from functools import cache

import pytest

from mhrun.build import build
from mhrun.cli.compose import compose_config
from mhrun.kernels.stationary import APPROXIMATE, EXACT, OPTIMISER, Samples
from mhrun.paths import CONF

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
EXACT_METHODS = {
    *("mcmc", "tempered_mcmc", "hmc", "mala", "parallel_tempering", "parallel_tempering_langevin"),
    *("tunamh", "poisson_mh", "smh1", "smh2", "mh_ss", "zig_zag", "flymc", "flymc_untuned", "tuna_sgld"),
}
OPTIMISERS = {"sgd", "sgd_momentum", "snapshot_sgd", "snapshot_sgd_momentum", "adam", "adagrad", "rmsprop"}
SETTINGS = {
    "rungs": 2,
    "ratio": 2.0,
    "c": 0.1,
    "every": 5,
    "epoch": 50,
    "m": 10,
    "step_size": 0.1,
    "chi": 0.1,
}


@cache
def methods():
    """Return the configurations of all methods in one experiment; settings decide no kind."""
    words = [f"+method@methods.it_{name}={name}" for name in METHODS]
    words += [f"+{key}={value}" for key, value in SETTINGS.items()]
    words += [f"methods.it_cmint.schedules.step_size.{key}=4" for key in ("cycle", "every")]
    return compose_config(["data=gaussian", "model=gaussian_mean", "data.n=100", *words], compare=False)[
        "methods"
    ]


def kind_of(kernel):
    known = kernel.stationary or {"distribution": None, "m": None}
    return Samples(known["distribution"], known["m"], 1.0, False, kernel.optimises).kind


@pytest.mark.parametrize("name", METHODS)
def test_a_method_declares_its_target_stationary_if_it_is_exact(name):
    kernel = build(methods()[f"it_{name}"]["kernel"], "kernel")
    wanted = EXACT if name in EXACT_METHODS else OPTIMISER if name in OPTIMISERS else APPROXIMATE
    assert kind_of(kernel) == wanted


def test_an_optimiser_is_known_by_its_temperature():
    assert Samples(None, None, 0.0, False).kind == OPTIMISER
    assert Samples("tempered", None, 31.0, True).kind == EXACT
    assert Samples("tempered", 100, 1.0, False).kind == APPROXIMATE
    assert Samples("stored", 100, 1.0, False).kind == APPROXIMATE


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        ({"sign": "printed"}, False),
        (
            {"rule": {"_target_": "mhrun.rules.barker.Barker"}},
            True,
        ),  # which keeps the ratio, as Metropolis's does
        ({"pairing": {"_target_": "mhrun.pairing.shared.Shared", "m": 10}}, False),
        ({"kernel": "mint"}, False),
    ],
)
def test_a_ladder_is_exact_if_its_rungs_and_its_exchanges_are(change, exact):
    node = methods()["it_parallel_tempering"]["kernel"]
    if "kernel" in change:
        change = {"kernel": methods()[f"it_{change['kernel']}"]["kernel"]}
    assert kind_of(build(node | change, "kernel")) == (EXACT if exact else APPROXIMATE)
