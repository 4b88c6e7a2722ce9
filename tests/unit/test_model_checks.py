"""A user's model that contradicts itself is refused before anything is computed with it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import mhrun
from mhrun.data import Dataset
from mhrun.engine.defaults import default_of
from mhrun.engine.model_checks.properties import check_derivatives, check_model, check_rows
from mhrun.engine.model_checks.step_functions import coordinate_with_steps
from mhrun.errors import Refusal, UserError
from mhrun.models.function import FunctionModel
from mhrun.models.module import ModuleModel
from mhrun.target import Target

RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(40, 3)), "y": RNG.normal(size=40)}


class Own:
    """A linear regression by hand, with a factor and an offset on its gradients."""

    dim, names = 3, ("a", "b", "c")

    def __init__(self, factor=1.0, coordinate=None, prior_factor=1.0, scale=1.0):
        self.factor, self.coordinate, self.prior_factor, self.scale = factor, coordinate, prior_factor, scale

    def init(self, chains, draws):
        return torch.zeros(chains, 3, dtype=torch.float64)

    def log_prior(self, theta):
        return -0.5 * theta.square().sum(-1)

    def log_prior_grad(self, theta):
        return -theta * self.prior_factor

    def log_lik(self, theta, rows):
        return -0.5 * self.scale * (rows["y"] - (rows["x"] @ theta[:, :, None])[..., 0]).square()

    def log_lik_and_grad(self, theta, rows):
        residual = rows["y"] - (rows["x"] @ theta[:, :, None])[..., 0]
        grad = self.scale * (residual[..., None] * rows["x"]).mean(1)
        if self.coordinate is None:
            grad = grad * self.factor
        else:
            grad[:, self.coordinate] *= self.factor
        return self.log_lik(theta, rows), grad


def check(model, data=DATA, dtype=torch.float64):
    target = Target(model, Dataset.of(data))
    check_model(target, torch.zeros(1, model.dim, dtype=dtype))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e8])
def test_a_right_gradient_passes_whatever_its_size(scale):
    check(Own(scale=scale))


@pytest.mark.parametrize(
    ("factor", "coordinate"), [(0.5, None), (-1.0, None), (0.0, None), (1.01, 2), (-1.0, 1)]
)
def test_a_wrong_gradient_is_refused(factor, coordinate):
    with pytest.raises(
        Refusal, match=r"log_lik_and_grad gives [abc] the gradient .* and the derivative of the mean"
    ):
        check(Own(factor, coordinate))
    # Where a run begins: before the pilot, which would search with it.
    with pytest.raises(Refusal, match="log_lik_and_grad"):
        mhrun.sample(Own(factor, coordinate), DATA, mhrun.Unadjusted(mhrun.SGLD(), 10), steps=10)


def test_a_wrong_gradient_of_the_prior_is_refused():
    with pytest.raises(Refusal, match=r"log_prior_grad gives [abc] the gradient .* derivative of log_prior"):
        check(Own(prior_factor=2.0))


def test_a_wrong_gradient_in_float32_is_refused_and_a_right_one_passes():
    data = {name: values.astype(np.float32) for name, values in DATA.items()}
    check(Own(), data, torch.float32)
    with pytest.raises(Refusal, match="gradient"):
        check(Own(0.5), data, torch.float32)


@pytest.mark.parametrize(
    "log_lik",
    [
        lambda theta, b: -0.5 * (b.y - theta[0]) ** 2 / len(b.y),
        lambda theta, b: -0.5 * (b.y - theta[0] - b.y.mean()) ** 2,
        lambda theta, b: -0.5 * (b.y - theta[0]) ** 2 / b.y.abs().max(),
    ],
)
def test_a_log_likelihood_of_the_minibatch_is_refused(log_lik):
    with pytest.raises(Refusal, match=r"alone, and .* in a minibatch of \d+"):
        mhrun.sample(log_lik, DATA, mhrun.Unadjusted(mhrun.SGLD(), 10), start=[0.0], step_size=1e-3, steps=10)


@pytest.mark.parametrize(
    ("log_lik", "message"),
    [  # of few data the quantile is the largest, and of one datum the deviation is no number
        (
            lambda theta, b: (
                -0.5 * (torch.minimum(b.y, b.y.sort().values[int(0.9 * len(b.y))]) - theta[0]) ** 2
            ),
            r"in a minibatch of \d+, and .* in a minibatch of 30\d",
        ),
        (lambda theta, b: -0.5 * (b.y - theta[0] - b.y.std()) ** 2, "nan alone, and"),
        (lambda theta, b: -0.5 * (b.y - theta[0] - 0.1 * (len(b.y) > 250)) ** 2, "alone, and"),
    ],
)
def test_one_that_shows_in_large_minibatches_or_in_none_of_one_is_refused_too(log_lik, message):
    data = {"y": np.random.default_rng(0).normal(size=2_000)}
    with pytest.raises(Refusal, match=message):
        mhrun.sample(log_lik, data, mhrun.Unadjusted(mhrun.SGLD(), 10), start=[0.0], step_size=1e-3, steps=10)


@pytest.mark.parametrize("edges", [(-1.0, 1.0), (1.0, 1.01)])
def test_a_function_that_is_constant_where_a_number_is_clamped_has_no_steps(edges):
    """There is no gradient at the start, nor where the search for steps goes."""
    model = FunctionModel(lambda theta, b: -0.5 * (b.y - theta[0].clamp(*edges) * b.x[:, 0]) ** 2, [3.0])
    target = Target(model, Dataset.of(DATA))
    assert coordinate_with_steps(target, torch.tensor([[3.0]], dtype=torch.float64)) is None
    assert default_of(target)[0] == "hmc"


def test_rounding_of_float32_parameters_is_no_dependence_on_the_minibatch():
    """The data and the log-likelihoods are float64, and the network computes in float32."""
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((300, 20)), "y": 30 * rng.standard_normal(300)}

    def log_lik(output, rows):
        return torch.distributions.Normal(output[:, 0], 0.1).log_prob(rows["y"])

    net = nn.Sequential(nn.Linear(20, 50), nn.Tanh(), nn.Linear(50, 1))
    check(ModuleModel(net, likelihood=log_lik), data, torch.float32)


def test_rounding_of_float32_fields_is_no_dependence_on_the_minibatch():
    x = np.random.default_rng(0).standard_normal((500, 50)).astype("float32")

    def log_lik(theta, b):
        return -0.5 * (b.x @ theta.float()).double() ** 2

    check_rows(Target(FunctionModel(log_lik, [1.0] * 50), Dataset.of({"x": x})), torch.rand(1, 50).double())


def test_a_function_of_the_datum_passes():
    model = FunctionModel(lambda theta, b: -0.5 * (b.y - theta[0]) ** 2 / 1e-6, [0.0])
    check(model)
    check(model, {"y": DATA["y"][:1]})


def test_a_model_that_refuses_points_near_its_start_is_checked_there():
    def log_lik(theta, b):
        return (
            torch.distributions.Normal(0.0, theta[0], validate_args=False).log_prob(b.y)
            + 0 * (theta[0] - 0.5).log()
        )

    class Narrow(Own):
        def log_lik(self, theta, rows):
            if theta.abs().max() > 1e-3:
                raise ValueError("outside")
            return super().log_lik(theta, rows)

        def log_lik_and_grad(self, theta, rows):
            return super().log_lik_and_grad(theta, rows)

    check(Narrow())
    with pytest.raises(Refusal, match="gradient"):
        check(Narrow(-1.0))
    check(FunctionModel(log_lik, [0.501]))


def test_modules_are_functions_of_the_datum_but_for_batch_norm(rng):
    data = {"x": DATA["x"].astype(np.float32), "y": rng.integers(0, 3, 40)}
    check(ModuleModel(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 3))), data, torch.float32)
    check(
        ModuleModel(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))), data, torch.float32
    )

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x - x.mean(0))

    with pytest.raises(Refusal, match="alone, and"):
        check(ModuleModel(Centred()), data, torch.float32)


@pytest.mark.parametrize(("offset", "refused"), [(0.0, False), (1e3, False), (1e6, True)])
def test_float32_fields_that_round_a_parameter_are_refused(offset, refused):
    """x - theta of a float32 vector and a float64 number is float32: theta near 1e6 has steps of 0.06."""
    x = torch.from_numpy(offset + np.random.default_rng(5).normal(size=10_000))
    parameters = {"m": f"Normal({offset}, 100)"}

    def log_lik(theta, b):
        return torch.distributions.Normal(theta.m, 1.0).log_prob(b.x)

    def widened(theta, b):
        return torch.distributions.Normal(theta.m, 1.0).log_prob(b.x.double())

    # Terms are large where the start is left, and rounding does no harm at the posterior.
    def of_the_year(theta, b):
        return torch.distributions.Normal(theta.m + 0.01 * b.x, 0.1).log_prob(
            torch.zeros((), dtype=torch.float64)
        )

    year = torch.linspace(1950, 2020, 10_000, dtype=torch.float64).float()
    target = Target(FunctionModel(of_the_year, parameters={"m": "Normal(0, 10)"}), Dataset.of({"x": year}))
    check_model(target, torch.tensor([[-19.85]], dtype=torch.float64))
    for function, field in ((log_lik, x.float()), (widened, x.float()), (log_lik, x)):
        target = Target(FunctionModel(function, parameters=parameters), Dataset.of({"x": field}))
        theta = torch.tensor([[offset]], dtype=torch.float64)
        if refused and function is log_lik and field is not x:
            with pytest.raises(Refusal, match=r"parameters are rounded\. .*write rows\.x\.double\(\)"):
                check_model(target, theta)
        else:
            check_model(target, theta)


def partly_detached(theta, b):
    return torch.distributions.Normal(theta.m, theta.s.detach()).log_prob(b.y)


NORMAL = {"m": "Normal(0, 1)", "s": "HalfNormal(1)"}
KERNELS = {
    "sgld": lambda: mhrun.Unadjusted(mhrun.SGLD(), 10),
    "hmc": lambda: mhrun.MetropolisHastings(mhrun.HamiltonianProposal(3), mhrun.Full(), mhrun.Metropolis()),
    "random walk": lambda: mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("step_size", [1e-3, "auto"])
@pytest.mark.slow
def test_a_function_of_which_a_part_is_not_differentiated_is_refused(kernel, step_size):
    """Its draws would be those of the prior there, and nothing would show it; a random walk takes no gradient."""
    call = {"parameters": NORMAL, "step_size": step_size, "steps": 20, "warmup": 1000, "progress": False}
    if kernel == "random walk":
        mhrun.sample(partly_detached, DATA, KERNELS[kernel](), **call)
    else:
        with pytest.raises(
            Refusal, match=r"the derivative .* by s, and torch finds 0: .* not differentiated"
        ):
            mhrun.sample(partly_detached, DATA, KERNELS[kernel](), **call)


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).detach())


def test_a_module_or_class_of_which_a_part_is_not_differentiated_is_refused():
    def log_lik(outputs, rows):
        return -0.5 * (rows["y"] - outputs[:, 0]) ** 2

    with pytest.raises(Refusal, match=r"by first\.weight\[\d+\], and torch finds 0"):
        check(ModuleModel(Detached(), log_lik))

    class Own2:
        dim, names = 3, ("a", "b", "c")

        def log_prior(self, theta):
            return -0.5 * theta.square().sum(-1)

        def log_lik(self, theta, rows):
            parts = torch.cat([theta[:, :2], theta[:, 2:].detach()], 1)
            return -0.5 * (rows["y"] - (rows["x"] @ parts[:, :, None])[..., 0]).square()

    with pytest.raises(Refusal, match="by c, and torch finds 0"):
        check(Own2())


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "log_lik",
    [
        lambda theta, b: -((b.y - theta.m).abs()) / theta.s - theta.s.log(),  # with a kink
        lambda theta, b: torch.distributions.StudentT(4.0, theta.m, theta.s).log_prob(b.y),
        lambda theta, b: -0.5 * (b.y - theta.m).clamp(-1.0, 1.0) ** 2 + 0 * theta.s,  # flat far away
        lambda theta, b: torch.distributions.Normal(theta.m, 1e-3 + 0 * theta.s).log_prob(b.y),
    ],
)
def test_functions_that_are_differentiated_pass(log_lik, dtype, offset):
    """Also where terms are large, rounded, flat or have kinks."""
    data = {"y": torch.from_numpy(DATA["y"] + offset).to(dtype)}
    target = Target(FunctionModel(log_lik, parameters=NORMAL), Dataset.of(data))
    for theta in ([0.3, 0.1], [0.0, 0.0], [50.0, -3.0]):
        check_derivatives(target, torch.tensor([theta], dtype=torch.float64), target.data.part(0, 5))


T = torch.from_numpy(2.45e6 + 100 * RNG.random(40))
COUNTS = torch.from_numpy(RNG.integers(0, 1000, 40)).float()
ROUGH = {  # name -> function, data, a point
    "periods of Julian dates": (
        lambda theta, b: -0.5 * (b.y - theta[0] * torch.sin(2 * torch.pi * b.t / theta[1])) ** 2,
        {"t": T, "y": DATA["y"]},
        [0.3, 10.0],
    ),
    "an exponential of what is not standardised": (
        lambda theta, b: -(theta[0] + theta[1] * b.x) - b.w * torch.exp(-theta[0] - theta[1] * b.x),
        {"x": 2e5 * RNG.normal(size=40), "w": RNG.random(40)},
        [0.05, 1e-4],
    ),
    "lgamma in float32": (
        lambda theta, b: torch.lgamma(b.k + theta[0].float()) - torch.lgamma(1000 + b.k + theta[0].float()),
        {"k": COUNTS},
        [3.0],
    ),
    "bfloat16": (
        lambda theta, b: -0.5 * (b.y - theta[0].to(torch.bfloat16)) ** 2,
        {"y": torch.from_numpy(DATA["y"]).to(torch.bfloat16)},
        [0.3],
    ),
}


@pytest.mark.parametrize("name", ROUGH)
def test_what_differences_cannot_judge_passes(name):
    log_lik, data, theta = ROUGH[name]
    target = Target(FunctionModel(log_lik, theta), Dataset.of(data))
    for factor in (1.0, 1.01, 0.93):
        point = factor * torch.tensor([theta], dtype=torch.float64)
        check_derivatives(target, point, target.data.part(0, 5))


def test_a_detached_layer_is_found_with_data_in_float32():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.last(torch.relu(self.first(x).detach()))

    data = {"x": torch.from_numpy(DATA["x"]).float(), "y": torch.arange(40) % 2}
    model = ModuleModel(Classifier(), prior_variance=1.0)
    with pytest.raises(Refusal, match=r"by first\..*, and torch finds 0"):
        mhrun.sample(
            model, data, mhrun.Unadjusted(mhrun.SGLD(), 10), step_size=1e-3, steps=20, progress=False
        )


class Centred(nn.Module):
    """In training mode inputs are centred by their minibatch, in evaluation mode by a running mean."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
            return self.last(torch.tanh(x - x.mean(0)))
        return self.last(torch.tanh(x - self.mean))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_module_with_a_training_mode_of_its_own_passes():
    model = ModuleModel(Centred(), prior_variance=1.0)
    data = {"x": DATA["x"] + 1.0, "y": np.arange(40) % 2}
    mhrun.sample(model, data, mhrun.Unadjusted(mhrun.SGLD(), 10), step_size=1e-3, steps=20, progress=False)


def test_of_a_large_network_few_coordinates_are_compared(monkeypatch):
    """One after another: each is a copy of all weights."""
    moved = []
    model = ModuleModel(nn.Sequential(nn.Linear(3, 50), nn.Tanh(), nn.Linear(50, 2)), prior_variance=1.0)
    whole = model.log_lik
    monkeypatch.setattr(
        model, "log_lik", lambda theta, rows: (moved.append(len(theta)), whole(theta, rows))[1]
    )
    monkeypatch.setattr("mhrun.engine.model_checks.properties._MOVED", 3 * model.dim)
    target = Target(model, Dataset.of({"x": DATA["x"], "y": np.arange(40) % 2}))
    check_derivatives(target, torch.randn(1, model.dim, dtype=torch.float64), target.data.part(0, 5))
    assert moved[-12:] == [1] * 12
    assert len(moved) <= 13  # three coordinates, two steps, two signs; and the gradient


TIMES = torch.linspace(0, 1, 40, dtype=torch.float64)


def change(smooth=None, rounds=False, reads=True):
    """Return a change point model of theta = (change, before, after), with a sharp or a smooth step."""

    def log_lik(theta, row):
        at = theta[0].round() if rounds else theta[0]
        share = (row.t > at).double() if smooth is None else torch.sigmoid((row.t - at) / smooth)
        if not reads:
            share = 0.5
        return -0.5 * (row.y - theta[1] - share * (theta[2] - theta[1])) ** 2

    return FunctionModel(log_lik, [0.4, 0.0, 1.0])


@pytest.mark.parametrize(
    ("settings", "warns"),
    [({}, True), ({"rounds": True}, True), ({"smooth": 0.05}, False), ({"reads": False}, False)],
)
@pytest.mark.parametrize("takes_gradients", [True, False])
def test_a_parameter_in_which_a_function_has_steps_is_named(settings, warns, takes_gradients):
    """Gradients and finite differences agree that there is no derivative."""
    model = change(**settings)
    target = Target(model, Dataset.of({"t": TIMES, "y": DATA["y"]}))
    theta = torch.tensor([[0.4, 0.0, 1.0]], dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):  # as a pilot and its method do
            check_model(target, theta, takes_gradients=takes_gradients)
    lines = [str(one.message) for one in caught]
    assert len(lines) == (warns and takes_gradients)
    assert all("changes with theta[0] in steps, and has no gradient in it" in line for line in lines)
    name, why, _ = default_of(target)
    assert name == ("mcmc" if warns else "hmc")
    assert ("log_lik changes with theta[0] in steps, which gradients do not see" in why) == warns


def test_a_likelihood_without_parameters_has_the_gradient_zero():
    """The prior alone is sampled; what gradients do not pass, such as detach, is still a function of theta."""
    rows = {"y": torch.ones(1, 3, dtype=torch.float64)}
    theta = torch.ones(2, 1, dtype=torch.float64)
    call = {"parameters": {"a": "Normal(0, 1)"}}
    constant = FunctionModel(lambda theta, batch: torch.zeros_like(batch.y), **call)
    values, grad = constant.log_lik_and_grad(theta, rows)
    assert values.shape == (2, 3)
    assert torch.equal(grad, torch.zeros(2, 1, dtype=torch.float64))
    for hidden in (lambda a: 0 * a.detach(), lambda a: a.detach().round(), lambda a: (a > 0).double()):
        model = FunctionModel(lambda theta, batch, hidden=hidden: hidden(theta.a) + 0 * batch.y, **call)
        with pytest.raises(UserError, match="log_lik has no gradient"):
            model.log_lik_and_grad(theta, rows)
