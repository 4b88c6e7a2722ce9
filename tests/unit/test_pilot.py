"""Pilots: step sizes and scales that are left open, and what a pilot cannot find."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from regressions import DATA, MODELS, D, found, full, logistic, of_logistic, prior, run

import mhrun
from mhrun.engine.assemble import assembled
from mhrun.engine.pilot import pilot, piloted
from mhrun.engine.pilot.acceptance import search_step_size
from mhrun.engine.pilot.start import inside
from mhrun.errors import Refusal, UserError
from mhrun.kernels.acceptance import efficient_acceptance
from mhrun.models.gaussian_mixture import GaussianMixture
from mhrun.random import Purpose
from mhrun.store.sharing import PILOT
from mhrun.target import Target

pytestmark = pytest.mark.long
CORRELATED = GaussianMixture([[0.0, 0.0]], 1.0)


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
    assert "precondition=dense (condition number" in line
    assert f"aimed at {best:.2f}; settled in" in line
    assert "likelihoods" in line


def test_the_step_size_of_a_random_walk_agrees_with_theory():
    """In coordinates of unit variance, the best step is 2.38 / sqrt(D) (Roberts, Gelman & Gilks 1997)."""
    assert found(run(full()))["step_size"] == pytest.approx(2.38 / D**0.5, rel=0.35)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_kernel_that_derives_from_another_is_tuned_as_that_one():
    class Counting(mhrun.MetropolisHastings):
        steps = 0

        def step(self, *args):
            Counting.steps += 1
            return super().step(*args)

    derived = Counting(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    assert found(run(derived))["step_size"] == found(run(full()))["step_size"]
    assert Counting.steps > 100


def test_what_a_pilot_cannot_find_is_refused():
    def call(kernel, **settings):
        return mhrun.sample(logistic, DATA, kernel, start=[0.0] * D, **settings)

    with pytest.raises(Refusal, match="no rule finds the step size of Momentum"):
        call(mhrun.Unadjusted(mhrun.Momentum(), m=10))
    with pytest.raises(Refusal, match="precondition = 'some' is unknown"):
        call(full(), precondition="some")
    with pytest.raises(Refusal, match="acceptance = auto requires start = auto"):
        mhrun.Tuned(1.0, "auto")
    with pytest.raises(Refusal, match="cannot be combined with end"):
        mhrun.Polynomial("auto", 0.1)
    with pytest.raises(Refusal, match=r"start = -0.1 must be positive"):
        mhrun.Polynomial(-0.1, "auto")
    with pytest.raises(Refusal, match="start = -1 must be positive"):
        mhrun.Tuned(-1.0, "auto")
    with pytest.raises(Refusal, match="chains = 0 must be at least 1"):
        call(full(), chains=0, warmup=10)


@pytest.mark.slow
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


@pytest.mark.parametrize("aim", [0.234, 0.574, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("first", [0.59, 30.0, 1e-4])
def test_a_step_size_is_found_for_each_rate_from_above_and_below(aim, first):
    """Of chains with the acceptance rate erfc((step / 0.1)^2), measured without error; far above it is 0."""

    class Measured:
        def window(self, step):
            return float(torch.special.erfc((step / 0.1) ** 2).mean()), 0.0

    step = search_step_size(Measured(), np.log(first), torch.ones(4), aim)
    assert step.settled
    assert step.windows <= 30
    assert abs(np.log(step.rate / (1 - step.rate)) - np.log(aim / (1 - aim))) < 0.35
    assert float(step.step.mean()) == pytest.approx(
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
    done = piloted(method, tmp_path, lines.append)
    assert not done.plan.is_open
    assert len(lines) == 1
    again = piloted(method, tmp_path, lines.append)
    assert len(lines) == 1  # it was read
    assert torch.equal(again.first_points(), done.first_points())
    assert done.pilot["n_lik"] > 0
    assert again.pilot == done.pilot


def test_the_search_of_a_bounded_step_size_ends_at_its_bound(capsys):
    """In scaled coordinates Crank-Nicolson moves are reversible for a normal posterior: all are accepted."""
    x = np.random.default_rng(0).normal(size=50)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            lambda theta, row: -0.5 * (row.x - theta[0]) ** 2, {"x": x},
            mhrun.MetropolisHastings(mhrun.CrankNicolson(), mhrun.Full(), mhrun.Metropolis()),
            start=[0.0], precondition="dense", steps=500, warmup=100, progress=False,
        )  # fmt: skip
    assert found(trace)["step_size"] == 1.0
    assert "acceptance 1.00 at the largest step; settled in" in capsys.readouterr().err
    assert float(trace["sample_stats"]["accepted"].mean()) > 0.999
    assert not [str(one.message) for one in caught]
    draws = trace["posterior"]["theta"].to_numpy()
    assert abs(draws.mean() - x.mean()) * 50**0.5 < 4.9 / 2000**0.5  # independent draws
    with pytest.warns(UserWarning, match=r"acceptance .* is outside .* Raise the step size"):  # of the user
        mhrun.sample(
            lambda theta, row: -0.5 * (row.x - theta[0]) ** 2, {"x": x},
            mhrun.MetropolisHastings(mhrun.CrankNicolson(), mhrun.Full(), mhrun.Metropolis()),
            start=[0.0], step_size=0.01, steps=500, warmup=100, progress=False,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("rows", [100, 0])
def test_a_test_whose_bounds_are_wide_is_said_to_read_many_data(rows, capsys):
    """Of a level without events a Poisson regression has a tail in which bounds are of no use."""
    n = 20_000
    x = np.ones((n, 2))
    x[:, 1] = np.arange(n) < rows
    y = np.random.default_rng(1).poisson(1.5, n) * (x[:, 1] == 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mhrun.sample(
            mhrun.PoissonRegression(2, prior_variance=100.0), {"x": x, "y": y.astype(float)}, "mh_ss",
            steps=20, warmup=50, progress=False,
        )  # fmt: skip
    said = capsys.readouterr().err
    assert ("of 20,000 data, as the bounds are wide here: hmc, which reads all of them" in said) == bool(rows)
