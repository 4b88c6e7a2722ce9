"""Pilots: step sizes, minibatch sizes and scales that are left open."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from kit import KEY, C, advance, advance_compiled, begin, controls, short_run

import mhrun
from mhrun.data import Dataset
from mhrun.engine.curvature import (
    Surface,
    find_curved_modes,
    find_modes,
    hessian,
    is_degenerate,
    largest_curvature,
    on_all_data,
    spectrum,
)
from mhrun.engine.pilot import _inside, pilot, piloted
from mhrun.engine.tuning import _search
from mhrun.errors import Refusal, UserError
from mhrun.kernels.acceptance import efficient_acceptance
from mhrun.kernels.preconditioned import Scale, preconditioned
from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.models.logistic import Logistic
from mhrun.proposals.crank_nicolson import CrankNicolson
from mhrun.store.sharing import PILOT
from mhrun.target import Target

pytestmark = pytest.mark.long

N, D = 2_000, 4
RNG = np.random.default_rng(3)
X = RNG.standard_normal((N, D)) * np.array([0.3, 1.0, 2.0, 5.0])
Y = np.where(RNG.random(N) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5, 0.3, 0.1]))), 1.0, -1.0)
COUNTS = np.random.default_rng(4).poisson(np.exp(0.3 + 0.5 * X[:, 1]))


def logistic(theta, batch):
    return torch.nn.functional.logsigmoid(batch["y"] * (batch["x"] @ theta))


def poisson(theta, batch):
    rate = theta[0] + theta[1] * batch["x"][:, 1]
    return batch["k"] * rate - rate.exp()


def prior(theta):
    return -0.5 * theta.square().sum() / 10


DATA = {"x": X, "y": Y}
MODELS = {
    "logistic": (logistic, DATA, [0.0] * D),
    "poisson": (poisson, {"x": X, "k": COUNTS.astype(float)}, [0.0, 0.0]),
    "normal": (lambda theta, batch: -0.5 * (batch["x"][:, 0] - theta[0]) ** 2, {"x": X}, [3.0]),
}


def full(proposal=None, rule=None):
    return mhrun.MetropolisHastings(proposal or mhrun.RandomWalk(), mhrun.Full(), rule or mhrun.Metropolis())


def run(kernel, model="logistic", **settings):
    log_lik, data, start = MODELS[model]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mhrun.sample(
            log_lik,
            data,
            kernel,
            log_prior=prior,
            **({"start": start, "steps": 300, "warmup": 300} | settings),
        )


def found(trace):
    return json.loads(trace.attrs["pilot"])


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


def test_the_step_of_a_dynamics_is_stable_and_has_the_variance_it_promises():
    """Variances against the inverse of the Hessian at the mode; 1,600 effective draws: a standard error of 3.5 %."""
    model = Logistic(D, prior_variance=10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            model,
            DATA,
            mhrun.Unadjusted(mhrun.SGLD(), m="auto"),
            steps=20_000,
            warmup=1_000,
            chains=16,
            thin=20,
        )
    about = found(trace)
    assert about["m"] == N // 5
    assert 0 < about["step_size"] < 0.11 * about["stability_bound"]
    assert not trace["sample_stats"]["diverging"].any()
    surface = Surface(Target(model, mhrun.Dataset.of(DATA)), 1.0, 0)
    mode = find_modes(surface, torch.zeros(1, D, dtype=torch.float64)).theta[0]
    exact = torch.linalg.inv(hessian(surface, mode)).diagonal().numpy()
    ratio = trace["posterior"]["theta"].values.reshape(-1, D).var(0) / exact
    # 10 % too large in the worst direction, and five standard errors on either side.
    assert (ratio > 0.83).all()
    assert (ratio < 1.28).all()


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
    # At T = 1 and the best step, m/n = a^2 D / (a^2 D + 1) = 0.85 (docs/choosing.md).
    assert 0.7 < m / N < 0.97
    sd = float(np.sqrt(trace["sample_stats"]["log_ratio_var"].mean()))
    assert 0.7 < sd < 1.3
    hot = run(
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
        temperature=50.0,
    )
    assert found(hot)["m"] < 0.3 * N


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
        "the model has no gradients, so that there is no scale; acceptance 0."
    )
    assert "scale" not in found(trace)
    assert found(trace)["settled"]
    assert 0.1 < float(trace["sample_stats"]["accepted"].mean()) < 0.45
    with pytest.raises(UserError, match="no gradient"):
        mhrun.sample(rough, DATA, mhrun.Unadjusted(mhrun.SGLD(), m=10), start=[0.0] * D)


def test_what_a_pilot_cannot_find_is_refused():
    def call(kernel, **settings):
        return mhrun.sample(logistic, DATA, kernel, start=[0.0] * D, **settings)

    with pytest.raises(Refusal, match="no rule finds the step size of Momentum"):
        call(mhrun.Unadjusted(mhrun.Momentum(), m=10))
    unknown = mhrun.RandomWalk()
    unknown.best_acceptance = None
    with pytest.raises(Refusal, match="no acceptance rate is known to be best for RandomWalk"):
        call(full(unknown))
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
    surface = Surface(Target(Logistic(D, prior_variance=10.0), mhrun.Dataset.of(DATA)), 1.0, 0)
    mode = find_modes(surface, torch.zeros(1, D, dtype=torch.float64)).theta[0]
    exact = torch.linalg.inv(hessian(surface, mode)).diagonal().sqrt().numpy()
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
        draws = mhrun.random.Streams(KEY, C).at(0)
        state = each.start(on, theta, draws)
        state, _ = each.step(on, state, controls(0.05, 1.0), mhrun.random.Streams(KEY, C).at(1))
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
    """Without minibatch noise: 0.1 = e b H / 2, b = 3 with Barker's signs (see test_barker_dynamics) and 1 else."""
    step = {
        type(dynamics).__name__: found(run(mhrun.Unadjusted(dynamics, m=N), "normal", steps=20, warmup=0))[
            "step_size"
        ]
        for dynamics in (mhrun.SGBD(), mhrun.TACTHMC(), mhrun.SGNHT())
    }
    assert step["SGNHT"] == pytest.approx(0.2, rel=1e-3)
    assert step["TACTHMC"] == pytest.approx(0.2, rel=1e-3)
    assert step["SGBD"] == pytest.approx(0.2 / 3, rel=1e-3)


# --- Trajectories -------------------------------------------------------------------------------------------------


def of_density(log_density, dim, leapfrog_steps="auto"):
    """Return what a pilot finds for HMC on a log density (C, D) -> (C,)."""
    from mhrun.engine.assemble import assembled
    from mhrun.schedules.tuned import Tuned

    def log_lik(theta, rows):
        return log_density(theta)[:, None]

    model = mhrun.FunctionModel(log_lik, [0.3] * dim, batched=True, start_sd=1.0)
    counts = {"chains": 4, "warmup": 100, "steps": 10, "thin": 1, "thin_stats": None, "seed": 0}
    schedules = {"step_size": Tuned("auto", "auto"), "temperature": mhrun.Fixed(temperature=1.0)}
    target = Target(model, mhrun.NoData().load())
    kernel = full(mhrun.HamiltonianProposal(leapfrog_steps))
    settings = {"dtype": torch.float64, "starts": None, "monitor": None}
    return pilot(assembled("a", kernel, target, schedules, counts, **settings))


def test_a_trajectory_is_a_quarter_of_a_period():
    """On a normal target: L = round(pi / 2 / e) for a step size e of acceptance 0.8 or somewhat more."""
    sd = torch.tensor([0.1, 1.0, 7.0])
    about = of_density(lambda theta: -0.5 * (theta / sd.to(theta)).square().sum(-1), 3)
    assert about.facts["leapfrog_steps"] * about.facts["step_size"] == pytest.approx(np.pi / 2)
    assert 0.6 < about.facts["acceptance"] <= 0.95
    assert "rounds" not in about.facts  # the curvature fits
    assert about.scale.factor.diagonal().numpy() == pytest.approx(sd.numpy(), rel=1e-3)
    assert about.facts["n_lik"] > 0
    given = of_density(lambda theta: -0.5 * theta.square().sum(-1), 2, 3)
    assert given.leapfrog_steps is None
    assert abs(given.facts["acceptance_found"] - 0.8) < 0.1


def test_a_scale_comes_from_draws_where_the_mode_has_no_curvature():
    """exp(-x^4 / 4) and N(0, 0.5^2): standard deviations of 0.82 and 0.5; of some hundred correlated draws."""
    about = of_density(lambda theta: -(theta[:, 0] ** 4) / 4 - 2 * theta[:, 1] ** 2, 2)
    assert about.facts["rounds"] > 0
    assert about.scale.factor.diagonal().numpy() == pytest.approx([0.82, 0.5], rel=0.6)
    assert about.facts["leapfrog_steps"] <= 4
    for curvature in ([1.0, 0.0], [1.0, -1.0]):  # flat, and a saddle
        assert is_degenerate(torch.diag(torch.tensor(curvature)))
    assert not is_degenerate(torch.diag(torch.tensor([1.0, 1e-4])))


def test_a_run_of_trajectories_reads_its_pilot_again(tmp_path, capsys):
    def ran():
        kernel = full(mhrun.HamiltonianProposal())
        return run(kernel, "normal", folder=tmp_path, steps=20, warmup=50)

    first = ran()
    assert f"{found(first)['leapfrog_steps']} leapfrog step" in capsys.readouterr().err
    each = np.diff(first["sample_stats"]["n_grad"])
    assert (each == N * found(first)["leapfrog_steps"]).all()
    (tmp_path / "done.json").unlink()
    (tmp_path / "trace.nc").unlink()
    assert np.array_equal(ran()["posterior"]["theta"], first["posterior"]["theta"])


@short_run
def test_trajectories_that_diverge_are_said():
    with pytest.warns(UserWarning, match="trajectories diverged: the step size is too large"):
        mhrun.sample(
            lambda theta: -(theta**4).sum(),
            None,
            full(mhrun.HamiltonianProposal(8)),
            start=[0.1],
            step_size=0.9,
            steps=50,
            warmup=0,
        )


def test_leapfrog_steps_of_many_parameters_are_to_be_given():
    with pytest.raises(
        Refusal, match=r"leapfrog_steps from the curvature, for up to 200 parameters, not 201"
    ):
        of_density(lambda theta: -theta.square().sum(-1), 201)


# --- Modes and curvature ------------------------------------------------------------------------------------------


def test_modes_and_curvature_of_a_normal_density():
    precision = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    data = mhrun.Dataset({"x": torch.zeros(10, 1)})

    class Normal:
        dim, names = 2, ("a", "b")

        def init(self, chains, draws):
            return torch.zeros(chains, 2, dtype=torch.float64)

        def log_prior(self, theta):
            return torch.zeros(len(theta), dtype=theta.dtype)

        def log_lik(self, theta, rows):
            off = theta - torch.tensor([1.0, -2.0], dtype=theta.dtype)
            height = -0.05 * torch.einsum("cd,de,ce->c", off, precision.to(theta), off)
            return height[:, None].expand(-1, rows["x"].shape[1])

    surface = Surface(Target(Normal(), data), 1.0, 0)
    modes = find_modes(surface, torch.tensor([[5.0, 5.0], [-3.0, 0.0]], dtype=torch.float64))
    assert modes.theta.numpy() == pytest.approx(np.array([[1.0, -2.0]] * 2), abs=1e-4)
    assert hessian(surface, modes.theta[0]).numpy() == pytest.approx(precision.numpy(), abs=1e-5)
    largest = float(torch.linalg.eigvalsh(precision).max())
    assert largest_curvature(surface, modes.theta[0]) == pytest.approx(largest, rel=1e-3)
    values, _ = spectrum(torch.diag(torch.tensor([0.0, 4.0], dtype=torch.float64)))
    assert values.min() > 0
    assert surface.n_grad > 0


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
    points = _inside(Ridge(), modes, off, off, expected)
    assert points[0].tolist() == [0.125, 0.0]  # after four halves
    assert torch.equal(points[1:], off[1:])


# --- Scaled coordinates -----------------------------------------------------------------------------------------


def scale(dense):
    center = torch.tensor([0.5, -1.0], dtype=torch.float64)
    factor = torch.tensor([[0.7, 0.0], [0.4, 1.5]], dtype=torch.float64)
    return Scale(center, factor if dense else factor.diagonal().clone())


@pytest.mark.parametrize("dense", [False, True])
def test_a_scale_maps_there_and_back(dense):
    one, theta = scale(dense), torch.randn(3, 2, dtype=torch.float64)
    assert torch.allclose(one.to_theta(one.to_phi(theta)), theta)
    theta.requires_grad_()
    phi = one.to_phi(theta.detach()).requires_grad_()
    one.to_theta(phi).sin().sum().backward()
    at = one.to_theta(phi.detach()).requires_grad_()
    at.sin().sum().backward()
    assert torch.allclose(phi.grad, one.pull(at.grad))
    with pytest.raises(Refusal, match="positive diagonal"):
        Scale(torch.zeros(2), torch.tensor([1.0, 0.0]))


CORRELATED = GaussianMixture([[0.0, 0.0]], 1.0)


@pytest.mark.parametrize(
    ("kernel", "dense", "in_machine_code"),
    [
        pytest.param(full(), False, False, id="random walk, diagonal"),
        pytest.param(full(), True, False, id="random walk, dense"),
        pytest.param(full(CrankNicolson()), False, False, id="Crank-Nicolson, diagonal"),
        pytest.param(full(CrankNicolson()), True, True, id="Crank-Nicolson, dense"),
        pytest.param(mhrun.Unadjusted(mhrun.SGHMC(), m=1), False, True, id="SGHMC, diagonal"),
        pytest.param(mhrun.Unadjusted(mhrun.SGHMC(), m=1), True, False, id="SGHMC, dense"),
    ],
)
def test_compiled_and_torch_steps_agree_in_scaled_coordinates(request, kernel, dense, in_machine_code):
    """Each scale and each kind of kernel once in machine code, and all pairs as plain Python."""
    if not in_machine_code:
        request.getfixturevalue("interpreted")
    target = Target(CORRELATED, mhrun.NoData().load())
    moves = preconditioned(kernel, scale(dense))
    state, draws = begin(moves, target, C)
    _, thetas, _ = advance(moves, target, state, controls(0.3, 1.0), draws, 30)
    _, compiled, _ = advance_compiled(moves, target, begin(moves, target, C)[0], controls(0.3, 1.0), 30, KEY)
    assert compiled == pytest.approx(thetas, abs=1e-9)


@pytest.mark.parametrize("proposal", ["RandomWalk", "LangevinProposal", "CrankNicolson"])
def test_tests_in_scaled_coordinates_keep_the_target(proposal):
    """Means and variances of a standard normal, 64 chains: each within 5 standard errors by batches (seed fixed)."""
    make = {"CrankNicolson": CrankNicolson}.get(proposal) or getattr(mhrun, proposal)
    target = Target(CORRELATED, mhrun.NoData().load())
    moves = preconditioned(full(make()), scale(True))
    state, draws = begin(moves, target, 64)
    step = 0.3 if proposal == "LangevinProposal" else 0.6
    _, thetas, _ = advance(moves, target, state, controls(step, 1.0, chains=64), draws, 600)
    draws_of = thetas[:, 100:]
    for moment, exact in ((draws_of, 0.0), (draws_of**2, 1.0), (draws_of[..., :1] * draws_of[..., 1:], 0.0)):
        by_chain = moment.mean(1)
        z = (by_chain.mean(0) - exact) / (by_chain.std(0, ddof=1) / 8)
        assert (np.abs(z) < 5).all()


def test_a_pilot_is_the_methods_own(tmp_path):
    from mhrun.engine.assemble import assembled
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


@pytest.mark.parametrize(("temperature", "moved"), [(1.0, True), (1e4, False)])
def test_chains_of_many_data_begin_at_the_mode_of_all_of_them(monkeypatch, temperature, moved):
    """A part of 500 of 200,000 data has its mode about 20 standard deviations off at T = 1, and 0.2 at T = 10^4."""
    monkeypatch.setattr("mhrun.engine.curvature.ROWS", 500)
    n = 200_000
    x = np.random.default_rng(5).normal(0.3, 1.0, n)
    target = Target(GaussianMean(), Dataset.of(x))
    surface = Surface(target, temperature, seed=1)
    modes = find_modes(surface, torch.tensor([[0.0], [5.0], [-7.0]], dtype=torch.float64))
    curvature = hessian(surface, modes.theta[0])
    before, spent = (float(modes.theta[0]) - x.mean()) * n**0.5, surface.n_grad
    after = (on_all_data(surface, modes.theta, modes.best, curvature) - x.mean()) * n**0.5
    assert abs(before) > 5
    assert after.abs().max() < 0.01 if moved else after[0] == pytest.approx(before)
    assert surface.n_grad - spent == (2 * n if moved else 0)  # one mode: a step, and one that finds it there


def survival(theta, rows):
    """Weibull lifetimes, a third of them censored; far from the mode exp(z) is a wall of 10^10 nats."""
    z = theta[3].exp() * (rows["log_time"] - theta[0] - rows["x"] @ theta[1:3])
    return rows["event"] * (theta[3] + z) - z.exp()


def lifetimes(n=3_000):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 2))
    time, censored = np.exp(1 + x @ [0.5, -0.3]) * rng.weibull(1.5, n), rng.exponential(6.0, n)
    return {
        "x": x,
        "log_time": np.log(np.minimum(time, censored)),
        "event": (time <= censored).astype("float64"),
    }


def test_ascents_come_down_from_steep_walls():
    """From wide starts, some of which L-BFGS leaves far from the mode the first time, all end at one mode."""
    model = FunctionModel(
        survival, torch.zeros(4, dtype=torch.float64), lambda theta: -0.125 * (theta**2).sum()
    )
    surface = Surface(Target(model, Dataset.of(lifetimes())), 1.0, 0)
    starts = 2 * torch.randn(24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ends = torch.cat([find_modes(surface, starts[i : i + 4]).theta for i in range(0, 24, 4)])
    sd = torch.linalg.inv(hessian(surface, ends[0])).diagonal().sqrt()
    assert ((ends - ends[0]).abs() < 0.05 * sd).all()


def raw_rows(n=500):
    """Age in years, income in coins, and an outcome of 0 and 1 beside one with noise."""
    rng = np.random.default_rng(1)
    age, income = rng.normal(45, 12, n), rng.lognormal(10.5, 0.5, n)
    x = np.column_stack([np.ones(n), age, income])
    y = x @ [2.0, 0.1, 5e-5] + rng.normal(size=n)
    died = rng.random(n) < 1 / (1 + np.exp(-(x @ [-6.0, 0.1, 3e-5])))
    return x, y, died.astype("float64")


def gaussian(theta, rows):
    return -theta[3] - 0.5 * ((rows["y"] - rows["x"] @ theta[:3]) / theta[3].exp()) ** 2


def binary(theta, rows):
    score = rows["x"] @ theta
    return rows["y"] * score - torch.nn.functional.softplus(score)


@pytest.mark.parametrize("log_lik", [gaussian, binary])
def test_features_that_nobody_standardised_have_a_mode_and_a_scale(log_lik):
    """The curvature has a condition number above 10^10; ascents begin at draws of N(0, 10^2) priors."""
    x, y, died = raw_rows()
    dim = 4 if log_lik is gaussian else 3
    model = FunctionModel(
        log_lik, torch.zeros(dim, dtype=torch.float64), lambda theta: -0.005 * (theta**2).sum()
    )
    target = Target(model, Dataset.of({"x": x, "y": y if log_lik is gaussian else died}))
    surface = Surface(target, 1.0, 0)
    starts = 10 * torch.randn(4, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    starts[:, 3:] = 0.5
    modes, curvature, proper = find_curved_modes(surface, starts)
    assert proper
    values, vectors = spectrum(curvature, proper=True)
    assert values.max() / values.min() > 1e10
    at = modes.theta[modes.best].clone().requires_grad_()
    rows = {"x": torch.from_numpy(x), "y": torch.from_numpy(y if log_lik is gaussian else died)}

    def energy(theta):
        return 0.005 * (theta**2).sum() - log_lik(theta, rows).sum()

    exact = torch.autograd.functional.hessian(energy, at.detach())
    units = exact.diagonal().rsqrt()
    assert torch.allclose(units[:, None] * curvature * units, units[:, None] * exact * units, atol=1e-3)
    (gradient,) = torch.autograd.grad(energy(at), at)
    covariance = torch.linalg.inv(units[:, None] * exact * units)
    assert (units * gradient) @ covariance @ (units * gradient) < 0.1  # a third of a standard deviation
    root = torch.linalg.cholesky(vectors @ torch.diag(1 / values) @ vectors.T) / units[:, None]
    assert torch.allclose(root @ root.T, covariance, rtol=0.02, atol=0.02)


def test_modes_that_are_apart_stay_apart_on_all_data(monkeypatch):
    """Two modes of one likelihood, |theta| = 1: each moves to its own on all data."""
    monkeypatch.setattr("mhrun.engine.curvature.ROWS", 200)
    n = 20_000
    x = np.random.default_rng(6).normal(1.0, 1.0, n)

    def log_lik(theta, batch):
        return -0.5 * (batch["x"] - theta[0] ** 2) ** 2

    target = Target(FunctionModel(log_lik, torch.zeros(1)), Dataset.of(x))
    surface = Surface(target, 1.0, seed=1)
    modes = find_modes(surface, torch.tensor([[-0.8], [1.2], [-1.5]], dtype=torch.float64))
    found = on_all_data(surface, modes.theta, modes.best, hessian(surface, modes.theta[modes.best]))
    assert found[:, 0].abs().numpy() == pytest.approx(np.sqrt(x.mean()), abs=0.2 * n**-0.5)
    assert found[:, 0].sign().tolist() == [-1, 1, -1]


def test_modes_of_several_coordinates_move_together(monkeypatch):
    """Four coordinates, 200 of 2,000 data: the gradient on all data is that of a point near the mode."""
    monkeypatch.setattr("mhrun.engine.curvature.ROWS", 200)
    target = Target(
        FunctionModel(logistic, torch.zeros(D, dtype=torch.float64)), Dataset.of({"x": X, "y": Y})
    )
    surface = Surface(target, 1.0, seed=1)
    modes = find_modes(
        surface, torch.randn(6, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    )
    curvature = hessian(surface, modes.theta[modes.best])
    root = torch.linalg.cholesky(torch.linalg.inv(curvature))

    def distance(points):
        return (target.gradients.full(points, torch.ones(6, dtype=torch.float64)) @ root).norm(dim=1)

    assert distance(modes.theta).min() > 1
    found = on_all_data(surface, modes.theta, modes.best, curvature)
    assert distance(found).max() < 0.5
    assert found.unique(dim=0).shape == (1, D)


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
        mhrun.SGNHT(friction=[0.1, 0.05]),
        *(pytest.param(d, marks=pytest.mark.slow) for d in (mhrun.SGLD(), mhrun.SGHMC())),
    ],
)
def test_a_ladder_of_a_dynamics_gets_a_stable_step_size(dynamics):
    """The variances of a logistic posterior at both rungs; the seed is fixed, and a standard error is 4 to 8 %."""
    ladder = mhrun.ReplicaExchange(
        mhrun.Unadjusted(dynamics, m="auto"), mhrun.Growing(), mhrun.MHMinibatch(m=200), rungs=2, every=20
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = mhrun.sample(
            Logistic(D, prior_variance=10.0),
            DATA,
            ladder,
            temperature=[1.0, 1.5],
            chains=16,
            steps=2_000,
            executor="torch",
            warmup=500,
            thin=10,
        )
    about = found(trace)
    assert about["m"] == N // 5
    assert 0 < about["step_size"] < 0.11 * about["stability_bound"]
    surface = Surface(Target(Logistic(D, prior_variance=10.0), mhrun.Dataset.of(DATA)), 1.0, 0)
    mode = find_modes(surface, torch.zeros(1, D, dtype=torch.float64)).theta[0]
    exact = torch.linalg.inv(hessian(surface, mode)).diagonal().numpy()
    for number, heat in enumerate([1.0, 1.5]):
        draws = mhrun.rung(trace, number)["posterior"]["theta"].values
        ratio = draws.reshape(-1, D).var(0) / exact / heat
        assert (ratio > 0.75).all(), number
        assert (ratio < 1.35).all(), number
