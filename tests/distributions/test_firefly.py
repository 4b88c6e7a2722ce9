"""Firefly Monte Carlo: its bounds, its auxiliary variables and its stationary distribution.

False-alarm rate: see `significance`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit import advance, assert_resumes_with_the_same_bits, begin, controls
from scipy import stats
from significance import ALPHA, Z, assert_mean

from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.kernels.firefly import DARK, GAPS, Firefly
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.logistic import Logistic
from mhrun.models.robust_regression import RobustRegression
from mhrun.models.softmax_regression import SoftmaxRegression
from mhrun.native import available
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.target import Target

KEY = derive_key(7, "firefly")
N = 40
RNG = np.random.default_rng(31)
X = RNG.normal(size=(N, 2)) * np.array([1.0, 0.6])
SIGNS = np.where(RNG.random(N) < 1 / (1 + np.exp(-1.5 * X.sum(1))), 1, -1)
TUNED, UNTUNED = "lower_bound", "lower_bound_untuned"
MODELS = {
    "logistic": (Logistic(2, 2.0, "zeros"), {"x": X, "y": SIGNS}),
    "robust": (
        RobustRegression(2, scale=0.7, prior_variance=2.0),
        {"x": X, "y": X @ [1.0, -1.0] + RNG.standard_t(4, N)},
    ),
    "softmax": (SoftmaxRegression(2, 3, 1.0), {"x": X, "y": RNG.integers(0, 3, N)}),
}


def made(name, surrogate):
    model, data = MODELS[name]
    return Target(model, Dataset.of(data), surrogate=surrogate)


def line(name, surrogate):
    """Return a target with one parameter, whose terms vary enough for a few of its 12 data to be bright."""
    x = 3 * X[:12, :1]
    model = Logistic(1, 2.0, "zeros") if name == "logistic" else RobustRegression(1, prior_variance=2.0)
    y = np.where(np.random.default_rng(3).random(12) < 1 / (1 + np.exp(-0.5 * x[:, 0])), 1, -1)
    data = {"x": x, "y": y if name == "logistic" else 0.5 * x[:, 0] + MODELS[name][1]["y"][:12]}
    return Target(model, Dataset.of(data), surrogate=surrogate)


@pytest.mark.parametrize("surrogate", [TUNED, UNTUNED])
@pytest.mark.parametrize("name", MODELS)
def test_bounds_hold_everywhere_touch_where_they_should_and_have_a_known_sum(name, surrogate):
    target = made(name, surrogate)
    bound, rng = target.surrogate, np.random.default_rng(2)
    rows = target.data.part(0, N)
    size = torch.from_numpy(10.0 ** rng.uniform(-3, 2, (3000, 1)))
    about = bound.reference.theta
    theta = about + size * torch.from_numpy(rng.normal(size=(3000, target.dim)))
    gaps, rounding = bound.gaps(theta, rows)
    assert bool((gaps >= -rounding).all())
    if surrogate == TUNED or name == "softmax":  # touches at the reference, tangentially
        touch = about[None] + 1e-4 * theta[:5] / theta[:5].norm(dim=1, keepdim=True)
        assert float(bound.gaps(about[None], rows)[0].abs().max()) < 1e-12
        assert float(bound.gaps(touch, rows)[0].max()) < 1e-7
    total = bound.terms(theta[:5], rows).sum(1) - bound.terms(theta[:1], rows).sum(1)
    assert torch.allclose(bound.total(theta[:5]) - bound.total(theta[:1]), total, rtol=1e-9, atol=1e-9)


def test_the_logistic_bound_is_that_of_the_paper():
    """Maclaurin & Adams (2015), section 3.1, at xi = 1.5: exp(a z^2 + b z + c)."""
    target, xi = made("logistic", UNTUNED), 1.5
    theta = torch.tensor([[0.3, -1.2]], dtype=torch.float64)
    z = SIGNS * (X @ theta[0].numpy())
    a, b = -np.tanh(xi / 2) / (4 * xi), 0.5
    c = -a * xi**2 + xi / 2 - np.log(1 + np.exp(xi))
    found = target.surrogate.terms(theta, target.data.part(0, N))[0].numpy()
    assert found == pytest.approx(a * z**2 + b * z + c, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "surrogate", "share", "step", "temperature"),
    [
        ("logistic", TUNED, 0.2, 1.0, 10.0),
        ("logistic", UNTUNED, 0.5, 0.5, 2.0),
        ("robust", TUNED, 0.1, 0.5, 10.0),
        ("robust", UNTUNED, 1.0, 0.2, 1.0),
    ],
)
def test_draws_of_the_posterior_remain_draws_of_it(name, surrogate, share, step, temperature):
    target, kernel, chains, steps = line(name, surrogate), Firefly(RandomWalk(), share), 6000, 6
    assert kernel.refuses(target) is None
    grid = np.linspace(-12, 15, 20_001)
    mass = torch.softmax(target.log_density(torch.from_numpy(grid)[:, None], temperature), 0).numpy()
    cdf = np.cumsum(mass)
    theta = np.interp(np.random.default_rng(9).random(chains), cdf, grid)[:, None]
    state, _ = begin(kernel, target, theta, KEY)
    draws, control = (
        Draws(Streams(KEY, chains, compiled=available()), 1),
        controls(step, temperature, chains=chains),
    )
    state, thetas, infos = advance(kernel, target, state, control, draws, steps)
    end = thetas[:, -1, 0]
    bright = (state.aux[GAPS] != DARK).double()
    assert 0.02 < float(bright.mean()) < 0.5
    assert np.mean(end != theta[:, 0]) > 0.5
    assert int(sum(info.violations.sum() for info in infos)) == 0
    assert stats.kstest(end, lambda x: np.interp(x, grid, cdf)).pvalue > ALPHA
    # Each z_i has its conditional distribution, and the gaps are those at the present theta.
    gaps, _ = target.surrogate.gaps(state.evaluation.theta, target.data.part(0, N))
    expected = 1 - (-gaps / temperature).exp()
    z = ((bright - expected).sum(0) / (expected * (1 - expected)).sum(0).sqrt()).abs()
    assert float(z.max()) < Z
    off = torch.where(bright == 1, state.aux[GAPS] - gaps.clamp_min(1e-13), 0.0)
    assert float(off.abs().max()) < 1e-12


def test_a_step_evaluates_the_bright_data_and_a_share_of_the_dark():
    target, kernel, chains = made("logistic", TUNED), Firefly(RandomWalk(), 0.3), 4000
    state, draws = begin(kernel, target, np.tile(target.surrogate.reference.theta.numpy(), (chains, 1)), KEY)
    control = controls(0.3, 1.0, chains=chains)
    state, _, infos = advance(kernel, target, state, control, draws, 1)
    bright = (state.aux[GAPS] != DARK).double().sum(1)
    assert bool((infos[0].batch_size == bright.long() + N).all())  # the first step reads all data
    _, _, infos = advance(kernel, target, state, control, draws, 1, first=2)
    assert bool((infos[0].n_lik == 2 * infos[0].batch_size).all())
    after = infos[0].batch_size.double() - 0.3 * (N - bright)
    # Bright after z has changed, in equilibrium nearly
    assert abs(float(after.mean()) - float(bright.mean())) < 0.3
    assert int(infos[0].batch_size.max()) < N


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_dark_data_are_tried_independently_and_without_replacement(share):
    n, chains = 200, 2000
    kernel = Firefly(RandomWalk(), share)
    at, _ = kernel._chosen(n, Draws(Streams(KEY, chains, compiled=available()), 3, ahead=1))
    assert bool((at[:, 1:] > at[:, :-1]).all())
    hits = torch.zeros(chains, n + 1, dtype=torch.float64).scatter_(1, at.clamp_max(n), 1.0)[:, :n].numpy()
    if share == 1:
        assert (hits == 1).all()
        return
    assert_mean(hits.mean(1), share, "all")
    edge = np.sqrt(share * (1 - share) / chains)
    assert np.abs(hits.mean(0) - share).max() < Z * edge
    pairs = (hits[:, 1:] * hits[:, :-1]).mean(1)  # neighbours are independent
    assert_mean(pairs, share**2, "neighbours")


def test_uniforms_at_places_are_those_of_the_whole():
    streams = Streams(KEY, 3)
    whole = Draws(streams, 5).uniforms(Purpose.ARRIVALS, 50, use=1)
    places = torch.tensor([[0, 7, 49], [3, 3, 20], [48, 2, 1]])
    assert torch.equal(
        Draws(streams, 5).uniforms_at(Purpose.ARRIVALS, places, use=1), whole.gather(1, places)
    )


@pytest.mark.parametrize("is_zero", [False, True])
def test_a_bound_that_does_not_hold_is_counted(is_zero):
    """It lies above the likelihood by 1 %, or where the likelihood is 0."""

    class Wrong(Logistic):
        def log_lik(self, theta, rows):
            value = super().log_lik(theta, rows)
            return torch.where(theta[:, :1].abs() > 0.2, -torch.inf, value) if is_zero else value

        def lower_bound(self, theta, rows, anchor):
            return super().lower_bound(theta, rows, anchor) + (0.0 if is_zero else 0.01)

    target = Target(Wrong(2, 2.0, "zeros"), Dataset.of({"x": X, "y": SIGNS}), surrogate=TUNED)
    kernel = Firefly(RandomWalk(), 0.5)
    state, draws = begin(kernel, target, np.zeros((4, 2)), KEY)
    _, _, infos = advance(kernel, target, state, controls(0.3, 1.0, chains=4), draws, 5)
    assert sum(int(info.violations.sum()) for info in infos) > 0


def test_unsuitable_targets_and_settings_are_refused():
    model, data = MODELS["logistic"]
    plain = Target(model, Dataset.of(data))
    assert "needs lower bounds" in Firefly(RandomWalk()).refuses(plain)
    tuned = made("logistic", TUNED)
    assert "without gradients" in Firefly(LangevinProposal()).refuses(tuned)
    assert "would not carry" in Firefly(RandomWalk()).refuses_ladder()
    for share in (0.0, 1.5):
        with pytest.raises(Refusal, match="share"):
            Firefly(RandomWalk(), share)
    with pytest.raises(Refusal, match="GaussianMean has no lower bounds"):
        Target(GaussianMean(), Dataset.of(X[:, 0]), surrogate=TUNED)


@pytest.mark.slow
def test_a_run_that_is_stopped_ends_with_the_same_bits(outputs):
    """The auxiliary variables are part of what is kept."""
    assert_resumes_with_the_same_bits(
        outputs,
        "flymc",
        "+method@methods.flymc=flymc",
        "executor=torch",
        "warmup=50",
        "steps=30",
        "methods.flymc.kernel.share=0.3",
        "methods.flymc.schedules.step_size.start=0.5",
    )
