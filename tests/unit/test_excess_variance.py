"""The excess of the variance by minibatch noise of gradients, beside the closed form and beside draws."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import optimize

import mhrun
from mhrun.data import Dataset
from mhrun.engine.diagnosis.excess_variance import excess_of_noise, scale_of_dynamics
from mhrun.engine.method import Method
from mhrun.errors import Refusal
from mhrun.kernels import Unadjusted
from mhrun.kernels.preconditioned import PreconditionedDynamics
from mhrun.models.gaussian_location import GaussianLocation
from mhrun.parts import Bias
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.plan import Plan
from mhrun.store.blocks import done
from mhrun.store.netcdf import Shape, flat_draws
from mhrun.target import Target
from mhrun.types.scale import Scale

N, M = 400, 20
X = np.random.default_rng(0).normal(0, (1.0, 3.0), (N, 2))


def excess(kernel, step_size=2e-4, temperature=1.0, replacement=False, n=N, chains=3, **of_target):
    """Return the excess for the mean of two-dimensional data."""
    data = Dataset.of({"x": X[:n]})
    target = Target(GaussianLocation(2), data, replacement=replacement, **of_target)
    shape = Shape(chains, target.model.names, 10, 90, 1)
    schedules = {"step_size": Fixed(step_size=step_size), "temperature": Fixed(temperature=temperature)}
    method = Method("one", kernel, target, Plan(schedules, chains, 10, 90), shape, 0)
    return largest_excess(method, torch.zeros(chains, 2, dtype=torch.float64))


def largest_excess(method, points):
    """Return the largest excess from gradients at points."""
    excess = excess_of_noise(method, points, scale_of_dynamics(method.kernel.of_a_chain))
    return None if excess is None else excess.largest


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize(("dynamics", "gain"), [(mhrun.SGLD(), 1.0), (mhrun.SGHMC(0.1), 10.0)])
def test_the_excess_is_that_of_the_largest_direction(dynamics, gain, temperature, replacement):
    """A gradient of one datum is x - theta: V = n^2 / m (1 - m/n) cov(x)."""
    share = 1.0 if replacement else 1 - M / N
    largest = np.linalg.eigvalsh(np.cov(X.T)).max() * N**2 / M * share
    expected = 0.5 * gain * 2e-4 * largest / temperature
    found = excess(Unadjusted(dynamics, M), temperature=temperature, replacement=replacement)
    assert found == pytest.approx(expected, rel=1e-6)  # of all 400 data


@pytest.mark.parametrize("factor", [torch.tensor([0.5, 2.0]), torch.tensor([[0.5, 0.0], [-1.0, 2.0]])])
def test_the_excess_in_scaled_coordinates_is_that_of_the_noise_in_them(factor):
    """phi moves by S' grad, whose noise has the covariance S' V S."""
    dynamics = PreconditionedDynamics(mhrun.SGLD(), Scale(torch.zeros(2), factor))
    matrix = (torch.diag(factor) if factor.dim() == 1 else factor).numpy()
    noise = matrix.T @ np.cov(X.T) @ matrix * N**2 / M * (1 - M / N)
    found = excess(Unadjusted(dynamics, M))
    assert found == pytest.approx(0.5 * 2e-4 * np.linalg.eigvalsh(noise).max(), rel=1e-6)


def test_the_excess_of_a_ladder_is_that_of_its_coldest_rungs():
    rung = Unadjusted(mhrun.SGLD(), M)
    ladder = mhrun.ReplicaExchange(rung, mhrun.Full(), mhrun.Metropolis(), rungs=3)
    found = excess(ladder, [2e-4, 4e-4, 6e-4], [1.0, 4.0, 20.0])
    assert found == pytest.approx(excess(rung), rel=1e-12)


def test_a_known_noise_is_taken_off_and_that_of_the_target_added():
    largest = np.linalg.eigvalsh(np.cov(X.T)).max() * N**2 / M * (1 - M / N)
    known = excess(Unadjusted(mhrun.SGLD(known_noise=0.3 * largest), M))
    assert known == pytest.approx(0.5 * 2e-4 * 0.7 * largest, rel=1e-6)
    assert excess(Unadjusted(mhrun.SGLD(), None), gradient_noise=100.0) == pytest.approx(0.5 * 2e-4 * 100.0)


@pytest.mark.parametrize(
    "kernel",
    [
        Unadjusted(mhrun.SGLD(), None),
        Unadjusted(mhrun.SGLD(), N),
        Unadjusted(mhrun.SGLD(known_noise=1e6), M),
        Unadjusted(mhrun.SGBD(known_noise=None), M),
        Unadjusted(mhrun.SGHMC(0.1, noise_estimate=0.05), M),
        Unadjusted(mhrun.SGNHT(0.1), M),
        Unadjusted(mhrun.SGLD(), M, passes=True),
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(M), mhrun.Metropolis()),
    ],
)
def test_there_is_none_without_noise_or_where_it_is_corrected_for(kernel):
    assert excess(kernel) is None


def test_a_module_without_hidden_units_is_warned_of_and_a_network_is_not():
    """Weights without symmetries are as wide as their posterior; those of hidden units are in no such number."""
    rng = np.random.default_rng(1)
    data = Dataset.of({"x": torch.from_numpy(rng.normal(size=(50, 3))).float(), "y": torch.arange(50) % 2})
    linear = mhrun.ModuleModel(torch.nn.Linear(3, 2))
    hidden = mhrun.ModuleModel(
        torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    )
    schedules = {"step_size": Fixed(step_size=0.01), "temperature": Fixed(temperature=1.0)}

    def of(model):
        target = Target(model, data)
        shape = Shape(3, target.model.names, 10, 90, 1)
        method = Method("one", Unadjusted(mhrun.SGLD(), 2), target, Plan(schedules, 3, 10, 90), shape, 0)
        return largest_excess(method, torch.zeros(3, target.dim))

    # At theta = 0 both probabilities are 1/2: the gradient of a datum is +-(x, 1) / 2 of the right class, and its
    # negative of the other, so that the largest eigenvalue is twice that of the covariance of these.
    x = np.column_stack([data.fields["x"].numpy(), np.ones(50)])
    gradients = x * np.where(data.fields["y"].numpy() == 1, 0.5, -0.5)[:, None]
    largest = 2 * np.linalg.eigvalsh(np.cov(gradients.T)).max() * 50**2 / 2 * (1 - 2 / 50)
    assert of(linear) == pytest.approx(0.5 * 0.01 * largest, rel=1e-4)
    assert of(hidden) is None


@pytest.mark.parametrize("bias", [1.0, (1.0,), {"noise": 1.0}])
def test_a_bias_of_another_type_is_refused(bias):
    dynamics = mhrun.SGLD()
    dynamics.bias = bias
    with pytest.raises(Refusal, match=r"bias of SGLD is .*; declare bias = mhrun.Bias\(noise=...\)"):
        mhrun.Unadjusted(dynamics, 5)


@pytest.mark.parametrize(("m", "gain", "warns"), [(5, None, True), (None, None, False), (5, 1.0, False)])
def test_a_dynamics_that_declares_nothing_is_warned_of_where_gradients_have_noise(m, gain, warns):
    dynamics = mhrun.SGLD()
    dynamics.bias = Bias(noise=gain)
    data = Dataset.of({"x": X})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = Unadjusted(dynamics, m)
        mhrun.sample(GaussianLocation(2), data, kernel, step_size=1e-5, steps=20, warmup=10, progress=False)
    lines = [str(each.message) for each in caught if "bias.noise" in str(each.message)]
    assert bool(lines) is warns
    assert all(line.startswith("SGLD declares no bias.noise, so that the excess variance") for line in lines)


@pytest.mark.parametrize("n", [2, 100, 156, 157, 200, 255, 383, 400])
def test_the_excess_of_few_data_is_of_all_of_them(n):
    """At 128 points, among which the data would not go round."""
    largest = np.linalg.eigvalsh(np.cov(X[:n].T)).max() * n**2 / 2 * (1 - 2 / n) if n > 2 else 0.0
    found = excess(Unadjusted(mhrun.SGLD(), 2), n=n, chains=128)
    assert found == (pytest.approx(0.5 * 2e-4 * largest, rel=0.15) if largest else None)


def test_no_draws_are_read_where_there_is_no_noise(monkeypatch):
    """Draws of a network may need more memory than there is."""
    read = "mhrun.engine.diagnosis.excess_variance.cold_draws"
    monkeypatch.setattr(read, lambda *_, **__: pytest.fail("draws were read"))
    module = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    data = {"x": torch.linspace(-1, 1, 20)[:, None], "y": torch.arange(20) % 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mhrun.sample(
            mhrun.ModuleModel(module), data, Unadjusted(mhrun.SGLD(), 5), step_size=1e-4, steps=20, warmup=5
        )


def test_a_chain_that_has_stopped_does_not_hide_the_noise_of_the_others(tmp_path):
    def log_lik(theta, x):
        return -0.5 * (x - theta[0]) ** 2 - theta[0] ** 4 / 100

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            log_lik,
            torch.linspace(-1, 1, 100, dtype=torch.float64) * 30,
            Unadjusted(mhrun.SGLD(), 5),
            start=[[0.0], [0.1], [0.2], [200.0]],
            step_size=1e-3,
            chains=4,
            steps=300,
            warmup=100,
            progress=False,
        )
    lines = [str(one.message) for one in found]
    assert any("1 of 4 chains became non-finite" in line for line in lines)
    assert any("minibatch noise of its gradients makes draws too wide" in line for line in lines)


def test_one_datum_has_no_noise():
    assert excess(Unadjusted(mhrun.SGLD(), 1), n=1) is None


@pytest.mark.parametrize(
    ("dynamics", "step_size"),
    [(mhrun.SGLD(), 1e-4), pytest.param(mhrun.SGHMC(0.1), 1e-5, marks=pytest.mark.slow)],
)
@pytest.mark.slow
def test_the_warning_has_the_size_that_draws_have(dynamics, step_size):
    """The variance of 160,000 correlated draws, known to 5 %; without the warning R-hat and ESS said nothing."""
    n, m = 2_000, 50
    x = np.random.default_rng(1).normal(size=n)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trace = mhrun.sample(
            GaussianLocation(1),
            {"x": x[:, None]},
            Unadjusted(dynamics, m),
            step_size=step_size,
            chains=8,
            steps=20_000,
            warmup=2_000,
        )
    ratio = float(flat_draws(trace["posterior"]).var()) * n
    line = next(str(one.message) for one in found if "minibatch noise of its gradients" in str(one.message))
    size = float(line.split("variances up to ")[1].split(" times")[0])
    assert size == pytest.approx(ratio, rel=0.15)
    assert size == pytest.approx(1 + 0.5 * dynamics.bias.noise * step_size * n**2 / m * (1 - m / n), rel=0.15)


@pytest.mark.slow
def test_with_control_variates_it_is_the_mean_over_draws_and_of_all_data(tmp_path):
    """25 of 30,000 rows decide on the coefficient: the noise is 0 at the mode, and a part of the data may have none."""
    n, m, step_size = 30_000, 300, 0.02
    rng = np.random.default_rng(3)
    x = rng.permutation(np.arange(n) < 25).astype(float)[:, None]
    y = np.where(rng.random(n) < 0.3, 1.0, -1.0)
    trace = mhrun.sample(
        mhrun.Logistic(1, prior_variance=4.0),
        {"x": x, "y": y},
        mhrun.Unadjusted(mhrun.SGLD(), m=m),
        surrogate="taylor1",
        step_size=step_size,
        steps=4_000,
        warmup=400,
        seed=6,
        folder=tmp_path,
        progress=False,
    )
    theta = flat_draws(trace["posterior"])[:, 2_000:].reshape(-1)

    def gradients(theta):  # of data with x = 1, at several points
        labels = y[x[:, 0] == 1]
        return labels / (1 + np.exp(labels * np.atleast_1d(theta)[:, None]))

    mode = optimize.brentq(lambda theta: float(gradients(theta).sum()) - theta / 4, -5, 5)
    error = gradients(theta) - gradients(mode)
    noise = (error**2).sum(1).mean() / n - ((error.sum(1) / n) ** 2).mean()
    expected = 0.5 * step_size * noise * n**2 / m * (1 - m / n)
    summary = done(tmp_path)
    assert summary["excess_variance"] == pytest.approx(expected, rel=0.25)
