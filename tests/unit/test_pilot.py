"""Pilots: step sizes, minibatch sizes and scales that are left open."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kit import KEY, C, controls
from regressions import DATA, MODELS, D, N, found, full, logistic, prior, run

import mhrun
from mhrun.engine.assemble import assembled
from mhrun.engine.defaults import default_method
from mhrun.engine.pilot import pilot, piloted
from mhrun.engine.pilot.acceptance import _search
from mhrun.engine.pilot.curvature import hessian
from mhrun.engine.pilot.modes import find_modes
from mhrun.engine.pilot.start import inside
from mhrun.engine.surface import Surface
from mhrun.errors import Refusal, UserError
from mhrun.kernels.acceptance import efficient_acceptance
from mhrun.kernels.preconditioned import Scale, preconditioned
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.models.logistic import Logistic
from mhrun.models.module import ModuleModel
from mhrun.random import Purpose
from mhrun.rules.penalty import Penalty
from mhrun.store.sharing import PILOT
from mhrun.target import Target

pytestmark = pytest.mark.long

CORRELATED = GaussianMixture([[0.0, 0.0]], 1.0)


def of_logistic(kernel, **settings):
    """Return the trace of a kernel on a logistic regression, without warnings of its few steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mhrun.sample(Logistic(D, prior_variance=10.0), DATA, kernel, **settings)


def exact_variances():
    """Return the variances (D,) of the normal approximation at the mode of that regression."""
    surface = Surface(Target(Logistic(D, prior_variance=10.0), mhrun.Dataset.of(DATA)), 1.0, 0)
    mode = find_modes(surface, torch.zeros(1, D, dtype=torch.float64)).theta[0]
    return torch.linalg.inv(hessian(surface, mode)).diagonal().numpy()


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("proposal", [mhrun.RandomWalk(), mhrun.LangevinProposal()])
def test_acceptance_is_within_the_target_band_on_three_models(model, proposal, capsys):
    """The seed is fixed; with 1,200 correlated decisions the rate has a standard error of about 0.03."""
    kernel = full(proposal)
    trace = run(kernel, model)
    rate = float(trace["sample_stats"]["accepted"].mean())
    best = efficient_acceptance(kernel, len(MODELS[model][2])).best
    assert abs(rate - best) < 0.12
    about = found(trace)
    assert about["settled"]
    assert about["aim"] == pytest.approx(best)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "pilot" in line]
    assert "dense scale" in line
    assert f"aimed at {best:.2f}; settled in" in line
    assert "likelihoods" in line


def test_the_step_size_of_a_random_walk_is_what_theory_says():
    """In coordinates of unit variance, the best step is 2.38 / sqrt(D) (Roberts, Gelman & Gilks 1997)."""
    assert found(run(full()))["step_size"] == pytest.approx(2.38 / D**0.5, rel=0.35)


@pytest.mark.slow
def test_the_step_of_a_dynamics_is_stable_and_has_the_variance_it_promises():
    """Variances against the inverse of the Hessian at the mode; 1,600 effective draws: a standard error of 3.5 %."""
    counts = {"chains": 16, "steps": 20_000, "warmup": 1_000, "thin": 20}
    trace = of_logistic(mhrun.Unadjusted(mhrun.SGLD(), m="auto"), **counts)
    about = found(trace)
    assert about["m"] == N // 5
    assert 0 < about["step_size"] < 0.11 * about["stability_bound"]
    assert not trace["sample_stats"]["diverging"].any()
    ratio = trace["posterior"]["theta"].values.reshape(-1, D).var(0) / exact_variances()
    # 10 % too large in the worst direction, and five standard errors on either side.
    assert (ratio > 0.83).all()
    assert (ratio < 1.28).all()


@pytest.mark.parametrize("dynamics", [mhrun.SGLD(), mhrun.SGHMC(0.2)])
def test_the_error_of_a_step_size_that_is_given_is_estimated(dynamics, capsys):
    """A scale is found, and the error is that of the step size in use, not of one that a pilot would choose."""
    kernel = mhrun.Unadjusted(dynamics, 100)
    counts = {"chains": 8, "steps": 10, "warmup": 10}
    step = None
    for factor in (None, 0.5, 8.0):
        size = "auto" if factor is None else factor * step
        trace = of_logistic(kernel, step_size=size, precondition="dense", **counts)
        about = found(trace)
        step = about["step_size"] if factor is None else step
        assert about["step_size"] == pytest.approx((factor or 1) * step)
        assert about["variance_error"] == pytest.approx(0.1 * (factor or 1))
        assert about["given"] == (factor is not None)
    assert "about 80% too large" in capsys.readouterr().err


def test_a_thermostat_may_leave_the_variance_too_small(capsys):
    """It removes most of the error of the steps, and holds the kinetic energy where theta is too narrow."""
    trace = of_logistic(
        mhrun.Unadjusted(mhrun.SGNHT(0.1), 100), precondition="dense", chains=8, steps=10, warmup=10
    )
    facts = found(trace)
    assert facts["variance_bias"] == pytest.approx(-(1 - 0.8**0.5) / 2)
    assert facts["variance_error"] == pytest.approx(0.1)
    assert "between 5% too small and 10% too large" in capsys.readouterr().err


def test_networks_with_batch_norm_get_no_step_size():
    """Their loss is the same for weights of any scale, and its curvature is not."""
    from torch import nn

    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    data = {"x": torch.randn(40, 3), "y": torch.arange(40) % 2}
    kernel = mhrun.Unadjusted(mhrun.SGHMC(), 10)
    with pytest.raises(Refusal, match=r"BatchNorm.*Give step_size a number"):
        mhrun.sample(net, data, kernel, dtype=torch.float32, steps=5, warmup=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mhrun.sample(net, data, kernel, dtype=torch.float32, steps=5, warmup=0, step_size=1e-3)


@pytest.mark.parametrize(
    ("n", "columns", "dim", "gradients", "network", "name"),
    [
        (200_000, 200, 200, True, False, "hmc"),
        (200_001, 200, 200, True, False, "sgld_cv"),
        (200_001, 200, 201, True, False, "sghmc"),
        (5_000, 1_000, 1_000, True, False, "hmc"),
        (5_001, 1_000, 1_000, True, False, "sghmc"),
        (20_000, 2, 1_000, True, False, "hmc"),  # effects of groups
        (20_001, 2, 1_000, True, False, "sghmc"),
        (200_001, 2, 1_000, True, False, "sghmc"),
        (5, 1, 1_001, True, False, "sghmc"),
        (100, 2, 200, True, True, "hmc"),
        (100, 2, 201, True, True, "sghmc"),
        (100, 1, 2, False, False, "mcmc"),
        (200_001, 1, 2, False, False, "mcmc"),
    ],
)
def test_the_default_method_follows_from_the_sizes(n, columns, dim, gradients, network, name):
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    model = ModuleModel(module) if network else MODELS["logistic"]
    data = SimpleNamespace(fields={"x": torch.empty(n, columns, device="meta")})
    target = SimpleNamespace(n=n, dim=dim, model=model, data=data)
    assert default_method(target, gradients)[0] == name


@pytest.mark.long
def test_the_default_on_many_data_is_nearly_the_posterior(capsys):
    """Means within five standard errors; sds up to 5 % too wide by the pilot's aim, and five standard errors."""
    n = 200_500
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    y = x @ [0.5, -1.0] + rng.normal(size=n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            lambda theta, row: -0.5 * (row.y - row.x @ theta) ** 2,
            {"x": x, "y": y},
            start=[0.0, 0.0],
            steps=3_000,
            warmup=200,
            progress=False,
        )
    assert "SGLD-CV" in capsys.readouterr().err
    draws = trace["posterior"]["theta"].to_numpy()
    exact = np.linalg.inv(x.T @ x)
    sd = np.sqrt(np.diag(exact))
    ess = 3_000 * 4 * 0.186 / 2  # of the linear recursion, with the step size in posterior variances
    off = (draws.mean((0, 1)) - exact @ x.T @ y) / sd
    assert np.abs(off).max() < 5 / np.sqrt(ess)
    assert np.abs(draws.std((0, 1)) / sd - 1.025).max() < 0.025 + 5 / np.sqrt(2 * ess)


def test_nothing_is_said_of_the_error_of_a_dynamics_without_a_rule(capsys):
    class Own(mhrun.SGLD):
        bias = mhrun.Bias()

    kernel = mhrun.Unadjusted(Own(), 100)
    trace = of_logistic(kernel, step_size=1e-3, precondition="dense", steps=10, warmup=0)
    assert "variance_error" not in found(trace)
    assert "nothing is known of the bias of Own" in capsys.readouterr().err


def test_the_same_seed_has_the_same_pilot(tmp_path):
    one, two = (run(full(), folder=tmp_path / name) for name in ("a", "b"))
    assert np.array_equal(one["posterior"]["theta"], two["posterior"]["theta"])
    assert one.attrs["pilot"] == two.attrs["pilot"]
    other = run(full(), seed=1)
    assert found(other)["step_size"] != found(one)["step_size"]
    # A pilot that is kept is read, and a damaged one is made again, with the same numbers.
    kept = tmp_path / "a" / PILOT
    for damage in (False, True):
        if damage:
            kept.write_bytes(b"nothing")
        (tmp_path / "a" / "done.json").unlink()
        (tmp_path / "a" / "trace.nc").unlink()
        again = run(full(), folder=tmp_path / "a")
        assert np.array_equal(again["posterior"]["theta"], two["posterior"]["theta"])


def test_a_minibatch_is_as_large_as_the_noise_asks():
    trace = run(mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()))
    m = found(trace)["m"]
    # At T = 1 and the best step, m/n = a^2 D / (a^2 D + s^2), s the noise; a^2 D = 5.7 and s = 0.63 (docs/choosing.md).
    assert 0.85 < m / N < 0.99
    sd = float(np.sqrt(trace["sample_stats"]["log_ratio_var"].mean()))
    assert 0.35 < sd < 0.7
    assert found(trace)["noise_sd"] == pytest.approx(
        sd, rel=0.5
    )  # at this m, not at the one of the measurements
    hot = run(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
        temperature=50.0,
    )
    assert found(hot)["m"] < 0.5 * N


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_minibatch_that_a_pilot_chooses_is_no_cause_of_a_warning(seed):
    """Noise makes the draws wider and the tuned step longer, which makes more noise: the pilot looks again at its m."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    data = {"x": x, "y": x @ [1.0, -1.0, 0.5] + rng.normal(size=N)}

    def log_lik(theta, batch):
        return torch.distributions.Normal(batch.x @ theta, 1.0).log_prob(batch.y)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            log_lik, data, mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
            start=[0.0] * 3, temperature=20.0, steps=3000, seed=seed, progress=False,
        )  # fmt: skip
    assert not any("minibatch noise" in str(one.message) for one in caught)
    assert found(trace)["m"] < 0.8 * N
    ratio = trace["posterior"]["theta"].std(("chain", "draw")).to_numpy() / np.sqrt(
        20.0 * np.diag(np.linalg.inv(x.T @ x))
    )
    assert (ratio < 1.14).all()  # 1.21 where the noise has a standard deviation of 1


@pytest.mark.parametrize(
    ("proposal", "pairing"),
    [(mhrun.HamiltonianProposal(), mhrun.Shared("auto")), (mhrun.RandomWalk(), mhrun.Stored("auto"))],
    ids=["trajectories", "stored"],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_noise_is_measured_at_the_minibatch_that_a_pilot_chooses(proposal, pairing, seed):
    trace = run(
        mhrun.MetropolisHastings(proposal, pairing, mhrun.Metropolis()),
        temperature=100.0,
        seed=seed,
        steps=1000,
    )
    sd = float(np.sqrt(trace["sample_stats"]["log_ratio_var"].mean()))
    limit = 0.7 if pairing.__class__ is mhrun.Shared else 1.0
    assert 0.3 * limit < sd < 1.15 * limit
    assert found(trace)["noise_sd"] == pytest.approx(sd, rel=0.3)


def test_a_rule_without_a_limit_has_a_noise_of_1():
    class Unlimited(mhrun.Metropolis):
        noise_limit = float("inf")

    trace = run(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), Unlimited()), temperature=50.0
    )
    assert 0.6 < found(trace)["noise_sd"] < 1.2


@pytest.mark.parametrize(("limit", "is_shorter"), [(0.5, True), (2.0, True), (100.0, False)])
def test_noise_stays_below_what_a_rule_corrects(monkeypatch, limit, is_shorter):
    monkeypatch.setattr(Penalty, "noise_limit", limit)
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(20), Penalty())
    facts = found(run(kernel))
    assert ("Penalty corrects for it, at a larger one" in facts["why"]) is is_shorter
    assert facts["noise_sd"] < limit
    assert "Penalty corrects" not in found(run(kernel, acceptance=0.1))["why"]  # which is kept
    assert is_shorter or facts["noise_sd"] > 2
    trace = run(mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), Penalty()))
    assert found(trace)["noise_sd"] < 1.05 * min(limit, 1.0)


def test_a_minibatch_that_is_not_enlarged_ends_the_search(monkeypatch):
    """The last size is one that was tried."""
    tried = []

    def noisy(chains, measured):
        tried.append(chains.kernel.pairing.m)
        return measured._replace(noise=4.0)

    monkeypatch.setattr("mhrun.engine.pilot.acceptance._searched_again", noisy)
    trace = run(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
        temperature=50.0,
    )
    assert found(trace)["m"] == tried[-1]
    assert len(tried) == 4


def test_a_given_minibatch_limits_the_step():
    trace = run(mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(100), mhrun.Metropolis()))
    about = found(trace)
    assert about["m"] is None
    assert about["step_size"] < 0.5 * 2.38 / D**0.5
    assert "minibatch noise of the log-ratio" in about["why"]
    assert float(np.sqrt(trace["sample_stats"]["log_ratio_var"].mean())) < 1.6


def test_a_model_without_gradients_gets_a_step_size():
    def rough(theta, batch):
        return logistic(theta.detach(), batch)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(rough, DATA, full(), log_prior=prior, start=[0.0] * D, steps=400, warmup=400)
    assert found(trace)["why"].startswith(
        "the log-likelihood is not differentiable, or depends on no parameter, so that there is no scale; acceptance 0."
    )
    assert "scale" not in found(trace)
    assert found(trace)["settled"]
    assert 0.1 < float(trace["sample_stats"]["accepted"].mean()) < 0.45
    with pytest.raises(UserError, match="no gradient"):
        mhrun.sample(rough, DATA, mhrun.Unadjusted(mhrun.SGLD(), m=10), start=[0.0] * D)


def test_a_search_that_fails_is_named_and_a_step_size_is_found_without_a_scale(monkeypatch):
    def failing(*arguments):
        raise UserError("log_lik failed: it is not defined there.")

    monkeypatch.setattr("mhrun.engine.pilot.run.scaled_start", failing)
    about = found(run(full(), steps=20))
    assert about["why"].startswith(
        "the search for a mode failed (log_lik failed: it is not defined there), so that there is no scale; "
    )
    assert "scale" not in about


def test_what_a_pilot_cannot_find_is_refused():
    def call(kernel, **settings):
        return mhrun.sample(logistic, DATA, kernel, start=[0.0] * D, **settings)

    with pytest.raises(Refusal, match="no rule finds the step size of Momentum"):
        call(mhrun.Unadjusted(mhrun.Momentum(), m=10))
    with pytest.raises(Refusal, match="precondition = 'some' is unknown"):
        call(full(), precondition="some")
    with pytest.raises(Refusal, match="acceptance = auto goes with start = auto"):
        mhrun.Tuned(1.0, "auto")
    with pytest.raises(Refusal, match="start = auto goes with end = auto"):
        mhrun.Polynomial("auto", 0.1)
    with pytest.raises(Refusal, match=r"start = -0.1 must be positive"):
        mhrun.Polynomial(-0.1, "auto")
    with pytest.raises(Refusal, match="start = -1 must be positive"):
        mhrun.Tuned(-1.0, "auto")
    with pytest.raises(Refusal, match="chains = 0 must be at least 1"):
        call(full(), chains=0, warmup=10)


@pytest.mark.parametrize(
    ("gradients", "rate", "like"), [(False, 0.27, "a random walk"), (True, 0.57, "Langevin")]
)
def test_a_proposal_that_declares_no_best_acceptance_has_that_of_another_and_it_is_named(
    gradients, rate, like
):
    class Step(mhrun.Proposal):
        def sample(self, origin, controls, draws):
            z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1], dtype=origin.theta.dtype)
            return origin.theta + controls.step_size[:, None] * z

        def log_density(self, origin, to, controls):
            return None

    step = Step()
    step.gradients = gradients
    about = found(of_logistic(full(step), steps=10, warmup=50))
    assert about["aim"] == pytest.approx(rate, abs=0.02)
    assert f"aimed at {about['aim']:.2f}, the best rate of {like}" in about["why"]
    assert "as Step declares no best_acceptance" in about["why"]
    step.best_acceptance = 0.4
    declared = found(of_logistic(full(step), steps=10, warmup=50))
    assert "declares" not in declared["why"]


# --- Reversible Langevin moves ------------------------------------------------------------------------------------


def squared_jump(step_size, dim, rng, chains=1_000, steps=8):
    """Return the acceptance rate and the mean squared jump of reversible Langevin moves on N(0, I), in NumPy."""
    x, rate, jump = rng.standard_normal((chains, dim)), 0.0, 0.0

    def log_q(origin, to):
        forward, backward = (
            -((to - origin + drift * origin) ** 2).sum(1) / (4 * step_size)
            for drift in (step_size, -step_size)
        )
        return np.logaddexp(forward, backward)

    for _ in range(steps):
        drift = np.where(rng.random((chains, 1)) < 0.5, step_size, -step_size)
        to = x - drift * x + (2 * step_size) ** 0.5 * rng.standard_normal((chains, dim))
        log_ratio = ((x**2).sum(1) - (to**2).sum(1)) / 2 + log_q(to, x) - log_q(x, to)
        chance = np.exp(np.minimum(0, log_ratio))
        rate, jump = rate + chance.mean() / steps, jump + (chance * ((to - x) ** 2).sum(1)).mean() / steps
        x = np.where((rng.random(chains) < chance)[:, None], to, x)
    return rate, jump


def test_the_best_acceptance_of_reversible_moves():
    """On N(0, I): the largest squared jump is at the acceptance aimed at, within 10 % of a flat maximum."""
    moves = mhrun.MetropolisHastings(mhrun.ReversibleLangevinProposal(), mhrun.Full(), mhrun.Metropolis())
    for dim, largest in ((1, 4.0), (20, 1.5)):
        found = [squared_jump(e, dim, np.random.default_rng(0)) for e in np.geomspace(0.15, largest, 14)]
        best = efficient_acceptance(moves, dim).best
        rates, jumps = map(np.array, zip(*found, strict=True))
        assert np.interp(best, rates[::-1], jumps[::-1]) > 0.9 * jumps.max()
        assert abs(rates[jumps.argmax()] - best) < 0.1


def adaptive(pairing):
    """Return RSGLD with a beta that adapts."""
    return mhrun.AdaptiveBackward(
        mhrun.ReversibleLangevinProposal(), pairing, mhrun.Metropolis(), epoch=200, trials=10
    )


def test_reversible_moves_get_a_step_size_and_a_scale():
    """Standard deviations against the curvature's; about 500 effective draws: a standard error of 3.5 %."""
    exact = np.sqrt(exact_variances())
    trace = run(adaptive(mhrun.Full()), chains=8, warmup=50)
    assert found(trace)["acceptance"] == pytest.approx(0.287 + 0.2 / D)
    assert found(trace)["settled"]
    assert 0.15 < float(trace["sample_stats"]["accepted"].mean()) < 0.45
    sd = trace["posterior"]["theta"].values.reshape(-1, D).std(0)
    assert sd == pytest.approx(exact, rel=0.18)


def test_trials_of_backward_moves_are_in_scaled_coordinates():
    """A trial that is always accepted lowers beta; in other coordinates than the moves its acceptance is another."""
    scale = Scale(torch.zeros(2), torch.tensor([0.01, 100.0]))
    kernel = preconditioned(adaptive(mhrun.Full()), scale)
    assert kernel.forward_moves is kernel.proposal
    plain = adaptive(mhrun.Full())
    target = Target(
        FunctionModel(
            lambda t, _: -0.5 * (t / scale.factor.to(t)).square().sum(-1, True), [0.0, 0.0], batched=True
        ),
        mhrun.NoData().load(),
    )
    unit = Target(
        FunctionModel(lambda t, _: -0.5 * t.square().sum(-1, True), [0.0, 0.0], batched=True),
        mhrun.NoData().load(),
    )
    start = torch.ones(C, 2, dtype=torch.float64)
    betas = []
    for each, on, theta in ((kernel, target, start * scale.factor), (plain, unit, start)):
        draws = mhrun.random.Draws(mhrun.random.Streams(KEY, C), 0)
        state = each.start(on, theta, draws)
        state, _ = each.step(
            on, state, controls(0.05, 1.0), mhrun.random.Draws(mhrun.random.Streams(KEY, C), 1)
        )
        betas.append(state.aux["backward"].numpy())
    assert betas[0] == pytest.approx(betas[1])
    assert (betas[0] < 1000).all()


def test_points_that_keep_minibatches_are_tuned_where_they_move():
    """The noise of two points on m data each has a standard deviation of 1 at the m found, which is n at T = 1."""
    for temperature, most in ((100.0, 0.5), (1.0, 1.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace = run(
                full().__class__(mhrun.LangevinProposal(), mhrun.Stored("auto"), mhrun.Metropolis()),
                step_size=mhrun.Fixed(step_size="auto"),
                temperature=temperature,
            )
        about = found(trace)
        assert about["settled"]
        assert about["m"] <= most * N
        assert abs(about["acceptance_found"] - 0.574) < 0.12
        assert 0.35 < float(trace["sample_stats"]["accepted"].mean()) < 0.8
        assert float(trace["sample_stats"]["log_ratio_var"].mean()) < 1.6


def test_barker_and_tempered_dynamics_get_a_step_size():
    """Without minibatch noise: 0.1 = e b H / 2, b = 3 with Barker's signs (see test_barker_dynamics) and 1 else.

    A thermostat of one parameter is stable up to 0.0225 times its inertia.
    """
    step = {
        type(dynamics).__name__: found(run(mhrun.Unadjusted(dynamics, m=N), "normal", steps=20, warmup=0))[
            "step_size"
        ]
        for dynamics in (mhrun.SGBD(), mhrun.TACTHMC(), mhrun.SGNHT(inertia=100.0))
    }
    assert step["SGNHT"] == pytest.approx(0.2, rel=1e-3)
    assert step["TACTHMC"] == pytest.approx(0.0225)
    assert step["SGBD"] == pytest.approx(0.2 / 3, rel=1e-3)


@pytest.mark.parametrize("aim", [0.234, 0.574, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("first", [0.59, 30.0, 1e-4])
def test_a_step_size_is_found_for_each_rate_from_above_and_below(aim, first):
    """Of chains with the acceptance rate erfc((step / 0.1)^2), measured without error; far above it is 0."""

    class Measured:
        def window(self, step):
            return float(torch.special.erfc((step / 0.1) ** 2).mean()), 0.0

    log_step, rate, _, settled, windows = _search(Measured(), np.log(first), torch.ones(4), aim)
    assert settled
    assert windows <= 30
    assert abs(np.log(rate / (1 - rate)) - np.log(aim / (1 - aim))) < 0.35
    assert np.exp(log_step) == pytest.approx(
        0.1 * float(torch.special.erfinv(torch.tensor(1 - aim))) ** 0.5, rel=0.2
    )


def test_chains_begin_on_a_curved_ridge():
    """Where a straight step leaves it, they begin nearer to the mode; a point of a normal density stays."""

    class Ridge:
        temperature = 1.0

        def value_and_grad(self, theta):
            off = (theta[:, 1] - 10 * theta[:, 0] ** 2) / 0.1
            return -0.5 * (theta[:, 0] ** 2 + off**2), torch.zeros_like(theta)

    off = torch.tensor([[2.0, 0.0], [0.1, 0.0], [0.0, 0.2]], dtype=torch.float64)
    modes, expected = torch.zeros_like(off), 0.5 * torch.tensor([4.0, 0.01, 4.0])
    points = inside(Ridge(), modes, off, off, expected)
    assert points[0].tolist() == [0.125, 0.0]  # after four halves
    assert torch.equal(points[1:], off[1:])


def test_a_pilot_is_the_methods_own(tmp_path):
    from mhrun.schedules.tuned import Tuned

    target = Target(CORRELATED, mhrun.NoData().load())
    counts = {"chains": 2, "warmup": 100, "steps": 100, "thin": 1, "thin_stats": None, "seed": 0}
    schedules = {"step_size": Tuned("auto", 0.3), "temperature": mhrun.Fixed(temperature=4.0)}
    method = assembled("a", full(), target, schedules, counts, dtype=torch.float64, starts=None, monitor=None)
    about = pilot(method)
    assert about.acceptance == 0.3
    # At temperature 4 the posterior is twice as wide.
    assert about.facts["step_size"] == pytest.approx(2 * 2.38 / 2**0.5, rel=0.4)
    lines = []
    done, facts = piloted(method, tmp_path, lines.append)
    assert not done.plan.is_open
    assert len(lines) == 1
    again, _ = piloted(method, tmp_path, lines.append)
    assert len(lines) == 1  # it was read
    assert torch.equal(again.first_points(), done.first_points())
    assert facts["n_lik"] > 0


# --- Ladders ------------------------------------------------------------------------------------------------------


def two_modes(theta):
    """A mixture of N(-5, 1) with weight 0.3 and N(5, 1) with weight 0.7, in the first of two coordinates."""
    modes = torch.stack([-0.5 * (theta[0] + 5) ** 2 + np.log(0.3), -0.5 * (theta[0] - 5) ** 2 + np.log(0.7)])
    return modes.logsumexp(0) - 0.5 * theta[1] ** 2 / 9


RUNG_TEMPERATURES = [1.0, 4.0, 16.0]


@pytest.mark.parametrize(
    "proposal", [mhrun.RandomWalk(), pytest.param(mhrun.LangevinProposal(), marks=pytest.mark.slow)]
)
def test_a_ladder_gets_a_step_size_for_each_rung_and_finds_both_modes(proposal, capsys):
    """With 24 ladders the share of a mode has a standard error of about 0.02; without exchanges it would be 0 or 1."""
    ladder = mhrun.ReplicaExchange(full(proposal), mhrun.Full(), mhrun.Metropolis(), rungs=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            two_modes, None, ladder, start=[5.0, 0.0], temperature=RUNG_TEMPERATURES, chains=72, steps=1_000
        )
    steps = np.array(found(trace)["step_size_by_chain"]).reshape(-1, 3)
    ratio = steps / steps[:, :1]
    assert ratio == pytest.approx(np.tile([1, 1, 1] if proposal.gradients else [1, 2, 4], (24, 1)))
    cold = mhrun.rung(trace, 0)["posterior"]["theta"].values
    assert cold.shape == (24, 1_000, 2)
    share = (cold[..., 0] > 0).mean(1)
    assert abs(share.mean() - 0.7) < 5 * share.std(ddof=1) / 24**0.5
    assert share.std() < 0.25
    assert cold[..., 1].std() == pytest.approx(3.0, rel=0.15)
    assert "pilot: step size" in capsys.readouterr().err


@pytest.mark.parametrize(
    "dynamics",
    [
        pytest.param(mhrun.SGNHT(friction=[0.1, 0.05]), marks=pytest.mark.slow),
        mhrun.SGLD(),
        pytest.param(mhrun.SGHMC(), marks=pytest.mark.slow),
    ],
)
def test_a_ladder_of_a_dynamics_gets_a_stable_step_size(dynamics):
    """The variances of a logistic posterior at both rungs; the seed is fixed, and a standard error is 4 to 8 %."""
    ladder = mhrun.ReplicaExchange(
        mhrun.Unadjusted(dynamics, m="auto"), mhrun.Growing(), mhrun.MHMinibatch(m=200), rungs=2, every=20
    )
    counts = {"chains": 16, "steps": 2_000, "warmup": 500, "thin": 10}
    trace = of_logistic(ladder, temperature=[1.0, 1.5], executor="torch", **counts)
    about = found(trace)
    assert about["m"] == N // 5
    assert 0 < about["step_size"] < 0.11 * about["stability_bound"]
    exact = exact_variances()
    for number, temperature in enumerate([1.0, 1.5]):
        draws = mhrun.rung(trace, number)["posterior"]["theta"].values
        ratio = draws.reshape(-1, D).var(0) / exact / temperature
        assert (ratio > 0.75).all(), number
        assert (ratio < 1.35).all(), number


@pytest.mark.parametrize(("scale", "temperature"), [(0.1, 1.0), (1.0, 1.0), (10.0, 1.0), (1.0, 4.0)])
@pytest.mark.parametrize("precondition", ["dense", "diagonal"])
def test_noise_of_the_target_is_in_the_coordinates_of_theta(precondition, scale, temperature):
    """In scaled coordinates a gradient noise of variance 1 / s^2 has the variance 1, whatever the target's scale s.

    Beside the noise that the dynamics adds it counts 1 / T.
    """
    target = Target(mhrun.GaussianMixture([[0.0]], scale**2), mhrun.NoData().load(), gradient_noise=scale**-2)
    method = assembled(
        "one",
        mhrun.Unadjusted(mhrun.SGLD(), 1),
        target,
        {"step_size": mhrun.Fixed(step_size="auto"), "temperature": mhrun.Fixed(temperature=temperature)},
        {"chains": 4, "warmup": 10, "steps": 100, "thin": 1, "thin_stats": None, "seed": 0},
        dtype=torch.float64,
        starts=None,
        monitor=None,
        precondition=precondition,
    )
    _, facts = piloted(method, None, lambda line: None)
    assert facts["step_size"] == pytest.approx(2 * 0.1 / (1 + 1 / temperature), rel=1e-3)


@pytest.mark.parametrize(("dynamics", "gain"), [(mhrun.SGLD, 1.0), (mhrun.SGBD, 0.75 * np.pi)])
def test_a_known_noise_is_at_most_a_quarter_of_the_temperature(dynamics, gain):
    """It adds c e V / 2 to the temperature, with the gain c of the dynamics: here T = 4 and V = 100."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            lambda theta: -0.5 * theta.square().sum(),
            None,
            mhrun.Unadjusted(dynamics(known_noise=100.0), None),
            start=[0.0],
            temperature=4.0,
            steps=10,
            warmup=10,
        )
    assert gain * found(trace)["step_size"] * 100 / 2 == pytest.approx(1.0)


@pytest.mark.parametrize("dynamics", [mhrun.SGLD, pytest.param(mhrun.SGBD, marks=pytest.mark.slow)])
def test_a_known_noise_is_that_of_theta_and_has_no_scale(dynamics, rng):
    """In scaled coordinates V would be taken off a noise of S^T V S: draws were 0.3 times as wide as is right."""
    n, m = 10_000, 100
    x = rng.normal(size=n)
    noise = n**2 / m * x.var() * (1 - m / n)
    kernel = mhrun.Unadjusted(dynamics(known_noise=noise), m)
    counts = {"chains": 64, "steps": 8_000, "warmup": 3_000, "thin": 40, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(mhrun.GaussianMean(3.0), x, kernel, **counts)
    assert "scale" not in found(trace)
    sd = trace["posterior"]["theta"].values.std() * (n + 1 / 9) ** 0.5
    assert (
        0.9 < sd < 1.1
    )  # 700 effective draws: a standard error of 2.7 %, and a variance that is 5 % too large
    for scale in ("dense", "diagonal"):
        with pytest.raises(Refusal, match="known_noise is a variance in the coordinates of theta"):
            mhrun.sample(mhrun.GaussianMean(3.0), x, kernel, precondition=scale, **counts)
    with pytest.raises(Refusal, match="known_noise"):
        preconditioned(kernel, Scale(torch.zeros(1), torch.ones(1)))


@pytest.mark.parametrize(
    ("dynamics", "longest"),
    [(mhrun.SGNHT(), 0.0225), (mhrun.SGNHT(inertia=0.5), 0.01125), (mhrun.Badodab(), None)],
)
def test_the_steps_of_a_thermostat_are_short_with_few_parameters(dynamics, longest):
    """Of one parameter: at 0.1, which the curvature allows, chains of SGNHT are lost."""
    trace = run(mhrun.Unadjusted(dynamics, None), "normal", steps=3_000, precondition="dense")
    step_size = found(trace)["step_size"]
    if longest is None:
        assert step_size > 0.1
    else:
        assert step_size == pytest.approx(longest)
        assert f"fluctuates most with few parameters, below about {longest:.3g}" in found(trace)["why"]
    assert bool(trace["sample_stats"]["valid"].all())


@pytest.mark.parametrize("dynamics", [mhrun.SGNHT(0.48), mhrun.TACTHMC(0.5)])
def test_a_thermostat_without_a_stationary_value_has_no_step_size(dynamics):
    with pytest.raises(UserError, match="is stable at no step size; lower the friction"):
        run(mhrun.Unadjusted(dynamics, None))


@pytest.mark.parametrize("m", [20, "auto"])
def test_a_limit_of_noise_is_positive(monkeypatch, m):
    monkeypatch.setattr(Penalty, "noise_limit", 0)
    with pytest.raises(UserError, match=r"Penalty.noise_limit = 0 must be positive\."):
        run(mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(m), Penalty()))
