"""Dynamics in `mhrun check`: their limit at small steps, the noise temperature, and what they declare."""

from __future__ import annotations

import re

import pytest
import torch
from checked import INVARIANCE, failing, judged, of_parts

from mhrun.cli.main import run
from mhrun.dynamics.badodab import Badodab
from mhrun.dynamics.momentum import Momentum
from mhrun.dynamics.sgbd import SGBD
from mhrun.dynamics.sghmc import SGHMC
from mhrun.dynamics.sgld import SGLD
from mhrun.dynamics.sgnht import SGNHT
from mhrun.dynamics.tact_hmc import TACTHMC
from mhrun.kernels import Unadjusted
from mhrun.parts import Bias
from mhrun.random import Purpose


@pytest.mark.slow
@pytest.mark.parametrize("dynamics", [SGLD, SGHMC])
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


@pytest.mark.slow
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
        pytest.param(
            lambda z: torch.cat([z[:, :1], 0.9 * z[:, 1:2] + 0.19**0.5 * z[:, :1], z[:, 2:]], 1),
            "of 6",
            marks=pytest.mark.slow,
        ),
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


@pytest.mark.slow
@pytest.mark.parametrize(("friction", "chains"), [(0.1, 4_500), (0.3, 2_000)])
def test_the_bias_of_a_thermostat_must_be_declared(monkeypatch, friction, chains):
    """Of the first the variance is off by 5 %, which fails in the repetition with more chains."""
    check = "the target as steps shrink"

    def thermostat(n, m):
        return Unadjusted(SGNHT(friction=friction), None if n == m else m)

    found = judged(thermostat, "nearing", chains=chains)[check]
    assert found.outcome == "holds"
    assert f"where up to {(1 - 2 * friction) ** 0.5 / 2 - 0.5:+.3g} is declared" in found.detail
    monkeypatch.setattr(SGNHT, "bias", Bias(noise=1 / friction))
    found = judged(thermostat, "nearing", chains=chains)[check]
    assert found.outcome == "fails"
    assert ("repeated with 5 times as many chains" in found.detail) == (friction == 0.1)


class Riemannian(SGLD):
    """Steps of e G, G = 0.2 + 1 / (1 + theta^2), with the derivative of G that keeps the target in some coordinates."""

    def __init__(self, corrected):
        super().__init__()
        self.corrected = torch.tensor(corrected)

    def move(self, theta, grad, aux, controls, draws):
        step, temperature = controls.step_size[:, None], controls.noise_temperature[:, None]
        width = 1 + theta**2
        metric = 0.2 + 1 / width
        drift = metric * grad - self.corrected * temperature * 2 * theta / width**2
        z = draws.normal(Purpose.NOISE, theta.shape[1])
        return theta + step * drift + (2 * step * temperature * metric).sqrt() * z, aux


ALL = [1.0] * 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("corrected", "outcome", "moment"),
    [
        (ALL, "holds", "variance"),
        ([0.0] * 6, "fails", "mean"),
        # Here variances hardly change.
        pytest.param([*ALL[:3], 0.0, *ALL[4:]], "fails", "mean", marks=pytest.mark.slow),
    ],
)
def test_a_metric_that_depends_on_the_point_needs_its_derivative(corrected, outcome, moment):
    """The target is as wide as a preconditioned posterior; on one five times as narrow the metric hardly changes."""
    chains = 8000 if 1.0 in corrected and moment == "mean" else 2000
    found = judged(lambda n, m: Unadjusted(Riemannian(corrected), None), "nearing", chains=chains)
    assert found["the target as steps shrink"].outcome == outcome
    assert found["the target as steps shrink"].detail.startswith(moment)


class Shifted(SGLD):
    """A drift that moves the mean of one coordinate by a quarter of a standard deviation, and no variance."""

    def move(self, theta, grad, aux, controls, draws):
        drift = grad.clone()
        drift[:, -1] += 0.25
        return super().move(theta, drift, aux, controls, draws)


@pytest.mark.slow
def test_a_dynamics_with_another_mean_fails():
    found = judged(lambda n, m: Unadjusted(Shifted(), None), "nearing", chains=2000)
    assert found["the target as steps shrink"].outcome == "fails"
    assert found["the target as steps shrink"].detail.startswith("mean in direction")


class Uphill(SGHMC):
    """Away from the mode: there is no stationary distribution."""

    def move(self, theta, grad, aux, controls, draws):
        return super().move(theta, -grad, aux, controls, draws)


@pytest.mark.slow
def test_an_error_that_does_not_fall_with_the_step_fails():
    """It looks stable at steps at which chains hardly move; its errors are equal, and that of the limit is large."""
    found = judged(lambda n, m: Unadjusted(Uphill(), None), "nearing", chains=3000)
    verdict = found["the target as steps shrink"]
    assert verdict.outcome == "fails"
    assert "it does not fall with the step" in verdict.detail


@pytest.mark.slow
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
        pytest.param(lambda c: c._replace(noise_temperature=c.temperature), marks=pytest.mark.slow),
        lambda c: c._replace(noise_temperature=c.noise_temperature.square()),
    ],
)
@pytest.mark.slow
def test_a_dynamics_that_does_not_follow_the_noise_temperature_fails(change):
    assert failing(with_noise(change), "nearing", "temperature", chains=800) == {"noise temperature"}


class UnitsOfTemperature(SGLD):
    """Its step size is in units of the temperature: theta' = theta + e g / T + sqrt(2 e) z."""

    bias = Bias(noise=1.0)  # at T = 1

    def move(self, theta, grad, aux, controls, draws):
        step = controls.step_size / controls.noise_temperature
        return super().move(theta, grad, aux, controls._replace(step_size=step), draws)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dynamics",
    [
        pytest.param(SGLD(), id="sgld"),
        pytest.param(SGHMC(), id="sghmc", marks=pytest.mark.slow),
        pytest.param(SGNHT(), id="sgnht", marks=pytest.mark.slow),
        pytest.param(Badodab(), id="badodab", marks=pytest.mark.slow),
        pytest.param(SGBD(), id="sgbd", marks=pytest.mark.slow),
        pytest.param(SGBD(known_noise=None), id="sgbd estimating", marks=pytest.mark.slow),
        pytest.param(TACTHMC(), id="tact_hmc", marks=pytest.mark.slow),
        pytest.param(UnitsOfTemperature(), id="step in units of T", marks=pytest.mark.slow),
    ],
)
def test_dynamics_follow_the_noise_temperature_and_their_declared_gain(dynamics):
    found = judged(lambda n, m: Unadjusted(dynamics, None), "temperature", "gain", chains=800)
    assert found["noise temperature"].outcome == "holds"
    assert found["noise temperature"].detail.startswith("at temperature 0.25 variance off by")
    assert found["gradient noise"].outcome == "holds"


@pytest.mark.slow
def test_a_method_with_control_variates_is_checked_with_them(capsys):
    """With a gradient of less noise the step of the measurement, which is chosen by the noise, is larger."""
    steps = {}
    for method in ("sgld", "sgld_cv"):
        assert run(["check", f"method={method}", "checks=[minibatches]", "chains=500"]) == 0
        steps[method] = float(re.search(r"step ([\d.e-]+)\)", capsys.readouterr().out)[1])
    assert steps["sgld_cv"] > 4 * steps["sgld"]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("declared", "outcome"), [(1.0, "fails"), (10.0, "holds"), (15.0, "holds")])
def test_a_gain_that_is_declared_too_small_fails(declared, outcome):
    dynamics = type("Declaring", (SGHMC,), {"bias": Bias(noise=declared)})()
    found = judged(lambda n, m: Unadjusted(dynamics, None), "gain", chains=800)["gradient noise"]
    assert found.outcome == outcome
    assert f"bias.noise = {declared:g} declares 0.2" in found.detail
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


@pytest.mark.slow
def test_a_dynamics_that_goes_astray_holds_nothing_because_its_error_is_large():
    class Leaps(SGLD):
        """The variance of its steps has no mean."""

        def move(self, theta, grad, aux, controls, draws):
            theta, aux = super().move(theta, grad, aux, controls, draws)
            far = draws.normal(Purpose.NOISE, 1, use=1, dtype=theta.dtype)
            return theta + 1e-3 * far.sign() / far.square(), aux

    leaps = judged(lambda n, m: Unadjusted(Leaps(), None), "nearing", chains=800, step_size=1e-2)
    assert leaps["the target as steps shrink"].outcome == "no power"


@pytest.mark.slow
def test_steps_are_shorter_where_errors_are_too_large_to_extrapolate():
    """A preconditioner that adapts makes long steps at a low temperature, whose errors no parabola fits."""

    class PSGLD(SGLD):
        """SGLD with RMSprop's scale, without the term of its derivative (Li et al. 2016)."""

        def start(self, theta, draws):
            return {"v": torch.ones_like(theta)}

        def move(self, theta, grad, aux, controls, draws):
            v = 0.99 * aux["v"] + 0.01 * grad**2
            scale = controls.step_size[:, None] / (1e-5 + v.sqrt())
            noise = (2 * controls.noise_temperature[:, None] * scale).sqrt()
            return theta + scale * grad + noise * draws.normal(Purpose.NOISE, theta.shape[1]), {"v": v}

    found = judged(lambda n, m: Unadjusted(PSGLD(), None), "temperature", chains=1_000)
    detail = found["noise temperature"].detail
    *_, shortest, limit = (float(number) for number in re.findall(r"([+-][\d.]+) ± ", detail))
    assert abs(shortest) < 0.25
    assert abs(limit - shortest) < 0.1, detail
