"""Each wrong kernel fails the check of `mhrun check` that it should, and one without power says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checked import EXACT, INVARIANCE, TEMPERED, failing, judged, of_parts, subject

from mhrun.check.results import FAILS, by_uniforms
from mhrun.check.targets import correlated, gaussian_mean, mixture, positive
from mhrun.compiled import register
from mhrun.compiled.metropolis import metropolis_loop
from mhrun.errors import UserError
from mhrun.kernels import MetropolisHastings, PlanarFlow, ReplicaExchange
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.pairing.full import Full
from mhrun.pairing.growing import Growing
from mhrun.parts import SUPPLY, Rule
from mhrun.proposals.langevin import LangevinProposal
from mhrun.proposals.random_walk import RandomWalk
from mhrun.random import Purpose
from mhrun.rules.metropolis import Metropolis
from mhrun.rules.penalty import Penalty
from mhrun.target import Target
from mhrun.types import Verdict


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


class ForgetsTemperature(LangevinProposal):
    """Moves with the gradient of the target at T, and gives the density of moves at T = 1."""

    def log_density_ratio(self, origin, candidate, controls):
        one = torch.ones_like(controls.noise_temperature)
        return super().log_density_ratio(origin, candidate, controls._replace(noise_temperature=one))


class ColdKernel(MetropolisHastings):
    """Decides at T = 1 whatever the temperature."""

    def step(self, target, state, controls, draws):
        return super().step(
            target, state, controls._replace(temperature=torch.ones_like(controls.temperature)), draws
        )


class TempersThePrior(MetropolisHastings):
    """Decides at the temperature of the posterior, as if the temperature applied to the prior too."""

    def step(self, target, state, controls, draws):
        posterior = Target(target.model, target.data)
        return super().step(posterior, state, controls, draws)


class TwoStages(Rule):
    """Delayed acceptance (Christen & Fox 2005): a first test on m fresh data, and one on all data corrects it."""

    wants = SUPPLY
    keeps_ratio = exact = True

    def __init__(self, m, stages=2):
        self.m, self.stages = m, stages

    def decide(self, contest, draws):
        supply, rows = contest.supply, torch.arange(len(contest.offset))
        first_terms = supply.terms(rows, 0, self.m)
        terms = first_terms
        if self.m < supply.n:
            terms = torch.cat((first_terms, supply.terms(rows, self.m, supply.n)), dim=-1)
        first, log_ratio = (contest.offset + contest.scale * part.mean(-1) for part in (first_terms, terms))
        accepted = draws.uniform(Purpose.ACCEPT).log() < first
        if self.stages == 2:
            accepted &= draws.uniform(Purpose.ACCEPT, use=1).log() < log_ratio - first
        size = torch.full_like(rows, supply.n, dtype=torch.int32)
        return Verdict(accepted, log_ratio, torch.zeros_like(log_ratio), size)


def of_stages(stages):
    return lambda n, m: MetropolisHastings(RandomWalk(), Growing(), TwoStages(m, stages))


WRONG = {
    "no second stage": (of_stages(1), EXACT | {"goes there"}, INVARIANCE | {"detailed balance"}),
    "forgets the temperature": (of_parts(ForgetsTemperature), TEMPERED, TEMPERED),
    "cold": (of_parts(kernel=ColdKernel), TEMPERED, TEMPERED),
    "tempers the prior": (
        of_parts(kernel=TempersThePrior),
        TEMPERED,
        {"invariance at T = 4: Gaussian mean, n = 4, temper = likelihood"},
    ),
    "wrong sign": (of_parts(rule=WrongSign), EXACT | {"goes there"}, INVARIANCE | {"detailed balance"}),
    "too warm": (of_parts(rule=TooWarm), EXACT, INVARIANCE | {"detailed balance", "Geweke's joint test"}),
    "no density": (of_parts(NoDensity), EXACT | {"goes there"}, {"invariance: Gaussian mean, n = 30"}),
    "standstill": (of_parts(Standstill), {"goes there", "detailed balance"}, {"goes there"}),
    "one line": (of_parts(OneLine), {"goes there"}, {"goes there"}),
    "first of six": (of_parts(FirstOfSix), {"goes there"}, {"goes there"}),
    "wide at the end": (
        of_parts(WideAtTheEnd),
        INVARIANCE | TEMPERED,
        {"invariance: correlated Gaussian, D = 6"},
    ),
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


def test_a_rule_that_needs_a_larger_minibatch_is_checked_on_all_data():
    """One in three data may be too few to estimate the noise of a minibatch."""
    (found,) = judged(of_parts(rule=Penalty), "balance", chains=1000).values()
    assert found.outcome == "holds"


def test_a_ladder_is_no_more_exact_than_its_chains():
    """Its own rule is that of the exchanges."""

    class Exact(Metropolis):
        exact = True

    def make(n, m):
        return ReplicaExchange(of_parts()(n, m), Full(), Exact(), 2)

    assert {one.outcome for one in judged(make, "invariance", chains=1000).values()} == {"holds"}


# The quickest; the others take seconds to minutes.
FAST = {"no second stage", "wrong sign", "uncounted passes", "accepts anything"}


def test_a_rule_that_is_exact_on_a_part_of_the_data_holds_on_a_part():
    """With m = n its first stage would be all there is to try."""
    sizes = []

    def make(n, m):
        sizes.append((n, m))
        return of_stages(2)(n, m)

    found = judged(make, "invariance", "balance", chains=3000)
    assert {verdict.outcome for verdict in found.values()} == {"holds"}
    assert (30, 10) in sizes


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in WRONG]
)
def test_each_wrong_fails_the_distribution_that_it_breaks(name):
    make, may, must = WRONG[name]
    found = failing(make, chains=3000)
    assert must <= found <= may


def test_a_variance_that_is_a_tenth_too_small_fails_at_the_default_number_of_chains():
    found = judged(lazy(0.0, 1.1), "invariance", chains=8000)["invariance: Gaussian mean, n = 30"]
    assert found.outcome == "fails"
    assert "variance of scores 0.9" in found.detail
    assert found.statistic < 0.03  # the distance of the ends alone would pass
    assert 0.05 < found.unseen < 0.09  # as it says itself


@pytest.mark.slow
def test_an_error_just_beyond_what_passes_unseen_fails():
    """A target to the power r has a variance 1/r times as large."""
    limit = judged(of_parts(), "invariance", chains=8000)["invariance: Gaussian mean, n = 30"].unseen
    found = judged(lazy(0.0, 1 / (1 - 1.5 * limit)), "invariance", chains=8000)
    assert found["invariance: Gaussian mean, n = 30"].outcome == "fails"
    found = judged(lazy(0.0, 1 / (1 - 0.3 * limit)), "invariance", chains=8000)
    assert found["invariance: Gaussian mean, n = 30"].outcome == "holds"


@pytest.mark.slow
def test_a_variance_that_is_a_few_per_cent_off_fails_when_repeated():
    found = judged(lazy(0.0, 1.07), "invariance", chains=8000)
    again = [
        verdict for verdict in found.values() if "repeated with 5 times as many chains" in verdict.detail
    ]
    assert again
    assert {verdict.outcome for verdict in again} == {"fails"}


@pytest.mark.parametrize("rest", [pytest.param(0.5, marks=pytest.mark.slow), 0.8])
@pytest.mark.slow
def test_a_wrong_rule_that_mostly_rests_fails(rest):
    """Its acceptance rate is low at any step size; at steps of almost 0 every rule would hold."""
    assert "invariance: correlated Gaussian, D = 6" in failing(lazy(rest, 0.8), "invariance", chains=8000)
    assert "detailed balance" in failing(lazy(rest, 0.5), "balance", chains=8000)


@pytest.mark.parametrize("rest", [pytest.param(0.5, marks=pytest.mark.slow), 0.8])
@pytest.mark.slow
def test_a_right_rule_that_mostly_rests_holds_at_steps_that_show_errors(rest):
    found = judged(lazy(rest, 1.0), "invariance", "coming", "balance", "geweke", chains=2000)
    assert {verdict.outcome for verdict in found.values()} == {"holds"}
    one = subject(lazy(rest, 1.0))
    for known in (gaussian_mean(30), mixture(), correlated()):
        step = one.step_for(one.exact_case(known))
        assert 0.25 * known.scale < step < 5 * known.scale


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_distribution_of_the_target_applies_to_a_fit():
    found = judged(lambda n, m: PlanarFlow(40, m=None if n == m else m), step_size=None)
    applied = [check for check, verdict in found.items() if verdict.outcome != "does not apply"]
    assert applied == ["what a step reports", "cost counting", "same seed, same chains", "chains independent",
                     "resuming", "absurd step sizes"]  # fmt: skip
    assert {found[check].outcome for check in applied} == {"holds"}
    assert "gradients, 0 and 0" not in found["cost counting"].detail


class TwiceCounted(MetropolisHastings):
    """Counts the log-likelihood and the gradient of one pass, and declares them to be of two."""

    def separate_gradients(self):
        return 1.0


class Ungraded(MetropolisHastings):
    def step(self, target, state, controls, draws):
        state, info = super().step(target, state, controls, draws)
        return state, info._replace(n_grad=info.n_grad // 2)


@pytest.mark.slow
def test_the_message_on_a_wrong_count_has_the_expected_one():
    count = "reports 57,600 log-likelihoods and 57,600 gradients, 0 and 57,600 were made"
    twice = judged(of_parts(LangevinProposal, kernel=TwiceCounted), "costs")["cost counting"]
    assert twice.outcome == "fails"
    assert twice.detail == (
        f"{count}; n_lik + separate_gradients n_grad = 115,200 evaluations, must be 57,600. separate_gradients(), "
        "the share of gradients from passes that give no log-likelihood, is 1; with these counts it must be 0"
    )
    assert judged(of_parts(LangevinProposal), "costs")["cost counting"].detail == count
    few = judged(of_parts(LangevinProposal, kernel=Ungraded), "costs")["cost counting"]
    assert few.detail.endswith("0 and 57,600 were made; n_grad must be 57,600")
    half = judged(of_parts(kernel=Lying), "costs")["cost counting"]
    assert half.detail.endswith("; n_lik must be 57,600")


def test_an_error_in_someones_code_is_a_line():
    found = judged(of_parts(rule=Crash), "invariance", "costs")
    assert {verdict.outcome for verdict in found.values()} == {"fails"}
    assert "log_ratoi" in found["costs"].detail
    assert "test_wrong_parts.py, line" in found["costs"].detail
    with pytest.raises(UserError, match=r"no check 'invarance'.*Did you mean 'invariance'"):
        judged(of_parts(), "invarance")


class Multiplicative(NoDensity):
    """A walk of the logarithm, for positive parameters."""

    def log_density(self, origin, to, controls):
        return -to.log().sum(-1)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
