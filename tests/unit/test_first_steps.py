"""The first steps of a method with a part of the user's are done twice before it runs."""

from __future__ import annotations

import warnings

import pytest
import torch

import mhrun
from mhrun.errors import Refusal, UserError
from mhrun.parts import Dynamics, Rule
from mhrun.random import Purpose

X = torch.linspace(-1, 1, 50, dtype=torch.float64)


class Sound(Dynamics):
    """SGLD with a count of its steps."""

    def start(self, theta, draws):
        return {"count": theta.new_zeros(len(theta))}

    def noise(self, theta, draws):
        return draws.normal(Purpose.NOISE, theta.shape[1])

    def move(self, theta, grad, aux, controls, draws):
        step = controls.step_size[:, None]
        moved = theta + step * grad + (2 * step).sqrt() * self.noise(theta, draws)
        return moved, {"count": aux["count"] + 1}


class OtherNumbers(Sound):
    def noise(self, theta, draws):
        return torch.randn_like(theta)


class HiddenState(Sound):
    last = 0.0

    def noise(self, theta, draws):
        self.last = super().noise(theta, draws) + 0.5 * self.last
        return self.last


class OtherName(Sound):
    def move(self, theta, grad, aux, controls, draws):
        theta, aux = super().move(theta, grad, aux, controls, draws)
        return theta, {"counts": aux["count"]}


class Dropped(Sound):
    def move(self, theta, grad, aux, controls, draws):
        theta, _ = super().move(theta, grad, aux, controls, draws)
        return theta, {}


class Narrow(Sound):
    def move(self, theta, grad, aux, controls, draws):
        theta, aux = super().move(theta, grad, aux, controls, draws)
        return theta.float(), aux


class OtherType(Sound):
    def move(self, theta, grad, aux, controls, draws):
        theta, aux = super().move(theta, grad, aux, controls, draws)
        return theta, {"count": aux["count"].float()}


class WithoutChains(Sound):
    def start(self, theta, draws):
        return {"count": theta.new_zeros(())}


class Number(Sound):
    def start(self, theta, draws):
        return {"count": 0}


class NumberLater(Sound):
    def move(self, theta, grad, aux, controls, draws):
        theta, _ = super().move(theta, grad, aux, controls, draws)
        return theta, {"count": 1}


class NotFinite(Sound):
    def noise(self, theta, draws):
        return (-super().noise(theta, draws).abs()).sqrt()


class InPlace(Sound):
    """What it changes in place is its own copy, so that its steps are the same again."""

    def move(self, theta, grad, aux, controls, draws):
        theta += controls.step_size[:, None] * grad
        return theta, {"count": aux["count"].add_(1)}


class OtherUniform(Rule):
    """Metropolis's test with numbers that do not come from the run's streams."""

    def decide(self, contest, draws):
        return contest.to_verdict(contest.log_ratio > torch.rand_like(contest.log_ratio).log())


class OtherWalk(mhrun.RandomWalk):
    """A random walk with numbers that do not come from the run's streams."""

    def sample(self, current, controls, draws):
        return current.theta + controls.step_size.sqrt()[:, None] * torch.randn_like(current.theta)


def run(kernel, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mhrun.sample(
            lambda theta, x: -0.5 * (x - theta[0]) ** 2,
            X,
            kernel,
            **{"start": [0.0], "step_size": 1e-3, "steps": 20, "warmup": 0, "chains": 4, "progress": False}
            | settings,
        )


@pytest.mark.parametrize(
    ("dynamics", "message"),
    [
        (OtherNumbers, "OtherNumbers: two runs of the first 4 steps from the same state differ"),
        (HiddenState, "HiddenState: two runs of the first 4 steps from the same state differ"),
        (OtherName, r"OtherName: a step adds aux\['counts'\]"),
        (Dropped, r"Dropped.move returned no aux\['count'\], which would keep its value"),
        (
            Narrow,
            "Narrow.move returned a theta of torch.float32, not torch.float64",
        ),
        (OtherType, r"OtherType: aux\['count'\] is \(4,\), float64 at the start and \(4,\), float32 after"),
        (WithoutChains, r"WithoutChains: aux\['count'\] is \(\) at the start, .* the chains: \(4, ...\)"),
        (Number, r"Number: aux\['count'\] is of type int, and must be a tensor \(4, ...\)"),
        (NumberLater, r"NumberLater: aux\['count'\] is of type int after a step, and must be a tensor"),
        (NotFinite, "NotFinite: all chains become non-finite in the first step"),
    ],
)
def test_a_dynamics_that_breaks_its_contract_is_refused(dynamics, message):
    with pytest.raises(UserError, match=message):
        run(mhrun.Unadjusted(dynamics(), 10))


@pytest.mark.parametrize(
    "kernel",
    [
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), OtherUniform()),
        mhrun.MetropolisHastings(OtherWalk(), mhrun.Full(), mhrun.Metropolis()),
    ],
)
def test_so_are_a_rule_and_a_proposal_whose_numbers_are_not_those_of_the_run(kernel):
    name = "OtherUniform" if isinstance(kernel.rule, OtherUniform) else "OtherWalk"
    numbers = r"uniform\(Purpose.ACCEPT\)" if name == "OtherUniform" else r"normal\(Purpose.PROPOSAL, D\)"
    torch.manual_seed(0)  # by chance all of few decisions may be the same
    with pytest.raises(Refusal, match=f"{name}: two runs of the first 4 steps.*such as draws.{numbers}"):
        run(kernel, step_size=0.05, chains=32)


def test_numbers_from_elsewhere_are_seen_where_chains_are_far_from_the_mode():
    """Nearly all of a step is then the gradient's, and little the noise."""
    with pytest.raises(Refusal, match="two runs of the first 4 steps"):
        run(mhrun.Unadjusted(OtherNumbers(), 10), start=[1e5], step_size=1e-4)


class OneStops(Sound):
    """A chain of it stops at once, and the others do not."""

    def noise(self, theta, draws):
        z = super().noise(theta, draws)
        return torch.where(torch.arange(len(z))[:, None] == 0, torch.nan, z)


class Walk(mhrun.RandomWalk):
    """A proposal in kernels of this package, of which one keeps points that are not those of its chains."""


@pytest.mark.parametrize(
    "kernel",
    [
        mhrun.Unadjusted(OneStops(), 10),
        mhrun.MetropolisHastings(Walk(), mhrun.Full(), mhrun.Metropolis()),
        mhrun.ReplicaExchange(
            mhrun.MetropolisHastings(Walk(), mhrun.Full(), mhrun.Metropolis()),
            mhrun.Full(),
            mhrun.Metropolis(),
            rungs=2,
        ),
        mhrun.EquiEnergy(Walk(), mhrun.Metropolis(), 2, [50, 25]),
    ],
)
def test_sound_parts_are_not_refused(kernel):
    temperature = {"temperature": [1.0, 4.0]} if kernel.rungs > 1 else {}
    assert run(kernel, **temperature)["posterior"].sizes["draw"] == 20


@pytest.mark.parametrize("dynamics", [Sound, InPlace])
@pytest.mark.parametrize("steps", [1, 20])
def test_a_sound_dynamics_runs_from_the_state_that_was_not_touched(dynamics, steps):
    """The steps that were tried are no part of the run: the first draw is one step from the start."""
    kernel, seed = mhrun.Unadjusted(dynamics(), 50), 3
    trace = run(kernel, steps=steps, seed=seed)
    first = float(trace["posterior"]["theta"].values[0].ravel()[0])
    again = float(run(kernel, steps=steps, seed=seed)["posterior"]["theta"].values[0].ravel()[0])
    assert first == again
    if dynamics is InPlace:  # without noise: theta + step * sum(x - theta) - its prior, which is flat
        assert first == pytest.approx(1e-3 * float(X.sum()), abs=1e-12)


def test_parts_of_this_package_are_not_tried(monkeypatch):
    monkeypatch.setattr(
        "mhrun.engine.first_steps._advanced", lambda *_: pytest.fail("steps of a bundled kernel were tried")
    )
    run(mhrun.Unadjusted(mhrun.SGLD(), 10))
