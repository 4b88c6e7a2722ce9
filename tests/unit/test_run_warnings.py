"""Warnings after a run: chains that have not converged, rejected candidates, tuning, temperature, stuck chains."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from kit import FEW, config, gaussian, short_run
from scipy import signal, stats

import mhrun
from mhrun.diagnostics.chains import Diagnosis, ess, worth
from mhrun.engine.experiment import run_experiment
from mhrun.engine.warnings.draws import precision_warnings
from mhrun.engine.watcher import Silent
from mhrun.kernels.acceptance import efficient_acceptance
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.pairing.growing import Growing
from mhrun.report.efficiency import valid_draws
from mhrun.report.report_warnings import report_warnings
from mhrun.report.run import Run
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch
from mhrun.schedules.fixed import Fixed


def kernel(proposal=None, rule=None, pairing=None):
    return mhrun.MetropolisHastings(
        proposal or mhrun.RandomWalk(), pairing or mhrun.Full(), rule or mhrun.Metropolis()
    )


def warned(step_size, *, dim=2, moves=None, **settings):
    """Return the warnings of a run on a normal density of standard deviation 0.5."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            gaussian(dim),
            None,
            moves or kernel(),
            step_size=step_size,
            **({"steps": 1_500, "warmup": 200} | settings),
        )
    return [str(one.message) for one in found]


@pytest.mark.slow
def test_a_good_run_has_no_warnings():
    assert warned(0.8) == []
    assert warned(0.8, acceptance=0.3, warmup=1_000) == []


@pytest.mark.slow
@pytest.mark.parametrize(("where", "coarse"), [(1e6, True), (3e4, True), (10.0, False)])
def test_a_posterior_between_numbers_of_float32_is_warned_of(where, coarse):
    def density(theta):
        return -0.5 * ((theta[0] - where) / 0.01) ** 2

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        settings = {"start": [where], "step_size": 0.02, "steps": 2_000, "warmup": 100}
        mhrun.sample(density, None, kernel(), dtype=torch.float32, **settings)
    lines = [str(one.message) for one in found if "float32 is too coarse for theta[0]" in str(one.message)]
    assert bool(lines) == coarse


@pytest.mark.slow
def test_a_single_chain_is_warned_of():
    (line,) = warned(0.8, chains=1, steps=6_000)
    assert line.startswith("R-hat compares the two halves of a single chain")


@pytest.mark.slow
def test_a_step_size_that_is_far_off_is_warned_of():
    lines = warned(20.0, steps=400)
    assert any("R-hat is" in line and "have not converged" in line for line in lines)
    assert any("ESS is" in line and "below 400" in line for line in lines)
    lines = warned(0.01, start=[0.0, 0.0])
    (line,) = [line for line in lines if line.startswith("acceptance")]
    assert line.startswith("acceptance 0.99")
    assert line.endswith("outside 0.11 to 0.78, where it is efficient. Raise the step size.")


@pytest.mark.slow
def test_trajectories_are_advised_to_stay_as_long():
    """A longer step alone would let them turn back to where they began."""
    hmc = mhrun.MetropolisHastings(mhrun.HamiltonianProposal(10), mhrun.Full(), mhrun.Metropolis())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call = {"start": [0.0] * 3, "step_size": 0.05, "steps": 300, "warmup": 0}
        mhrun.sample(lambda theta: -0.5 * theta.square().sum(), None, hmc, **call)
    (line,) = (str(one.message) for one in found if "acceptance" in str(one.message))
    assert line.endswith(
        "Raise the step size, and take fewer leapfrog steps, so that trajectories stay as long."
    )


@pytest.mark.slow
def test_tuning_that_had_not_settled_is_warned_of():
    (line,) = [line for line in warned(20.0, acceptance=0.3, warmup=50) if "settled" in line]
    assert "tuned to 0.30. Raise warmup" in line
    # The acceptance rate is not warned of a second time.
    assert not [line for line in warned(20.0, acceptance=0.3, warmup=50) if line.startswith("acceptance")]


def test_chains_that_never_move_are_warned_of():
    lines = warned(1e6, steps=50)
    assert "4 of 4 chains never moved after burn-in: no candidate was accepted." in lines[0]
    assert "ESS and R-hat are undefined: a coordinate never moves (theta1)." in lines


@pytest.mark.slow
def test_a_temperature_is_warned_of():
    (line,) = [line for line in warned(4.0, temperature=25.0) if "T = 25" in line]
    assert "not the posterior: its standard deviations are up to sqrt(T) = 5 times as large" in line


@pytest.mark.parametrize(
    ("moves", "dim", "best"),
    [
        (kernel(), 1, 0.441),
        (kernel(), 200, 0.235),
        (kernel(mhrun.LangevinProposal()), 1000, 0.574),
        (kernel(mhrun.LangevinProposal()), 1, 0.70),
        (kernel(rule=mhrun.Barker()), 200, 0.159),
        (kernel(rule=MHMinibatch(50), pairing=Growing()), 200, 0.159),
        (kernel(mhrun.LangevinProposal(ratio=False)), 5, None),
        (kernel(mhrun.ReversibleLangevinProposal()), 1000, 0.287),
        (kernel(mhrun.ReversibleLangevinProposal()), 1, 0.487),
        (mhrun.Unadjusted(mhrun.SGLD(), m=1), 5, None),
    ],
)
def test_each_family_has_its_own_acceptance_rate(moves, dim, best):
    found = efficient_acceptance(moves, dim)
    assert (found is None) if best is None else found.best == pytest.approx(best, abs=1e-3)
    assert found is None or 0 < found.low < found.best < found.high < 1


@pytest.mark.slow
def test_few_effective_draws_in_the_tails_are_warned_of(monkeypatch):
    """Signs are independent, scales change every 50 draws: 4,000 draws have 80 in the tails."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 1000, 1)) * np.exp(rng.normal(size=(4, 20, 1)).repeat(50, 1))
    found = worth(draws)
    assert found["ess"] > 400 > found["ess_tail"]
    monkeypatch.setattr("mhrun.engine.diagnosis.judged_draws.flat_draws", lambda _: draws)
    (line,) = [line for line in warned(0.8) if "tail ESS" in line]
    assert re.match(
        r"tail ESS is \d+, below 400: standard deviations and the 5 % and 95 % quantiles are", line
    )


@pytest.mark.slow
def test_a_coordinate_that_never_moves_does_not_hide_the_others(monkeypatch):
    rng = np.random.default_rng(0)
    draws = np.stack([np.ones((4, 1000)), rng.normal(size=(4, 1000)) + 5 * np.arange(4)[:, None]], -1)
    monkeypatch.setattr("mhrun.engine.diagnosis.judged_draws.flat_draws", lambda _: draws)
    lines = [line for line in warned(0.8) if "ESS" in line or "R-hat" in line]
    assert re.match(r"ESS and R-hat are undefined: a coordinate never moves \(theta1\)", lines[0])
    assert re.match(r"R-hat is \d\.\d+ \(theta2\), above 1.01", lines[1])
    assert re.match(r"ESS is \d\.\d+ \(theta2\), below 400", lines[2])


@pytest.mark.slow
def test_an_ess_just_below_400_is_not_shown_as_400(monkeypatch):
    monkeypatch.setattr("mhrun.engine.diagnosis.judged_draws.flat_draws", lambda _: np.zeros((4, 12, 1)))
    good = Diagnosis(1.0, 399.8, 500.0, 0.1, (0.0, 0.0, 0.0))
    for found, word in (
        (good, "ESS is 399,"),
        (good._replace(ess=500.0, ess_tail=399.7), "tail ESS is 399,"),
    ):
        monkeypatch.setattr("mhrun.engine.warnings.draws.diagnoses", lambda _, found=found: [found])
        assert any(line.startswith(word) for line in warned(0.8)), word


@pytest.mark.parametrize("executor", ["torch", "auto"])
def test_a_likelihood_that_is_not_a_number_somewhere_is_warned_of(executor):
    def log_lik(theta, rows):
        return -0.5 * (rows - theta[0]) ** 2 + torch.where(theta[0] > 0.05, torch.nan, 0.0)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            log_lik,
            torch.linspace(-1, 1, 50),
            kernel(),
            start=[0.0],
            step_size=0.2,
            steps=300,
            executor=executor,
        )
    (line,) = [str(one.message) for one in found if "not a number" in str(one.message)]
    assert re.match(r"\d+ of 1,200 candidates were rejected because their log-ratio was not a number", line)


class WithoutRatio(mhrun.Metropolis):
    def decide(self, contest, draws):
        verdict = super().decide(contest, draws)
        return verdict._replace(log_ratio=torch.full_like(verdict.log_ratio, torch.nan))


def test_a_rule_that_accepts_and_reports_no_ratio_is_named():
    """Nothing was rejected for it, and no log-likelihood is NaN."""
    with pytest.warns(
        UserWarning, match="WithoutRatio reports NaN as the log-ratio of 1,200 of 1,200 decisions, some"
    ):
        mhrun.sample(
            lambda theta, rows: -0.5 * (rows - theta[0]) ** 2,
            torch.linspace(-1, 1, 50),
            mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), WithoutRatio()),
            start=[0.0],
            step_size=0.2,
            steps=300,
        )


@pytest.mark.parametrize(
    ("edge", "cause"),
    [
        (np.inf, "4 of 4 chains never moved after burn-in"),
        (2.0, "the log-likelihood is not finite at any candidate"),
    ],
)
def test_a_huge_step_is_named_whether_its_candidates_are_finite_or_not(edge, cause):
    """Half of them are beyond the edge of a support, or all are beyond one of two."""

    def log_lik(theta, rows):
        outside = (theta[0] < 0) | (theta[0] > edge)
        return -0.5 * (rows - theta[0]) ** 2 + torch.where(outside, torch.nan, 0.0)

    with pytest.warns(UserWarning, match=cause) as found:
        mhrun.sample(
            *(log_lik, torch.linspace(0, 2, 50), kernel()),
            start=[1.0],
            step_size=1e8,
            steps=300,
            warmup=0,
        )
    (line,) = (line for one in found if "moved" in (line := str(one.message)))
    assert "Lower the step size" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "pairing", "there", "enters"),
    [
        (mhrun.Metropolis(), mhrun.Shared(2), -np.inf, True),
        (mhrun.Austere(2, 0.1), Growing(), np.nan, True),
        (mhrun.Metropolis(), mhrun.Full(), np.nan, False),
    ],
)
def test_decisions_on_minibatches_may_enter_where_data_are_impossible(rule, pairing, there, enters):
    def log_lik(theta, rows):  # theta above the smallest of the data is impossible for these alone
        return torch.where(rows > theta[0], theta[0] - rows, there)

    settings = {"start": [0.0], "step_size": 0.3, "steps": 300, "warmup": 50, "executor": "torch"}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            log_lik, torch.linspace(0.1, 3, 50, dtype=torch.float64), kernel(None, rule, pairing), **settings
        )
    (line,) = [str(one.message) for one in found if "not a number" in str(one.message)]
    end = ", or lie in it: a minibatch may lack the data that are impossible there."
    assert line.endswith("Draws may lack that region" + (end if enters else "."))


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        MHMinibatch(50),
        pytest.param(mhrun.MHSubLhd(50), marks=pytest.mark.slow),
        pytest.param(mhrun.Austere(50, 0.05), marks=pytest.mark.slow),
        MHMinibatch(5),
        Metropolis(),
    ],
)
def test_a_first_minibatch_of_all_data_is_named(rule):
    pairing = mhrun.Full() if isinstance(rule, Metropolis) else Growing()
    moves = kernel(None, rule, pairing)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        data = torch.linspace(-1, 1, 10, dtype=torch.float64)
        mhrun.sample(
            lambda theta, x: -0.5 * (x - theta[0]) ** 2, data, moves, start=[0.0], step_size=0.5, steps=50
        )
    lines = [str(one.message) for one in found if "all data" in str(one.message)]
    named = (
        "the first minibatch, m = 50, is not smaller than n = 10: each decision read all data. Lower m, or take more "
        "data."
    )
    assert lines.count(named) == (rule.first_batch == 50)
    assert not (named in lines and any("its minibatches save little" in line for line in lines))


def of_trajectories(rule, step_size, pairing, **settings):
    """Draws of HMC on 2,000 data of a logistic regression, and the warnings."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 3))
    y = np.where(rng.random(2_000) < 1 / (1 + np.exp(-x.sum(1))), 1, -1)
    moves = mhrun.MetropolisHastings(mhrun.HamiltonianProposal(leapfrog_steps=5), pairing, rule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            mhrun.Logistic(3, prior_variance=1.0, start="zeros"), {"x": x, "y": y}, moves, step_size=step_size,
            steps=400, warmup=0, seed=1, progress=False, **settings,
        )  # fmt: skip
    return trace, [str(one.message) for one in caught]


@pytest.mark.slow
def test_what_a_test_of_single_data_rejects_is_no_divergence():
    """SMH rejects with a log-ratio of minus infinity; the trajectory may have been as good as any."""
    pairing = mhrun.Thinned(gradient_m=500)
    trace, lines = of_trajectories(mhrun.SMH(), 0.02, pairing, surrogate="taylor2", start=[1.0, 1.0, 1.0])
    rejected = ~trace["sample_stats"]["accepted"].to_numpy()
    assert rejected.sum() > 10
    assert np.isneginf(trace["sample_stats"]["log_ratio"].to_numpy()[rejected]).any()
    assert not trace["sample_stats"]["diverging"].to_numpy().any()
    assert not any("diverged" in line for line in lines)


@pytest.mark.slow
def test_a_step_too_large_for_any_trajectory_is_named():
    trace, lines = of_trajectories(mhrun.Metropolis(), 5.0, mhrun.Full())
    assert trace["sample_stats"]["diverging"].to_numpy().all()
    assert any("chains never moved after burn-in" in line and "Lower the step size" in line for line in lines)
    assert not any("not finite at its starting point" in line for line in lines)


@pytest.mark.slow
def test_few_valid_draws_of_a_tempered_dynamics_are_warned_of():
    """x of TACT-HMC moves through (-1, 1); theta is a draw for |x| < 0.085."""
    moves = mhrun.Unadjusted(mhrun.TACTHMC(step_of_x=1e-2), m=1)
    line = next(line for line in warned(0.01, moves=moves, steps=300, warmup=50) if "only" in line)
    assert re.match(r"only \d+ draws follow the target", line)
    assert "an ESS of 400 needs more. Raise steps, m (step_of_x can then be larger" in line
    lines = warned(0.01, moves=moves, steps=20, warmup=50)
    assert any(re.search(r"and [1-4] of 4 chains have none; an ESS of 400", line) for line in lines)
    assert not [line for line in warned(0.01, moves=moves, steps=6_000) if "only" in line]


@pytest.mark.slow
def test_valid_draws_are_diagnosed_where_some_are_invalid():
    """TACT-HMC has invalid draws, and its chains begin far apart and barely move."""
    moves, start = mhrun.Unadjusted(mhrun.TACTHMC(step_of_x=1e-2), m=1), [[-2.0], [-1.0], [1.0], [2.0]]
    lines = warned(1e-9, dim=1, moves=moves, start=start, steps=900, warmup=0)
    assert any("of its draws follow the target" in line for line in lines)
    assert any(re.match(r"R-hat is .* the chains have not converged", line) for line in lines)


@pytest.mark.slow
def test_chains_are_diagnosed_until_one_of_them_diverges():
    sizes = Fixed(step_size=[1e-9, 1e-9, 1e-9, 1e3])
    moves, start = mhrun.Unadjusted(mhrun.SGLD(), m=1), [[-2.0], [-1.0], [1.0], [2.0]]
    lines = warned(sizes, dim=1, moves=moves, start=start, steps=900, warmup=0)
    assert any("1 of 4 chains became non-finite" in line for line in lines)
    assert any(line.startswith("R-hat is") for line in lines)
    assert not any("overflow" in line for line in lines)
    sizes = Fixed(step_size=[1e-9, 1e-9, 1e-9, 1e200])
    lines = warned(sizes, dim=1, moves=moves, start=start, steps=900, warmup=0)
    assert any(line.startswith("R-hat and ESS are unknown: they need 10 valid draws") for line in lines)


@pytest.mark.slow
@pytest.mark.long
def test_chains_of_different_temperatures_are_not_pooled(tmp_path):
    words = (*FEW, "+method@methods.hot=mcmc", "steps=400", "warmup=100", "thin=1")
    words += ("methods.hot.schedules.temperature.temperature=[1.0,25.0,1.0,25.0]", "~methods.mint")
    run = Run(run_experiment(config(tmp_path, *words), Silent()))
    assert run.is_coldest("hot").tolist() == [True, False, True, False]
    assert np.array_equal(valid_draws(run, "hot"), run.draws("hot")[::2])
    (line,) = [line for line in run.methods["hot"]["warnings"] if "temperatures" in line]
    assert (
        "chains have different temperatures, 1 to 25: a report diagnoses the 2 chains at T = 1 only" in line
    )


@pytest.mark.slow
def test_a_report_has_one_line_for_all_methods_with_a_warning(tmp_path):
    words = ("~methods.sgld", "~methods.mint_stored", "~methods.mcmc", "steps=60", "warmup=50")
    methods = ("mint", "tempered_mcmc")
    words += tuple(f"schedule@methods.{m}.schedules.step_size=fixed" for m in methods)
    words += ("+step_size=0.001",)
    run = Run(run_experiment(config(tmp_path, *words), Silent()))
    lines = report_warnings(run, {})
    (line,) = [line for line in lines if "Acceptance" in line]
    assert line.startswith("Acceptance is high: ")
    assert all(run.label(m) in line for m in methods)
    (line,) = [line for line in lines if line.startswith("Not the posterior")]
    assert "sample the target at the temperature T in brackets" in line
    label = run.label("mint")
    run.methods["mint"] |= {"samples": run.methods["mint"]["samples"] | {"temperature": 0.5}}
    for m in methods:
        run.methods[m] |= {"fit_warnings": ["the model is wrong"]}
    lines = report_warnings(
        run,
        {"mint": {"rhat": 1.5, "ess": 9.0, "judged": "weights"}, "tempered_mcmc": {"why": "3 valid draws."}},
    )
    assert f"R-hat and ESS are unknown: {run.label('tempered_mcmc')}: 3 valid draws." in lines
    assert any(line.startswith(f"Colder than the posterior: {label} (0.5") for line in lines)
    assert any(line.startswith("Hidden units of a network can be exchanged") for line in lines)
    assert f"{', '.join(run.label(m) for m in methods)}: the model is wrong." in lines


@pytest.mark.slow
def test_the_one_coordinate_that_has_not_converged_is_found(monkeypatch, rng):
    """As the spread of hundreds of effects; 64 evenly spaced coordinates would leave it out."""
    draws = rng.normal(size=(4, 1000, 400))
    draws[..., 7] += 5 * np.arange(4)[:, None]
    monkeypatch.setattr("mhrun.engine.diagnosis.judged_draws.flat_draws", lambda _: draws)
    (line,) = [line for line in warned(0.8, dim=400) if "R-hat" in line]
    assert re.match(r"R-hat is \d\.\d+ \(theta8\), above 1.01", line)


def test_a_wide_model_is_diagnosed_at_some_coordinates():
    torch.manual_seed(0)
    lines = warned(0.05, dim=300, steps=20, warmup=0, start=np.zeros(300))
    assert any("ESS is" in line for line in lines)


def test_warnings_of_a_network_are_of_its_predictions():
    """Hidden units can be exchanged: chains whose weights differ may predict the same."""
    x, y = torch.randn(30, 2, generator=torch.Generator().manual_seed(1)), torch.arange(30) % 2
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2))
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        mhrun.sample(module, {"x": x, "y": y}, kernel, step_size=0.01, steps=200, warmup=0, seed=1)
    lines = [str(one.message) for one in raised]
    assert sum("R-hat is" in line and "(probability[" in line for line in lines) == 1


@pytest.mark.parametrize("size", [None, pytest.param(0.7, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_counts_that_vary_too_much_are_warned_of(size):
    """Poisson counts, and negative binomial ones of the same means: their variance is 1 + mean / size times the mean.

    Chains that have not arrived, never move or sample another target contradict the data by themselves.
    """
    rng = np.random.default_rng(5)
    x, days = np.stack([np.ones(800), rng.normal(size=800)], 1), rng.uniform(0.5, 2, 800)
    mean = days * np.exp(0.5 + 0.8 * x[:, 1])
    y = rng.poisson(mean if size is None else mean * rng.gamma(size, 1 / size, 800))
    data = {"x": x, "y": y, "exposure": days}
    how = {"step_size": 0.03, "steps": 3_000, "warmup": 0, "chains": 2, "seed": 1}
    model = PoissonRegression(2, 10.0)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        mhrun.sample(model, data, kernel(), start=[0.5, 0.8], **how)
        mhrun.sample(model, data, kernel(), start=[[0.5, 0.8], [-2.0, -2.0]], **how | {"steps": 100})
        mhrun.sample(model, data, kernel(), **how | {"step_size": 1e3})
        mhrun.sample(model, data, kernel(), start=[0.5, 0.8], temperature=1e4, **how | {"step_size": 3.0})
    found = [
        match
        for one in raised
        if (match := re.match(r"the counts' variance is about (\S+) ", str(one.message)))
    ]
    assert len(found) == (size is not None)
    if found:
        pearson = ((y - mean) ** 2 / mean).mean()
        assert float(found[0].group(1)) == pytest.approx(pearson, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("hot", "rare"), [(2.0, ()), (1e12, ("1", "2"))])
def test_rungs_that_hardly_ever_exchange_are_warned_of(hot, rare):
    """T = 1, 2, and far above: in 100 dimensions an exchange is accepted with probability about 0."""
    ladder = mhrun.ReplicaExchange(kernel(), mhrun.Full(), mhrun.Metropolis(), rungs=3)
    lines = warned(0.1, dim=20, moves=ladder, temperature=[1.0, 1.5, 1.5 * hot], steps=600)
    found = [line for line in lines if "exchanges" in line]
    assert len(found) == bool(rare)
    for line in found:
        assert re.match(
            rf"rungs 1 and 2 \(T = 1\.5 and {1.5 * hot:,.0f}\) made 0 of [\d,]+ exchanges: ", line
        )


@pytest.mark.parametrize(
    ("pairing", "warns"), [(mhrun.Stored, True), (mhrun.Moving, True), (mhrun.Shared, False)]
)
def test_rungs_whose_points_keep_minibatches_are_warned_of(pairing, warns):
    rung = mhrun.MetropolisHastings(mhrun.RandomWalk(), pairing(10), mhrun.Metropolis())
    ladder = mhrun.ReplicaExchange(rung, mhrun.Full(), mhrun.Metropolis(), rungs=2)
    with pytest.warns(UserWarning, match="ESS is") as found:
        mhrun.sample(
            *(lambda theta, rows: -0.5 * (rows - theta[0]) ** 2, torch.linspace(0, 1, 50), ladder),
            start=[0.5],
            step_size=0.3,
            temperature=[5.0, 10.0],
            steps=100,
            warmup=20,
            chains=2,
        )
    words = f"keep their minibatches ({pairing.__name__}), which its exchanges do not know of"
    assert any(words in str(one.message) for one in found) is warns


def test_rungs_that_hardly_ever_exchange_are_warned_of_though_candidates_were_no_numbers():
    """Log-likelihoods that are no number below 0 are rejections, after which a rung exchanges as before."""

    def log_lik(theta, rows):
        return -0.5 * (rows - torch.sqrt(theta[0])) ** 2

    ladder = mhrun.ReplicaExchange(kernel(), mhrun.Full(), mhrun.Metropolis(), rungs=2)
    with pytest.warns(UserWarning, match="rungs 0 and 1") as found:
        mhrun.sample(
            *(log_lik, torch.linspace(2, 4, 50), ladder),
            start=[[9.0], [1e7]],
            step_size=100.0,
            temperature=[1.0, 1e7],
            steps=600,
            warmup=0,
            chains=2,
        )
    assert any("not a number" in str(one.message) for one in found)


@short_run
@pytest.mark.parametrize(
    ("temper", "prior", "named"),
    [("posterior", 3.0, True), ("likelihood", 3.0, False), ("posterior", None, False)],
)
def test_a_tempered_prior_is_named_as_a_cause_of_rare_exchanges(temper, prior, named):
    ladder = mhrun.ReplicaExchange(kernel(), mhrun.Full(), mhrun.Metropolis(), rungs=2)
    model = mhrun.GaussianLocation(20, prior)
    data = np.random.default_rng(1).normal(size=(500, 20))
    settings = {"step_size": 0.02, "temperature": [1.0, 1e6], "steps": 600, "warmup": 0, "temper": temper}
    with pytest.warns(UserWarning, match="Put temperatures between them") as found:
        mhrun.sample(model, data, ladder, start=data.mean(0), **settings)
    (line,) = (str(one.message) for one in found if "exchanges" in str(one.message))
    assert ("temper the likelihood alone (temper=likelihood)" in line) == named


def test_draws_that_come_back_to_a_few_points_are_named(rng):
    """Autocorrelations of jumps among eight stored points are those of independent draws."""
    same = rng.normal(size=(1, 8, 2)).repeat(4, 0)  # all chains are among the same points, so that R-hat is 1
    jumping = np.stack([chain[rng.integers(8, size=1000)] for chain in same])
    (line,) = [line for line in precision_warnings("m", jumping, ["u", "v"]) if "distinct" in line]
    assert line.startswith("m: only 32 of the draws are distinct")
    walk = np.repeat(rng.normal(size=(4, 500, 2)), 4, axis=1)  # a quarter of the moves accepted
    assert not any("distinct" in line for line in precision_warnings("m", walk, ["u", "v"]))
    # An autocorrelation of -0.8,
    turning = signal.lfilter([1.0], [1.0, 0.8], rng.normal(size=(4, 1000, 2)), axis=1)
    assert ess(turning[..., 0]) > 2 * 4000  # as of trajectories of nearly half a period
    assert not any("distinct" in line for line in precision_warnings("m", turning, ["u", "v"]))


@pytest.mark.parametrize(
    ("distribution", "is_heavy"),
    [(stats.halfcauchy(scale=2), True), (stats.t(4), False), (stats.lognorm(1), False)],
)
def test_a_tail_without_moments_is_named(distribution, is_heavy):
    """Of draws whose R-hat and ESS are right: a half-Cauchy distribution has no mean."""
    draws = distribution.rvs((4, 2_000, 2), random_state=1)
    draws[..., 1] = stats.norm.rvs(size=(4, 2_000), random_state=2)
    lines = list(precision_warnings("m", draws, ["v", "w"]))
    assert len(lines) == is_heavy
    if is_heavy:
        assert lines[0].startswith("m: the tail of v is heavy (index ")
        assert "Report quantiles, or choose a prior with a lighter tail." in lines[0]


@pytest.mark.parametrize(("step_size", "times"), [(1e3, 1), ([1e3, 1e-3], 0)])
def test_a_long_run_reports_at_once_that_all_chains_have_stopped(step_size, times, monkeypatch, capsys):
    monkeypatch.setattr("mhrun.engine.run_method._STOPPED_SECONDS", -1.0)
    data = torch.linspace(-1, 1, 100, dtype=torch.float64)
    with pytest.warns(UserWarning, match="chains became non-finite"):
        mhrun.sample(
            lambda theta, x: -0.5 * (x - theta[0]) ** 2,
            data,
            mhrun.Unadjusted(mhrun.SGLD(), None),
            start=[0.0],
            step_size=Fixed(step_size=step_size),
            chains=2,
            steps=500,
            warmup=0,
        )
    assert capsys.readouterr().err.count("all chains have become non-finite by step") == times


_NAMED = {"tau": "HalfNormal(1.0)", "effects": {"shape": 4, "prior": "Normal(0, 1)"}}


@pytest.mark.parametrize(
    ("settings", "may"),
    [
        ({"start": [0.1] * 6}, False),
        ({"parameters": _NAMED}, True),  # standardised effects, or slopes
        ({"parameters": {"a": "Normal(0, 1)", "b": 2}}, False),
        (
            {"parameters": _NAMED | {"effects": 4}, "log_prior": lambda t: -((t.effects / t.tau) ** 2).sum()},
            True,
        ),
    ],
)
def test_the_two_forms_of_groups_are_named_where_a_model_may_have_groups(settings, may):
    def density(theta):
        every = (
            torch.cat([value.reshape(-1) for value in theta.values()]) if isinstance(theta, dict) else theta
        )
        return -(every**8).sum()

    hmc = mhrun.MetropolisHastings(mhrun.HamiltonianProposal(8), mhrun.Full(), mhrun.Metropolis())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(density, None, hmc, step_size=2.0, steps=30, warmup=0, **settings)
    (line,) = (str(one.message) for one in found if "trajectories diverged" in str(one.message))
    assert ("In a model of groups" in line) == may


def test_the_tails_of_predicted_probabilities_are_not_judged():
    """A probability that is nearly 0 but for a few draws has all moments, though its tail looks heavy."""
    draws = np.minimum(1.0, 1e-5 * stats.halfcauchy.rvs(size=(4, 2_000, 1), random_state=1))
    assert any("heavy" in line for line in precision_warnings("m", draws, ["p"]))
    assert not any("heavy" in line for line in precision_warnings("m", draws, ["p"], judges_tails=False))
    assert not any("heavy" in line for line in precision_warnings("m", draws, ["p"], bounded={"p"}))
    both = np.concatenate([np.random.default_rng(1).normal(size=draws.shape), draws], 2)
    (line,) = [line for line in precision_warnings("m", both, ["p", "q"], bounded={"p"}) if "heavy" in line]
    assert "the tail of q is heavy" in line


@pytest.mark.slow
@pytest.mark.parametrize(("warmup", "is_far"), [(0, True), (300, False)])
def test_first_draws_that_are_far_from_the_others_are_named(warmup, is_far):
    """All chains begin 63 standard deviations off, and take some 50 steps; ranks hide these from R-hat and ESS."""
    x = torch.randn(1_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            lambda theta, x: -0.5 * (x - theta[0]) ** 2,
            x,
            mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
            start=[2.0],
            step_size=0.07,
            steps=6_000,
            warmup=warmup,
            seed=1,
        )
    lines = [str(one.message) for one in found]
    far = [line for line in lines if line.startswith("the first 120 draws of each chain are")]
    assert len(far) == is_far
    assert not any("heavy" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "standardised", "warns"), [
    (torch.float32, False, True), (torch.float32, True, False), (torch.float64, False, False)
])  # fmt: skip
def test_a_curvature_below_the_rounding_of_float32_is_warned_of(dtype, standardised, warns):
    """A year beside an intercept: the condition number of the curvature is above 1e7."""
    rng = np.random.default_rng(3)
    year = 2020 + rng.integers(-10, 5, 400).astype(float)
    y = 3 + 0.1 * (year - 2018) + rng.normal(size=400)
    x = (year - year.mean()) / year.std() if standardised else year

    def log_lik(theta, batch):
        return -0.5 * (batch.y - theta.a - theta.b * batch.x) ** 2

    normal = torch.distributions.Normal
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            log_lik,
            {"x": torch.tensor(x, dtype=dtype), "y": torch.tensor(y, dtype=dtype)},
            kernel(),
            parameters={"a": normal(0.0, 100.0), "b": normal(0.0, 10.0)},
            dtype=dtype,
            steps=200,
            warmup=200,
            progress=False,
        )
    assert any("is no larger than rounding" in str(one.message) for one in found) == warns
