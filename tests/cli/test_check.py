"""`mhrun check`: correct parts pass, and each wrong one fails the check that it should.

A check fails for a right kernel with probability 1e-4 (`mhrun.check.results`); seeds are fixed.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mhrun.check.results import FAILS, CheckResult, by_uniforms
from mhrun.check.subject import Subject
from mhrun.check.suite import CHECKS, run_suite
from mhrun.check.targets import correlated, free_mean, gaussian_mean, mixture, positive, tossed
from mhrun.cli.main import run
from mhrun.compiled import register
from mhrun.compiled.metropolis import metropolis_loop
from mhrun.dynamics.badodab import Badodab
from mhrun.dynamics.momentum import Momentum
from mhrun.dynamics.sgbd import SGBD
from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD
from mhrun.dynamics.sgnht import SGNHT
from mhrun.dynamics.tact_hmc import TACTHMC
from mhrun.errors import UserError
from mhrun.kernels import MetropolisHastings, PlanarFlow, Unadjusted
from mhrun.kernels.firefly import Firefly
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.pairing.shared import Shared
from mhrun.proposals.langevin import LangevinProposal as LangevinMove
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Purpose
from mhrun.rules.barker import Barker
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.mh_minibatch import MHMinibatch

INVARIANCE = {"invariance: Gaussian mean, n = 30", "invariance: mixture with two modes",
              "invariance: correlated Gaussian, D = 6"}  # fmt: skip
EXACT = INVARIANCE | {"detailed balance", "Geweke's joint test"}


def subject(make, **settings):
    return Subject("mine", make, **{"chains": 4000, "n": 400, "m": 40, "effective": 10.0} | settings)


def of_parts(proposal=RandomWalk, rule=Metropolis, kernel=MetropolisHastings):
    return lambda n, m: kernel(proposal(), Full() if n == m else Shared(m), rule())


def judged(make, *checks, **settings):
    """Return the outcomes of some checks, or of all but the slow ones."""
    chosen = checks or [name for name in CHECKS if name not in ("compiled", "minibatches")]
    return {verdict.check: verdict for verdict in run_suite(subject(make, **settings), chosen)}


def failing(make, *checks, **settings):
    return {
        check for check, verdict in judged(make, *checks, **settings).items() if verdict.outcome == "fails"
    }


# --- What is right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Metropolis, Barker])
def test_exact_rules_hold(rule):
    found = judged(of_parts(rule=rule), chains=3000)
    assert {check for check, verdict in found.items() if verdict.outcome == "holds"} >= EXACT
    assert not [verdict for verdict in found.values() if verdict.outcome == "fails"]


def test_moves_along_gradients_and_tests_that_grow_hold():
    assert failing(of_parts(LangevinMove), "invariance", "costs", "absurd", chains=1000) == set()

    def growing(n, m):
        return MetropolisHastings(RandomWalk(), Growing(), MHMinibatch(m, density="series", variance=0.2))

    found = judged(growing, "balance", "costs", "resuming", chains=300)
    assert {verdict.outcome for verdict in found.values()} == {"holds"}


@pytest.mark.parametrize("dynamics", [SGLD, pytest.param(SGHMC, marks=pytest.mark.slow)])
def test_dynamics_near_the_target(dynamics):
    found = judged(
        lambda n, m: Unadjusted(dynamics(), None if n == m else m),
        "invariance",
        "nearing",
        "costs",
        chains=800,
    )
    assert not [verdict for verdict in found.values() if verdict.outcome == "fails"]
    assert found["the target as steps shrink"].outcome == "holds"
    assert {found[check].outcome for check in INVARIANCE} == {"does not apply"}


def test_firefly_monte_carlo_holds_on_targets_with_lower_bounds():
    checks = ("invariance", "balance", "geweke", "costs", "resuming")
    found = judged(lambda n, m: Firefly(RandomWalk(), 0.2), *checks, chains=400, surrogate="lower_bound")
    assert {verdict.outcome for verdict in found.values()} == {"holds"}
    assert set(found) >= EXACT


def test_firefly_without_the_odds_of_bright_data_fails(monkeypatch):
    monkeypatch.setattr("mhrun.kernels.firefly._log_odds", lambda gaps, temperature: 0.9 * gaps)
    found = failing(
        lambda n, m: Firefly(RandomWalk(), 0.2), "invariance", surrogate="lower_bound", chains=1500
    )
    assert "invariance: mixture with two modes" in found


def test_lower_bounds_of_the_targets_are_quadratic_and_below():
    theta = torch.linspace(-3, 3, 7, dtype=torch.float64)
    one = [known.target() for known in (gaussian_mean(30), free_mean(30), mixture())] + [tossed(4)]
    for target, at in [(target, theta[:, None]) for target in one] + [
        (correlated().target(), torch.stack([theta, theta.flip(0) / 2, *[0.3 * theta] * 4], 1))
    ]:
        for anchor in (None, at[5]):
            rows = target.data.part(0, target.n)
            bound = target.model.lower_bound(at, rows, anchor)
            assert (bound <= target.model.log_lik(at, rows) + 1e-12).all()
            third = bound[3:] - 3 * bound[2:-1] + 3 * bound[1:-2] - bound[:-3]  # theta is evenly spaced
            assert third.abs().max() < 1e-10


def test_minibatches_are_measured_and_their_bias_is_reported():
    small = judged(of_parts(), "minibatches", chains=1200, n=200, m=20)["with minibatches"]
    assert small.outcome == "measured"
    assert "biased" in small.detail
    assert float(small.detail.split()[1]) > 1.05
    exact = judged(
        lambda n, m: MetropolisHastings(RandomWalk(), Shared(n), Metropolis()), "minibatches", chains=2000
    )
    assert "no bias seen" in exact["with minibatches"].detail


class ExactInName(Metropolis):
    """Metropolis's rule that declares to be exact at any minibatch size."""

    exact = True


def test_a_rule_that_declares_to_be_exact_is_judged_with_minibatches():
    def made(n, m):
        return MetropolisHastings(RandomWalk(), Shared(m), ExactInName())

    small = judged(made, "minibatches", chains=1200, n=200, m=20)["with minibatches"]
    assert small.outcome == "fails"
    assert "biased" in small.detail


class Uncorrected(Metropolis):
    """Metropolis's rule that declares to correct for minibatch noise."""

    corrects_noise = True


def test_a_rule_that_declares_to_correct_for_noise_is_judged_with_minibatches():
    def made(n, m):
        return MetropolisHastings(RandomWalk(), Shared(m), Uncorrected())

    assert failing(made, "minibatches", chains=8000, n=2000, m=100, effective=20.0) == {"with minibatches"}
    right = judged(
        lambda n, m: MetropolisHastings(RandomWalk(), Growing(), MHMinibatch(m)), "minibatches", chains=8000
    )
    assert right["with minibatches"].outcome == "holds"


def test_a_variance_that_is_a_tenth_too_small_fails_at_the_default_number_of_chains():
    found = judged(lazy(0.0, 1.1), "invariance", chains=8000)["invariance: Gaussian mean, n = 30"]
    assert found.outcome == "fails"
    assert "variance of scores 0.9" in found.detail
    assert found.statistic < 0.03  # the distance of the ends alone would pass
    assert 0.05 < found.unseen < 0.09  # as it says itself


def test_an_error_just_beyond_what_passes_unseen_fails():
    """A target to the power r has a variance 1/r times as large."""
    limit = judged(of_parts(), "invariance", chains=8000)["invariance: Gaussian mean, n = 30"].unseen
    found = judged(lazy(0.0, 1 / (1 - 1.5 * limit)), "invariance", chains=8000)
    assert found["invariance: Gaussian mean, n = 30"].outcome == "fails"
    found = judged(lazy(0.0, 1 / (1 - 0.3 * limit)), "invariance", chains=8000)
    assert found["invariance: Gaussian mean, n = 30"].outcome == "holds"


@pytest.mark.parametrize(("second", "outcome"), [(0.3, "holds"), (5e-4, "fails"), (1e-9, "fails")])
def test_a_doubtful_check_is_repeated_with_more_chains(monkeypatch, second, outcome):
    asked = []

    def doubtful(subject):
        asked.append((subject.seed, subject.chains))
        p = 5e-4 if len(asked) == 1 else second
        yield CheckResult("mine", "holds" if p > 1e-6 else "fails", f"p = {p:g}", p=p)
        yield CheckResult("other", "holds", "at ease", p=0.5)

    monkeypatch.setitem(CHECKS, "mine", doubtful)
    found = judged(of_parts(), "mine")
    assert found["mine"].outcome == outcome
    assert found["mine"].detail == f"p = 0.0005; repeated with 5 times as many chains: p = {second:g}"
    assert found["other"] == CheckResult("other", "holds", "at ease", p=0.5)
    assert [chains for _, chains in asked] == [4000, 20_000]
    assert asked[0][0] != asked[1][0]


def test_a_variance_that_is_a_few_per_cent_off_fails_when_repeated():
    found = judged(lazy(0.0, 1.07), "invariance", chains=8000)
    again = [
        verdict for verdict in found.values() if "repeated with 5 times as many chains" in verdict.detail
    ]
    assert again
    assert {verdict.outcome for verdict in again} == {"fails"}


@pytest.mark.slow
def test_the_compiled_loop_is_checked():
    assert judged(of_parts(), "compiled")["compiled equals plain"].outcome == "holds"
    assert judged(of_parts(LangevinMove), "compiled")["compiled equals plain"].outcome == "does not apply"


# --- What is wrong ---------------------------------------------------------------------------------------


class WrongSign(Metropolis):
    def decide(self, contest, draws):
        return contest.to_verdict(draws.uniform(Purpose.ACCEPT).log() < -contest.log_ratio)


class TooWarm(Metropolis):
    def decide(self, contest, draws):
        return contest.to_verdict(draws.uniform(Purpose.ACCEPT).log() < 0.5 * contest.log_ratio)


class LazyBarker(Metropolis):
    """Rests with probability q, else accepts with probability r^a / (1 + r^a): right for a = 1."""

    def __init__(self, rest, power):
        self.rest, self.power = rest, power

    def decide(self, contest, draws):
        awake = draws.uniform(Purpose.ACCEPT, use=1) >= self.rest
        accepts = draws.uniform(Purpose.ACCEPT) < torch.sigmoid(self.power * contest.log_ratio)
        return contest.to_verdict(awake & accepts)


def lazy(rest, power):
    return of_parts(rule=lambda: LazyBarker(rest, power))


class NoDensity(RandomWalk):
    """A multiplicative walk that forgets its densities."""

    def sample(self, origin, controls, draws):
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1])
        return origin.theta * (controls.step_size[:, None] * z).exp()


class OneLine(RandomWalk):
    """Moves along one line, which keeps the target and does not reach it."""

    def sample(self, origin, controls, draws):
        return origin.theta + controls.step_size[:, None] * draws.normal(Purpose.PROPOSAL, 1)


class FirstOfSix(RandomWalk):
    def sample(self, origin, controls, draws):
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1])
        z[:, 4:] = 0
        return origin.theta + controls.step_size[:, None] * z


class WideAtTheEnd(RandomWalk):
    """Moves of the fifth coordinate and the sixth depend on where they are, and it gives no density."""

    def sample(self, origin, controls, draws):
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1])
        z[:, 4:] *= 1 + 0.5 * torch.tanh(10 * origin.theta[:, 4:])
        return origin.theta + controls.step_size[:, None] * z


class UncountedPasses(MetropolisHastings):
    """A pass over all data at every hundredth step, which it does not count."""

    def step(self, target, state, controls, draws):
        if draws.step % 100 == 0:
            target.model.log_lik(state.evaluation.theta, target.data.part(0, target.n))
        return super().step(target, state, controls, draws)


class Standstill(RandomWalk):
    def sample(self, origin, controls, draws):
        draws.normal(Purpose.PROPOSAL, 1)
        return origin.theta.clone()


class Lying(MetropolisHastings):
    def step(self, target, state, controls, draws):
        state, info = super().step(target, state, controls, draws)
        return state, info._replace(n_lik=info.n_lik // 2)


class Coupled(RandomWalk):
    """Moves that are as wide as the chains are apart."""

    def sample(self, origin, controls, draws):
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1])
        return origin.theta + controls.step_size[:, None] * z * (1 + origin.theta.std())


class OwnNumbers(RandomWalk):
    def sample(self, origin, controls, draws):
        return origin.theta + controls.step_size[:, None] * torch.randn_like(origin.theta)


class Remembers(RandomWalk):
    """Every other move is wider; which one is next is no part of the state."""

    def __init__(self):
        self.calls = 0

    def sample(self, origin, controls, draws):
        self.calls += 1
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1])
        return origin.theta + controls.step_size[:, None] * z * (1 + self.calls % 3)


class AcceptsAnything(Metropolis):
    """Takes a ratio that is not a number for a good one."""

    def decide(self, contest, draws):
        return contest.to_verdict(~(draws.uniform(Purpose.ACCEPT).log() >= contest.log_ratio))


class LooseShape(MetropolisHastings):
    def step(self, target, state, controls, draws):
        state, info = super().step(target, state, controls, draws)
        return state, info._replace(accepted=info.accepted.double())


class Crash(Metropolis):
    def decide(self, contest, draws):
        return contest.to_verdict(contest.log_ratoi > 0)


WRONG = {
    "wrong sign": (of_parts(rule=WrongSign), EXACT | {"goes there"}, INVARIANCE | {"detailed balance"}),
    "too warm": (of_parts(rule=TooWarm), EXACT, INVARIANCE | {"detailed balance", "Geweke's joint test"}),
    "no density": (of_parts(NoDensity), EXACT | {"goes there"}, {"invariance: Gaussian mean, n = 30"}),
    "standstill": (of_parts(Standstill), {"goes there", "detailed balance"}, {"goes there"}),
    "one line": (of_parts(OneLine), {"goes there"}, {"goes there"}),
    "first of six": (of_parts(FirstOfSix), {"goes there"}, {"goes there"}),
    "wide at the end": (of_parts(WideAtTheEnd), INVARIANCE, {"invariance: correlated Gaussian, D = 6"}),
    "uncounted passes": (of_parts(kernel=UncountedPasses), {"cost counting"}, {"cost counting"}),
    "lying": (of_parts(kernel=Lying), {"cost counting"}, {"cost counting"}),
    "coupled": (of_parts(Coupled), {"chains independent"}, {"chains independent"}),
    "own numbers": (of_parts(OwnNumbers), {"same seed, same chains", "resuming"}, {"same seed, same chains"}),
    "remembers": (of_parts(Remembers), {"same seed, same chains", "resuming"}, {"resuming"}),
    "accepts anything": (of_parts(rule=AcceptsAnything), {"absurd step sizes"}, {"absurd step sizes"}),
    "loose shape": (of_parts(kernel=LooseShape), {"what a step reports"}, {"what a step reports"}),
}  # what may fail, and what must


def test_fields_of_a_wrong_shape_are_named_with_their_own_type():
    class Wide(MetropolisHastings):
        def step(self, target, state, controls, draws):
            state, info = super().step(target, state, controls, draws)
            return state, info._replace(accepted=info.accepted[:, None], n_grad=info.n_grad[:, None])

    found = judged(of_parts(kernel=Wide), "costs")["what a step reports"]
    assert found.detail == "accepted must be (6,), bool; n_grad must be (6,), int64"


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_fails_the_distribution_that_it_breaks(name):
    make, may, must = WRONG[name]
    found = failing(make, chains=3000)
    assert must <= found <= may


@pytest.mark.parametrize("rest", [pytest.param(0.5, marks=pytest.mark.slow), 0.8])
def test_a_wrong_rule_that_mostly_rests_fails(rest):
    """Its acceptance rate is low at any step size; at steps of almost 0 every rule would hold."""
    assert "invariance: correlated Gaussian, D = 6" in failing(lazy(rest, 0.8), "invariance", chains=8000)
    assert "detailed balance" in failing(lazy(rest, 0.5), "balance", chains=8000)


@pytest.mark.parametrize("rest", [pytest.param(0.5, marks=pytest.mark.slow), 0.8])
def test_a_right_rule_that_mostly_rests_holds_at_steps_that_show_errors(rest):
    found = judged(lazy(rest, 1.0), "invariance", "coming", "balance", "geweke", chains=2000)
    assert {verdict.outcome for verdict in found.values()} == {"holds"}
    one = subject(lazy(rest, 1.0))
    for known in (gaussian_mean(30), mixture(), correlated()):
        step = one.step_for(one.exact(known), known, known.target())
        assert 0.25 * known.scale < step < 5 * known.scale


def test_a_check_at_steps_that_are_too_short_has_no_power():
    for rule in (Metropolis, lambda: LazyBarker(0.5, 0.8)):
        found = judged(of_parts(rule=rule), "invariance", "balance", "geweke", chains=500, step_size=1e-3)
        assert {found.pop(check).outcome for check in INVARIANCE} == {"no power"}
        # The few moves from bin to bin may be too few to be judged at all.
        assert found.pop("detailed balance").outcome in ("no power", "fails")
        assert {verdict.outcome for verdict in found.values()} == {"no power"}


def test_a_coordinate_that_never_moves_leaves_no_power():
    class OneOfTwo(RandomWalk):
        """Moves the first coordinate only."""

        def sample(self, origin, controls, draws):
            to = super().sample(origin, controls, draws)
            return torch.cat([to[:, :1], origin.theta[:, 1:]], dim=1)

    found = judged(of_parts(OneOfTwo), "invariance", chains=500)
    outcomes = {check.rpartition(": ")[2]: verdict.outcome for check, verdict in found.items()}
    assert outcomes == {
        "Gaussian mean, n = 30": "holds",
        "mixture with two modes": "holds",
        "correlated Gaussian, D = 6": "no power",
    }


def test_a_dynamics_with_too_little_noise_has_another_limit():
    class Quiet(SGLD):
        def move(self, theta, grad, aux, controls, draws):
            half = controls._replace(noise_temperature=0.5 * controls.noise_temperature)
            return super().move(theta, grad, aux, half, draws)

    found = failing(lambda n, m: Unadjusted(Quiet(), None if n == m else m), "nearing", "costs", chains=800)
    assert found == {"the target as steps shrink"}


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        pytest.param(  # one number for all coordinates
            lambda z: z[:, :1].expand_as(z), "in direction", marks=pytest.mark.slow
        ),
        pytest.param(
            lambda z: torch.cat([z[:, :2], torch.zeros_like(z[:, 2:])], 1),
            "in direction",
            marks=pytest.mark.slow,
        ),
        (lambda z: torch.cat([z[:, :1], 0.9 * z[:, 1:2] + 0.19**0.5 * z[:, :1], z[:, 2:]], 1), "of 6"),
    ],
)
def test_a_dynamics_that_is_right_in_one_coordinate_only_fails(wrong, seen):
    class Noisy(SGLD):
        def move(self, theta, grad, aux, controls, draws):
            z = wrong(draws.normal(Purpose.NOISE, theta.shape[1]))
            noise = (2 * controls.step_size * controls.noise_temperature).sqrt()
            return theta + controls.step_size[:, None] * grad + noise[:, None] * z, aux

    found = judged(lambda n, m: Unadjusted(Noisy(), None), "nearing", "temperature", chains=2000)
    for verdict in found.values():
        assert verdict.outcome == "fails"
        assert seen in verdict.detail


@pytest.mark.parametrize(
    ("friction", "chains"), [pytest.param(0.1, 8_000, marks=pytest.mark.slow), (0.3, 2_000)]
)
def test_the_bias_of_a_thermostat_must_be_declared(monkeypatch, friction, chains):
    """Of the first the variance is off by 5 %, which fails in the repetition with more chains."""
    check = "the target as steps shrink"

    def thermostat(n, m):
        return Unadjusted(SGNHT(friction=friction), None if n == m else m)

    found = judged(thermostat, "nearing", chains=chains)[check]
    assert found.outcome == "holds"
    assert f"where up to {(1 - 2 * friction) ** 0.5 / 2 - 0.5:+.3g} is declared" in found.detail
    monkeypatch.setattr(SGNHT, "small_step_bias", 0.0)
    found = judged(thermostat, "nearing", chains=chains)[check]
    assert found.outcome == "fails"
    assert ("repeated with 5 times as many chains" in found.detail) == (friction == 0.1)


class Uphill(SGHMC):
    """Away from the mode: there is no stationary distribution."""

    def move(self, theta, grad, aux, controls, draws):
        return super().move(theta, -grad, aux, controls, draws)


def test_an_error_that_does_not_fall_with_the_step_fails():
    """It looks stable at steps at which chains hardly move; its errors are equal, and that of the limit is large."""
    found = judged(lambda n, m: Unadjusted(Uphill(), None), "nearing", chains=3000)
    verdict = found["the target as steps shrink"]
    assert verdict.outcome == "fails"
    assert "it does not fall with the step" in verdict.detail


def test_a_dynamics_whose_chains_hardly_move_has_no_power():
    checks = ("nearing", "temperature", "gain")
    found = judged(lambda n, m: Unadjusted(SGLD(), None), *checks, chains=1500, step_size=1e-6)
    assert {verdict.outcome for verdict in found.values()} == {"no power"}
    for verdict in found.values():
        assert (
            "standard deviations in a run, an error shows from 1 on; set a larger step_size" in verdict.detail
        )


def with_noise(change):
    """Return SGLD with other controls, on all data."""

    class Other(SGLD):
        def move(self, theta, grad, aux, controls, draws):
            return super().move(theta, grad, aux, change(controls), draws)

    return lambda n, m: Unadjusted(Other(), None)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c._replace(noise_temperature=torch.ones_like(c.noise_temperature)),
        lambda c: c._replace(noise_temperature=c.temperature),
        lambda c: c._replace(noise_temperature=c.noise_temperature.square()),
    ],
)
def test_a_dynamics_that_does_not_follow_the_noise_temperature_fails(change):
    assert failing(with_noise(change), "nearing", "temperature", chains=800) == {"noise temperature"}


class UnitsOfTemperature(SGLD):
    """Its step size is in units of the temperature: theta' = theta + e g / T + sqrt(2 e) z."""

    noise_gain = 1.0  # at T = 1

    def move(self, theta, grad, aux, controls, draws):
        step = controls.step_size / controls.noise_temperature
        return super().move(theta, grad, aux, controls._replace(step_size=step), draws)


@pytest.mark.parametrize(
    "dynamics",
    [
        pytest.param(SGLD(), id="sgld"),
        pytest.param(SGHMC(), id="sghmc", marks=pytest.mark.slow),
        pytest.param(SGNHT(), id="sgnht", marks=pytest.mark.slow),
        pytest.param(Badodab(), id="badodab", marks=pytest.mark.slow),
        pytest.param(SGBD(), id="sgbd", marks=pytest.mark.slow),
        pytest.param(SGBD(known_noise=None), id="sgbd estimating"),
        pytest.param(TACTHMC(), id="tact_hmc"),
        pytest.param(UnitsOfTemperature(), id="step in units of T"),
    ],
)
def test_dynamics_follow_the_noise_temperature_and_their_declared_gain(dynamics):
    found = judged(lambda n, m: Unadjusted(dynamics, None), "temperature", "gain", chains=800)
    assert found["noise temperature"].outcome == "holds"
    assert found["noise temperature"].detail.startswith("at temperature 0.25 variance off by")
    assert found["gradient noise"].outcome == "holds"


def test_optimisers_have_no_noise_temperature_and_acceptance_tests_no_gain():
    for make in (lambda n, m: Unadjusted(Momentum(), None), of_parts()):
        found = judged(make, "temperature", "gain", chains=400)
        assert {verdict.outcome for verdict in found.values()} == {"does not apply"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["reld", "renhd"])
def test_the_coldest_rung_of_a_ladder_follows_the_noise_temperature(method, capsys):
    assert run(["check", f"method={method}", "checks=[temperature,gain]", "chains=4000"]) == 0
    out = capsys.readouterr().out
    assert "noise temperature  holds" in out
    assert "not on a ladder" in out


@pytest.mark.parametrize(("declared", "outcome"), [(1.0, "fails"), (10.0, "holds"), (15.0, "holds")])
def test_a_gain_that_is_declared_too_small_fails(declared, outcome):
    dynamics = type("Declaring", (SGHMC,), {"noise_gain": declared})()
    found = judged(lambda n, m: Unadjusted(dynamics, None), "gain", chains=800)["gradient noise"]
    assert found.outcome == outcome
    assert f"noise_gain = {declared:g} declares 0.2" in found.detail
    assert found.detail.endswith("it is about 10") == (outcome == "fails")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda aux: aux | {"extra": aux["momentum"]}, "a step adds aux['extra']"),
        (lambda aux: {"momentum": aux["momentum"][:, 0]}, "aux['momentum'] is (6, 1), float64 at the start and (6,),"),
    ],
)  # fmt: skip
def test_auxiliary_variables_keep_their_names_and_shapes(changed, message):
    class Changing(SGHMC):
        def move(self, theta, grad, aux, controls, draws):
            whole = {"momentum": aux["momentum"].reshape(len(theta), -1)}
            theta, aux = super().move(theta, grad, whole, controls, draws)
            return theta, changed(aux)

    found = judged(lambda n, m: Unadjusted(Changing(), None), "costs", step_size=1e-3)["what a step reports"]
    assert found.outcome == "fails"
    assert message in found.detail
    assert "names and shapes of auxiliary variables are those that start returns" in found.detail


def test_a_dynamics_that_goes_astray_holds_nothing_because_its_error_is_large():
    class Leaps(SGLD):
        """The variance of its steps has no mean."""

        def move(self, theta, grad, aux, controls, draws):
            theta, aux = super().move(theta, grad, aux, controls, draws)
            far = draws.normal(Purpose.NOISE, 1, use=1, dtype=theta.dtype)
            return theta + 1e-3 * far.sign() / far.square(), aux

    leaps = judged(lambda n, m: Unadjusted(Leaps(), None), "nearing", chains=800, step_size=1e-2)
    assert leaps["the target as steps shrink"].outcome == "fails"


def test_no_distribution_of_the_target_applies_to_a_fit():
    found = judged(lambda n, m: PlanarFlow(40, m=None if n == m else m), step_size=None)
    applied = [check for check, verdict in found.items() if verdict.outcome != "does not apply"]
    assert applied == ["what a step reports", "cost counting", "same seed, same chains", "chains independent",
                     "resuming", "absurd step sizes"]  # fmt: skip
    assert {found[check].outcome for check in applied} == {"holds"}
    assert "gradients, 0 and 0" not in found["cost counting"].detail


def test_an_error_in_someones_code_is_a_line():
    found = judged(of_parts(rule=Crash), "invariance", "costs")
    assert {verdict.outcome for verdict in found.values()} == {"fails"}
    assert "log_ratoi" in found["costs"].detail
    assert "test_check.py, line" in found["costs"].detail
    with pytest.raises(UserError, match=r"no check 'invarance'.*Did you mean 'invariance'"):
        judged(of_parts(), "invarance")


class Multiplicative(NoDensity):
    """A walk of the logarithm, for positive parameters."""

    def log_density(self, origin, to, controls):
        return -to.log().sum(-1)


def test_a_proposal_for_positive_parameters_is_checked_on_positive_ones():
    found = judged(of_parts(Multiplicative), "invariance", chains=2000)
    refused = found.pop("invariance: correlated Gaussian, D = 6")
    assert refused.outcome == "does not apply"
    assert refused.detail == (
        "every candidate is refused here; is the proposal for positive parameters only? See two positive rates."
    )
    assert "invariance: two positive rates" in found
    assert {verdict.outcome for verdict in found.values()} == {"holds"}
    positive_sum = type("PositiveSum", (NoDensity,), {"log_density": lambda *_: _[2].log().sum(-1)})
    assert "invariance: two positive rates" in failing(of_parts(positive_sum), "invariance", chains=4000)


def test_where_no_candidate_is_accepted_a_longer_step_is_no_advice():
    class Nowhere(RandomWalk):
        def log_density(self, origin, to, controls):
            return torch.full_like(to[:, 0], torch.nan)

    found = judged(of_parts(Nowhere), "invariance", chains=300)
    assert {verdict.outcome for verdict in found.values()} == {"no power"}
    for verdict in found.values():
        assert "every candidate is refused here" in verdict.detail
        assert "step_size" not in verdict.detail


def test_the_bias_with_minibatches_is_no_property_of_a_proposal(capsys):
    words = ["checks=minibatches", "chains=4000"]
    assert run(["check", "proposal=random_walk", *words]) == 0
    out = capsys.readouterr().out
    assert "with a correct proposal too, as Metropolis's rule reads minibatches here" in out
    assert "\nno check fails. " in out
    assert run(["check", "dynamics=sgld", *words]) == 0
    out += capsys.readouterr().out
    assert "rule that takes no account" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_setting_of_a_part_needs_its_kind_before_it(capsys):
    for words, hint in (
        (["dynamics=sghmc", "friction=0.5"], "Did you mean 'dynamics.friction=0.5'?"),
        (["method=sghmc", "friction=0.5"], "Did you mean 'method.kernel.dynamics.friction=0.5'?"),
    ):
        assert run(["check", *words]) == 2
        assert f"There is no setting 'friction'. {hint}" in capsys.readouterr().err


class OtherLoop(MetropolisHastings):
    """Its compiled loop is not quite what its step does."""


def shifted(kernel, target, key, threads):
    """Return a loop that is off by 0.01."""
    inner = metropolis_loop(kernel, target, key, threads)

    class Shifted:
        def advance(self, state, first_step, controls):
            state, record = inner.advance(state, first_step, controls)
            return state, {**record, "theta": record["theta"] + 0.01}

    return Shifted()


def test_a_compiled_loop_that_differs_is_seen():
    register(OtherLoop, shifted)
    assert failing(of_parts(kernel=OtherLoop), "compiled") == {"compiled equals plain"}


def test_the_models_of_the_targets_are_what_their_distribution_say():
    for known in (gaussian_mean(30), mixture(), correlated(), positive()):
        target = known.target()
        t = np.full(5, 2.0)
        theta = known.draw(np.random.default_rng(0), t)
        assert known.uniforms(theta, t).shape[0] == 5
        assert target.log_density(torch.from_numpy(theta)).isfinite().all()
    assert isinstance(gaussian_mean(30).model, GaussianMean)


def test_a_distribution_holds_nothing_without_draws():
    assert by_uniforms("check", np.empty((0, 2)), "none").outcome == FAILS


# --- The command ------------------------------------------------------------------------------------------


def test_the_command_tells_verdicts_and_its_status(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    few = ["chains=500", "n=200", "m=20", "checks=[balance,costs]"]
    assert run(["check", "rule=barker", *few]) == 0
    out = capsys.readouterr().out
    assert "detailed balance" in out
    assert "no check fails" in out
    assert "A correct kernel fails this page with probability 1e-4. Seed 0." in out
    assert "An error within 4.9 standard errors (±) passes unseen" in out
    assert "┃" not in out  # a pipe gets plain columns
    assert run(["check", "rule=metropolis", "checks=minibatches", "chains=4000"]) == 0
    assert "that is not judged. One that is meant to be right" in capsys.readouterr().out
    assert run(["check", "rule=barker", "checks=invariance", "chains=500"]) == 0
    assert "A variance that is off by less than" in capsys.readouterr().out
    assert run(["check", "mhrun.rules.barker.Barker", "--json", *few]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["fails"] == 0
    assert [check["check"] for check in content["checks"]] == [
        "detailed balance",
        "what a step reports",
        "cost counting",
    ]

    for method in ("flymc", "flymc_untuned"):
        assert run(["check", f"method={method}", "n=100", "checks=costs"]) == 0
    assert capsys.readouterr().out.count("no check fails") == 2
    assert run(["check", "method=zig_zag"]) == 2
    assert "needs target.surrogate=taylor2, and the checks have no targets" in capsys.readouterr().err

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "lazyrule.py").write_text(
        "from mhrun.parts import Rule\n"
        "from mhrun.random import Purpose\n"
        "class Lazy(Rule):\n"
        "    def __init__(self, power=1.0): self.power = power\n"
        "    def decide(self, contest, draws):\n"
        "        u = draws.uniform(Purpose.ACCEPT).log()\n"
        "        return contest.to_verdict(u < self.power * contest.log_ratio)\n"
    )
    words = ["check", "--project", str(tmp_path / "mine"), "lazyrule.Lazy", *few, "chains=4000"]
    assert run(words) == 0
    assert run([*words, "power=0.5"]) == 1
    out = capsys.readouterr().out
    assert "1 fail: detailed balance" in out
    short = [*words[:-3], "n=200", "m=20", "checks=invariance", "chains=500", "step_size=0.001"]
    assert run(short) == 1
    out = capsys.readouterr().out
    assert "\nno check fails. No power: invariance: Gaussian mean, n = 30; invariance: mixture" in out
    assert "no power: " not in out
    assert run([*short, "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["fails"], content["no_power"]) == (0, 3)


@pytest.fixture(scope="module")
def wrong_rules(tmp_path_factory):
    """A folder with ``wrongrules.py``."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "wrongrules.py").write_text(
        "import torch\n"
        "from mhrun.parts import Rule\n"
        "from mhrun.proposals.random_walk import RandomWalk\n"
        "from mhrun.random import Purpose\n"
        "class Lopsided(RandomWalk):\n"
        "    def sample(self, origin, controls, draws):\n"
        "        return super().sample(origin, controls, draws) + 0.3 * controls.step_size[:, None]\n"
        "def accepted(contest, draws, power):\n"
        "    return draws.uniform(Purpose.ACCEPT).log() < power * contest.log_ratio\n"
        "class Warm(Rule):\n"
        "    keeps_ratio = True\n"
        "    def decide(self, contest, draws): return contest.to_verdict(accepted(contest, draws, 0.5))\n"
        "class Never(Rule):\n"
        "    keeps_ratio = True\n"
        "    def decide(self, contest, draws): return contest.to_verdict(accepted(contest, draws, 0) & False)\n"
        "class Crash(Rule):\n"
        "    def decide(self, contest, draws): return contest.to_verdict(contest.log_ratoi > 0)\n"
        "class Smooth(Rule):\n"
        "    def decide(self, contest, draws): return contest.to_verdict(contest.log_ratio.sigmoid())\n"
        "class Column(Rule):\n"
        "    def decide(self, contest, draws): return contest.to_verdict(accepted(contest, draws, 1)[:, None])\n"
    )
    return folder


@pytest.fixture
def own_rules(wrong_rules, monkeypatch):
    """The words that check a class of that file."""
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    return ["check", "--project", str(wrong_rules)]


def test_a_rule_that_returns_probabilities_or_a_column_is_told_what_to_return(own_rules, capsys):
    for name, given in (("Smooth", "(100,), float64"), ("Column", "(100, 1), bool")):
        assert run([*own_rules, f"wrongrules.{name}"]) == 2
        err = capsys.readouterr().err
        assert f"decide of {name}: contest.to_verdict takes which chains accept" in err
        assert f"was given {given}; compare with a uniform: u < probability." in err
        assert err.count("\n") == 1


def test_an_error_of_several_checks_is_printed_once_and_no_chance_event(own_rules, capsys):
    assert run([*own_rules, "wrongrules.Crash", "checks=[balance,costs,resuming]"]) == 1
    out = capsys.readouterr().out
    assert out.count("log_ratoi") == 1
    assert "\n3 checks  fails" in out
    assert "\n3 fail: balance; costs; resuming. " in out
    assert "1e-4" not in out
    assert "unseen" not in out
    assert run([*own_rules, "wrongrules.Crash", "checks=[balance,costs]", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["checks"]
    assert [(verdict["check"], verdict["crashed"]) for verdict in found] == [
        ("balance", True),
        ("costs", True),
    ]


def test_a_rule_that_accepts_nothing_has_no_power_and_no_bias(own_rules, capsys):
    checks = "checks=[invariance,balance,geweke,minibatches]"
    assert run([*own_rules, "wrongrules.Never", checks, "chains=400"]) == 1
    out = capsys.readouterr().out
    assert "invariance: Gaussian mean, n = 30       no power  this rule accepted nothing\n" in out
    assert "positive parameters" not in out
    assert "with minibatches                        no power  no chain moves in 225 steps" in out
    assert "\nno check fails. No power: " in out
    assert "bias" not in out
    assert "no power:" not in out
    assert "is declared" not in out


def test_what_a_rule_declares_and_is_not_so_is_named(own_rules, capsys):
    few = ["checks=[invariance,balance]", "chains=2000"]
    assert run([*own_rules, "wrongrules.Warm", *few]) == 1
    out = capsys.readouterr().out
    assert out.count("\nkeeps_ratio = True is declared and is not so: it has no detailed balance") == 1
    assert "Gaussian mean, n = 30; invariance: mixture" in out
    assert (
        run([*own_rules, "wrongrules.Lopsided", *few]) == 1
    )  # with Metropolis's rule, which keeps the ratio
    assert "is declared" not in capsys.readouterr().out


def test_a_class_that_is_not_there_is_answered_with_those_that_can_be_checked(own_rules, capsys):
    classes = "wrongrules has Column, Crash, Lopsided, Never, Smooth, Warm.\n"
    for name in ("Missing", "accepted"):
        assert run([*own_rules, f"wrongrules.{name}"]) == 2
        assert capsys.readouterr().err.endswith(classes)


def test_the_command_refuses_in_a_line(capsys):
    for words, content in (
        ([], "check needs a part"),
        (["rule=nothing"], "There is no rule 'nothing'"),
        (["os.system"], "not in a trusted package"),
        (["mhrun.data.mixture.MixtureSample"], "is not a class of a part"),
        (["seed=1"], "names no part"),
        (["rule=barker", "m=-1"], "m = -1 must be a whole number"),
        (["pairing=growing", "rule=metropolis"], "leaves the minibatch to the rule"),
        (["rule=barker", "checks=[nothing]"], "There is no check 'nothing'"),
        (["rule=barker", "checks=3"], "There is no check '3'"),
        (["rule=barker", "checks=[costs"], "'checks=[costs' cannot be read"),
        (["rule=barker", "step_size=abc"], "step_size = 'abc' must be a positive number"),
        (["rule=barker", "seed=1.5"], "seed = 1.5 must be a whole number"),
        (["rule=barker", "n=200.5"], "n = 200.5 must be a whole number"),
        (["rule=barker", "chains=1"], "chains = 1 must be a whole number, at least 200"),
        (["mhrun.rules.barker.Barker", "m=[1"], "'m=[1' cannot be read"),
        (["barker"], "'barker' is not a dotted name"),
        (["model=logistic"], "check takes no model: parts are checked on targets with known distributions."),
        (["rule=barker", "+data=gmm"], "with its priors and methods: mhrun check experiment=NAME data=gmm."),
        (["experiment=gmm_tied_means"], "TiedMeans has no priors to draw from"),
        (["rule=barker", "outputs=here"], "There is no setting 'outputs'. check has checks, seed"),
    ):
        assert run(["check", *words]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert content in err


@pytest.fixture(scope="module")
def signed_project(tmp_path_factory):
    """A project with a dynamics, ``signed.Signed`` and ``dynamics=signed``."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "signed.py").write_text(
        "from mhrun.dynamics.sgld import SGLD\n"
        "class Signed(SGLD):\n"
        "    def __init__(self, sign: float = 1.0, noise: float = 1.0):\n"
        "        super().__init__()\n"
        "        self.sign = sign\n"
        "    def move(self, theta, grad, aux, controls, draws):\n"
        "        return super().move(theta, self.sign * grad, aux, controls, draws)\n"
    )
    (folder / "dynamics").mkdir()
    (folder / "dynamics" / "signed.yaml").write_text("_target_: signed.Signed\n")
    return folder


@pytest.fixture
def own_dynamics(signed_project, monkeypatch):
    """The words that check parts of that project."""
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    return ["check", "--project", str(signed_project)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("signed.Signed +dynamics.sign=-1", "a class that is given by name takes its settings bare: sign=-1."),
        ("signed.Signed dynamics.sign=-1", "a class that is given by name takes its settings bare: sign=-1."),
        ("signed.Signed +sign=-1", "a class that is given by name takes its settings bare: sign=-1."),
        (
            "signed.Signed +dynamics.nonsense=5",
            "sets 'nonsense', which nothing reads. Did you mean 'noise'? Signed takes sign and noise, given bare",
        ),
        ("signed.Signed nonsense=5", "There is no setting 'nonsense'. Did you mean 'noise'? Signed takes sign and"),
        ("signed.Signed +other=5", "+other=5 sets 'other', which nothing reads. Signed takes sign and noise; check"),
        ("signed.Signed rule=barker", "sets 'rule', which nothing reads: only the dynamics Signed is checked."),
        ("signed.Signed dynamics=sgld", "signed.Signed is the dynamics that is checked; leave out one of them."),
        ("signed.Signed temperature=3", "temperature=3 sets 'temperature', which nothing reads."),
        ("dynamics=signed +nonsense=5", "+nonsense=5 sets 'nonsense', which nothing reads."),
        ("dynamics=signed +sign=-1", "+sign=-1 sets 'sign', which nothing reads. Did you mean '+dynamics.sign'?"),
        ("dynamics=signed dynamics.sign=-1", "and what a part has as dynamics.KEY."),
        ("dynamics=signed +rule.nonsense=5", "sets 'rule', which nothing reads: of these parts only the dynamics"),
        ("mhrun.rules.barker.Barker +rule.nonsense=3", "'nonsense', which nothing reads. Barker takes no settings."),
        ("rule=barker +step_szie=0.1", "sets 'step_szie', which nothing reads. Did you mean 'step_size'?"),
        ("proposal=random_walk +rule.nonsense=3", "sets 'rule', which nothing reads; choose one with rule=NAME."),
        ("method=sgld +method.stepz=3", "sets 'method.stepz', which nothing reads: of a method its kernel is checked"),
        ("rule=barker +data.rows=3", "sets 'data.rows', which nothing reads."),
    ],
)  # fmt: skip
def test_settings_that_nothing_reads_are_refused_with_what_is_read(own_dynamics, capsys, words, message):
    assert run([*own_dynamics, *words.split(), "chains=200", "checks=repeatable"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_settings_that_a_part_refers_to_are_read(own_dynamics, capsys):
    for words in (
        ["dynamics=sghmc", "+share=0.3", "dynamics.friction=${share}"],
        ["signed.Signed", "sign=${lam}", "lam=0.5"],
        ["dynamics=adam", "data.n=300"],
        ["dynamics=signed", "+dynamics.sign=0.5"],
        ["signed.Signed", "sign=0.5", "m=50"],
    ):
        assert run([*own_dynamics, *words, "checks=repeatable", "chains=200"]) == 0, capsys.readouterr().err
    capsys.readouterr()


def test_a_right_walk_that_is_slow_in_one_direction_has_no_power():
    """Its scales are 1 to 0.01: chains are on their way, and not there yet."""

    class Scaled(RandomWalk):
        def sample(self, origin, controls, draws):
            dim = origin.theta.shape[1]
            scales = torch.logspace(0, -2, dim, dtype=torch.float64)
            return origin.theta + controls.step_size[:, None] * scales * draws.normal(Purpose.PROPOSAL, dim)

    found = judged(of_parts(Scaled), "coming")["goes there"]
    assert found.outcome == "no power"
    assert "it is on its way, slowly in one direction" in found.detail
