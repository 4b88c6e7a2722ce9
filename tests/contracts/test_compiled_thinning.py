"""The compiled loop on arrivals takes the same steps as the torch step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import advance, advance_compiled, begin, controls, logistic_target, regression_target

from mhrun.compiled import compile_loop
from mhrun.data import Dataset
from mhrun.kernels import MetropolisHastings
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.logistic import Logistic
from mhrun.models.tied_means import TiedMeans
from mhrun.native import available
from mhrun.native.alias import alias_table
from mhrun.native.forms import ROUNDING
from mhrun.pairing.thinned import Thinned
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import derive_key
from mhrun.rules.mh_ss import MHSS
from mhrun.rules.poisson_mh import PoissonMH
from mhrun.rules.smh import SMH
from mhrun.rules.tunamh import TunaMH
from mhrun.target import Target

KEY, CHAINS, STEPS = derive_key(8, "thinning"), 4, 30
RULES = {"tunamh": TunaMH(1e-2), "poisson_mh": PoissonMH(20.0), "smh": SMH(), "mh_ss": MHSS(0.3)}
N = 3000


def mixture():
    rng = np.random.default_rng(6)
    x = rng.normal(size=N) * 1.4 + (rng.random(N) < 0.5)
    return Target(TiedMeans(), Dataset.of(x.astype(np.float32)), temper="likelihood")


def gaussian():
    return Target(GaussianMean(1.0), Dataset.of(np.random.default_rng(6).normal(0.2, 1.0, N)))


CASES = {
    "gaussian_mean": (gaussian, 0.1, 60.0),
    "tied_means": (mixture, 0.1, 60.0),
    "logistic": (lambda: logistic_target(N, "float32", "none"), 0.02, 20.0),
    "logistic_1": (lambda: logistic_target(N, "float32", "taylor1"), 0.05, 1.0),
    "logistic_2": (lambda: logistic_target(N, "float64", "taylor2"), 0.1, 1.0),
    "logistic_2_bytes": (lambda: logistic_target(N, "bytes", "taylor2"), 0.1, 1.0),
    "robust": (lambda: regression_target("robust", N), 0.02, 20.0),
    "robust_1": (lambda: regression_target("robust", N, "taylor1", kind="float32"), 0.05, 1.0),
    "robust_2": (lambda: regression_target("robust", N, "taylor2"), 0.1, 1.0),
    "poisson_1": (lambda: regression_target("poisson", N, "taylor1"), 0.05, 1.0),
    "poisson_2": (lambda: regression_target("poisson", N, "taylor2"), 0.05, 1.0),
    "softmax": (lambda: regression_target("softmax", N), 0.02, 20.0),
    "softmax_1": (lambda: regression_target("softmax", N, "taylor1", kind="float32"), 0.03, 1.0),
    "softmax_2": (lambda: regression_target("softmax", N, "taylor2"), 0.05, 1.0),
    "binomial": (lambda: regression_target("binomial", N), 0.02, 20.0),
    "binomial_2": (lambda: regression_target("binomial", N, "taylor2"), 0.1, 1.0),
}


@pytest.mark.skipif(not available(), reason="needs numba")
@pytest.mark.usefixtures("either_code")
@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *(("tied_means", rule) for rule in RULES),
        ("gaussian_mean", "tunamh"),
        ("logistic", "tunamh"),
        ("logistic_1", "smh"),
        ("logistic_2", "mh_ss"),
        ("logistic_2_bytes", "smh"),
        ("robust", "tunamh"),
        ("robust_1", "smh"),
        ("robust_2", "mh_ss"),
        ("poisson_1", "smh"),
        ("poisson_2", "smh"),
        ("softmax", "tunamh"),
        ("softmax_1", "smh"),
        ("softmax_2", "mh_ss"),
        ("binomial", "poisson_mh"),
        ("binomial_2", "smh"),
    ],
)
def test_every_field_agrees(name, rule):
    """From zeros and from the mode."""
    make, step, temperature = CASES[name]
    target = make()
    kernel = MetropolisHastings(RandomWalk(), Thinned(), RULES[rule])
    begins = torch.zeros(CHAINS, target.dim).double()
    if target.surrogate is not None:  # two chains at the mode
        begins[2:] = target.surrogate.reference.theta
    state, draws = begin(kernel, target, begins, KEY)
    control = controls(step, temperature, chains=CHAINS)
    after, thetas, infos = advance(kernel, target, state, control, draws, STEPS)
    compiled, found, record = advance_compiled(kernel, target, state, control, STEPS, KEY)
    assert np.abs(thetas - found).max() < 1e-9
    for field in ("accepted", "batch_size", "n_lik", "n_lik_overhead", "n_grad", "diverging", "violations"):
        there = torch.stack([getattr(info, field) for info in infos], 1).numpy()
        assert np.array_equal(record[field], there), field
    for field in ("log_ratio", "log_ratio_var"):
        there = torch.stack([getattr(info, field) for info in infos], 1).numpy()
        assert np.allclose(record[field], there, rtol=1e-4, atol=1e-4, equal_nan=True), field
    assert record["violations"].sum() == 0
    assert record["accepted"].any()
    assert torch.allclose(compiled.evaluation.log_prior, after.evaluation.log_prior)


def test_a_step_on_all_data_costs_no_evaluations_of_the_expansion(interpreted):
    """Two for each datum, where the arrivals of another step cost three each."""
    target = logistic_target(N, "float64", "taylor1")
    kernel = MetropolisHastings(RandomWalk(), Thinned(), SMH(at_most=20))
    mode = target.surrogate.reference.theta
    begins = torch.stack([mode + 10, mode])
    state, draws = begin(kernel, target, begins, KEY)
    control = controls(0.05, 1.0, chains=2)
    _, _, infos = advance(kernel, target, state, control, draws, 5)
    size, n_lik, log_ratio = (
        torch.stack([getattr(info, field) for info in infos], 1).numpy()
        for field in ("batch_size", "n_lik", "log_ratio")
    )
    assert 0 < (size == N).sum() < size.size
    assert (n_lik == np.where(size == N, 2 * N, 3 * size)).all()
    if available():
        _, _, record = advance_compiled(kernel, target, state, control, 5, KEY)
        assert np.array_equal(record["batch_size"], size)
        assert np.array_equal(record["n_lik"], n_lik)
        assert np.allclose(record["log_ratio"], log_ratio, rtol=1e-4, atol=1e-4)


def test_violations_are_counted_in_both(interpreted):
    target = mixture()
    target.bounded.bounds.weights.mul_(0.3)
    kernel = MetropolisHastings(RandomWalk(), Thinned(), RULES["tunamh"])
    state, draws = begin(kernel, target, CHAINS, KEY)
    control = controls(0.3, 60.0, chains=CHAINS)
    _, _, infos = advance(kernel, target, state, control, draws, STEPS)
    count = torch.stack([info.violations for info in infos], 1).numpy()
    assert count.sum() > 0
    if available():
        _, _, record = advance_compiled(kernel, target, state, control, STEPS, KEY)
        assert np.array_equal(record["violations"], count)


@pytest.mark.skipif(not available(), reason="needs numba")
@pytest.mark.parametrize("name", CASES)
def test_both_allow_the_same_rounding(name):
    target, rng = CASES[name][0](), np.random.default_rng(1)
    origin, candidate = (torch.from_numpy(rng.normal(size=(1, target.dim))) for _ in range(2))
    native, index = target.bounded.native(), torch.arange(50)
    _, allowed = target.bounded.terms(origin, candidate, index[None])
    points = origin[0].numpy(), candidate[0].numpy()
    sizes = [native.size(native.args, int(i), *points) for i in index]
    assert np.array(sizes) == pytest.approx(allowed[0].numpy() / ROUNDING, rel=1e-12)


@pytest.mark.skipif(not available(), reason="needs numba")
@pytest.mark.parametrize("rule", ["tunamh", "smh"])
def test_rounding_of_large_log_likelihoods_is_no_violation(rule, interpreted):
    """With one weight and log-likelihoods of a million, terms are as large as their bounds, to rounding."""
    x = np.random.default_rng(5).uniform(1e6, 2e6, (100, 1))
    target = Target(Logistic(1, 1.0, "zeros"), Dataset.of({"x": x, "y": np.full(100, -1)}))
    kernel = MetropolisHastings(RandomWalk(), Thinned(), RULES[rule])
    state, draws = begin(kernel, target, torch.ones(CHAINS, 1).double(), KEY)
    control = controls(1e-12, 2e-5, chains=CHAINS)
    _, _, infos = advance(kernel, target, state, control, draws, STEPS)
    _, _, record = advance_compiled(kernel, target, state, control, STEPS, KEY)
    for field in ("batch_size", "violations"):
        there = torch.stack([getattr(info, field) for info in infos], 1).numpy()
        assert np.array_equal(record[field], there), field
    assert record["batch_size"].sum() > 100
    assert record["violations"].sum() == 0


@pytest.mark.skipif(not available(), reason="needs numba")
@pytest.mark.parametrize("rule", RULES)
def test_a_term_that_is_no_number_ends_the_decision_in_both(rule, interpreted):
    """The step diverges, whatever later arrivals are, and counts the data up to that term."""
    target, control = gaussian(), controls(0.1, 60.0, chains=CHAINS)
    kernel = MetropolisHastings(RandomWalk(), Thinned(), RULES[rule])
    state, draws = begin(kernel, target, torch.full((CHAINS, 1), 0.2).double(), KEY)
    loop = compile_loop(kernel, target, KEY, 1)
    assert target.bounded.table.total > 0  # bounds are of the data without NaN
    target.data.fields["x"][::40] = torch.nan
    _, _, infos = advance(kernel, target, state, control, draws, STEPS)
    every = control.each(lambda c: c.expand(STEPS, len(c)).contiguous())
    _, record = loop.advance(state, 1, every)
    for field in ("accepted", "batch_size", "n_lik", "diverging"):
        there = torch.stack([getattr(info, field) for info in infos], 1).numpy()
        assert np.array_equal(record[field], there), field
    ratios = torch.stack([info.log_ratio for info in infos], 1).numpy()
    assert np.allclose(record["log_ratio"], ratios, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert record["diverging"].any()
    assert not record["diverging"].all()


def test_a_model_without_pieces_has_no_loop():
    def bounds(data, kind, reference):
        raise AssertionError("not needed to know that there is no loop")

    model = FunctionModel(lambda t, rows: -(rows["x"] - t).abs(), [0.0], batched=True, bounds=bounds)
    kernel = MetropolisHastings(RandomWalk(), Thinned(), RULES["smh"])
    assert compile_loop(kernel, Target(model, Dataset.of(np.zeros(9))), KEY, 1) is None


@pytest.mark.parametrize(
    "weights", [[1.0], [0.0, 0.0], [1.0, 0.0, 3.0], np.random.default_rng(1).gamma(0.3, size=1000)]
)
def test_alias_tables_have_the_weights(weights):
    cut, other = alias_table(weights)
    n = len(cut)
    share = np.bincount(np.arange(n), cut, n) + np.bincount(other, 1 - cut, n)
    wanted = np.asarray(weights) / np.sum(weights) if np.sum(weights) else np.full(n, 1 / n)
    assert share / n == pytest.approx(wanted, abs=1e-14)


def test_compiled_alias_tables_are_equal(monkeypatch):
    weights = np.random.default_rng(2).gamma(0.5, size=500)
    plain = alias_table(weights)
    monkeypatch.setattr("mhrun.native.alias._MAX_INTERPRETED", 10)
    for one, two in zip(alias_table(weights), plain, strict=True):
        assert one == pytest.approx(two, abs=1e-12)
