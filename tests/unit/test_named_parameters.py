"""Named parameters: coordinates, priors as text, start values, traces, and what does not go together."""

from __future__ import annotations

import math
import re
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td
from torch.distributions import Dirichlet, HalfNormal, Normal, constraints

import mhrun
from mhrun.errors import Refusal, UserError
from mhrun.models.function import FunctionModel
from mhrun.models.logistic import Logistic
from mhrun.models.parameters import Parameters, bounded_names
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.prior_text import PRIORS, prior_of
from mhrun.models.robust_regression import RobustRegression
from mhrun.random import Draws, Streams

ALL = {
    "a": 1,
    "beta": {"shape": 3, "prior": "Normal(0, 2)"},
    "scale": HalfNormal(1.0),
    "rates": {"shape": [2, 2], "prior": "Gamma(2, 1)"},
    "p": "Beta(2, 3)",
    "w": Dirichlet(torch.ones(3)),
    "cut": {"shape": 3, "constraint": "ordered"},
    "u": "Uniform(-1, 3)",
    "below": {"shape": 1, "constraint": "less_than(2)"},
    "factor": "LKJCholesky(3, 2.0)",
}


@pytest.fixture
def parameters():
    return Parameters(ALL)


def test_coordinates_have_names_and_shapes(parameters):
    assert parameters.dim == 1 + 3 + 1 + 4 + 1 + 2 + 3 + 1 + 1 + 3
    assert parameters.size == len(parameters.names) == parameters.dim + 1 + 6
    assert parameters.names[:5] == ["a", "beta[0]", "beta[1]", "beta[2]", "scale"]
    assert parameters.names[5:9] == ["rates[0,0]", "rates[0,1]", "rates[1,0]", "rates[1,1]"]
    assert not parameters.is_plain
    assert Parameters({"a": 2, "b": [1, 2]}).is_plain
    assert parameters.without_prior == ["a", "cut", "below"]


def test_values_are_within_their_constraints_and_go_back(parameters):
    theta = torch.randn(50, parameters.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = parameters.values(theta)
    assert {name: tuple(value.shape[1:]) for name, value in values.items()} == parameters.shapes
    assert (values["scale"] > 0).all()
    assert ((values["p"] > 0) & (values["p"] < 1)).all()
    assert torch.allclose(values["w"].sum(-1), torch.ones(50, dtype=torch.float64))
    assert (values["cut"].diff(dim=-1) > 0).all()
    assert ((values["u"] > -1) & (values["u"] < 3)).all()
    assert (values["below"] < 2).all()
    assert torch.allclose(parameters.theta(values), theta, atol=1e-6)
    assert torch.equal(parameters.values(theta[0])["rates"], values["rates"][0])
    again = parameters.named(parameters.flat(theta))
    assert all(torch.equal(again[name], values[name]) for name in values)


def free_of(name, value):
    """Return as many numbers of a value as it has degrees of freedom."""
    if name == "factor":
        return value[[1, 2, 2], [0, 0, 1]]
    return value[:-1] if name == "w" else value.reshape(-1)


@pytest.mark.parametrize("name", list(ALL))
def test_jacobians_are_those_of_the_transforms(name):
    parameters = Parameters({name: ALL[name]})
    theta = torch.randn(7, parameters.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (parameter,) = parameters.all
    declared = 0.0
    if parameter.prior is not None:
        declared = parameter.prior.log_prob(parameters.values(theta)[name]).reshape(7, -1).sum(-1)
    for one, found in zip(theta, parameters.log_prior(theta) - declared, strict=True):
        matrix = torch.autograd.functional.jacobian(
            lambda u: free_of(name, parameters.values(u)[name]).reshape(-1), one
        )
        assert float(found) == pytest.approx(float(torch.linalg.slogdet(matrix)[1]), abs=1e-8)


@pytest.mark.parametrize(
    "prior", ["HalfNormal(0.7)", "Beta(2, 3)", "Gamma(2, 1.5)", "Uniform(-1, 3)", "Normal(1, 2)"]
)
def test_a_log_prior_integrates_to_one_in_the_unconstrained_coordinate(prior):
    u = torch.linspace(-40, 40, 200_001, dtype=torch.float64)
    density = Parameters({"a": prior}).log_prior(u[:, None]).exp()
    assert float(torch.trapezoid(density, u)) == pytest.approx(1.0, abs=1e-6)


def test_priors_defined_by_the_user_have_their_supports():
    normal = td.MixtureSameFamily(
        td.Categorical(torch.ones(2)), Normal(torch.tensor([-1.0, 1.0]), torch.ones(2))
    )
    shifted = td.TransformedDistribution(Normal(0.0, 1.0), [td.ExpTransform(), td.AffineTransform(0.0, 2.0)])
    parameters = Parameters(
        {
            "m": normal,
            "s": {"prior": shifted, "constraint": "positive"},
            "v": td.MultivariateNormal(torch.zeros(2), torch.eye(2)),
        }
    )
    with pytest.raises(
        Refusal, match=r"parameters.s: the prior has no density at some values; give a constraint"
    ):
        Parameters({"s": shifted})
    theta = torch.zeros(1, 4, dtype=torch.float64)
    wanted = stats.norm.logpdf(1.0) + stats.lognorm.logpdf(1.0, 1.0, scale=2.0) + 2 * stats.norm.logpdf(0.0)
    assert float(parameters.log_prior(theta)) == pytest.approx(wanted)


def test_a_mixture_has_the_bounds_that_its_components_share():
    """torch keeps them with an axis of components, and gives the mixture the values that all of them have."""
    weights = td.Categorical(torch.tensor([0.3, 0.7]))
    high = torch.tensor([2.0, 2.0])
    pareto = td.MixtureSameFamily(weights, td.Pareto(high, torch.tensor([2.0, 5.0])))
    u = torch.linspace(-30, 30, 100_001, dtype=torch.float64)
    density = Parameters({"a": pareto}).log_prior(u[:, None]).exp()
    assert float(torch.trapezoid(density, u)) == pytest.approx(1.0, abs=1e-6)
    assert Parameters({"a": {"prior": pareto, "shape": 3}}).dim == 3
    boxes = td.Uniform(torch.zeros(2, 3), torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]))
    vectors = Parameters({"a": td.MixtureSameFamily(weights, td.Independent(boxes, 1))})
    draws = vectors.values(torch.full((1, 3), 50.0, dtype=torch.float64))["a"]
    assert draws.flatten().tolist() == pytest.approx([1.0, 2.0, 3.0])
    with pytest.raises(
        Refusal, match="components of the mixture have different bounds, such as 0 and \\[1\\];"
    ):
        Parameters({"a": td.MixtureSameFamily(weights, td.Uniform(torch.tensor([0.0, 1.0]), high))})


def test_gradients_go_through_transforms():
    model = FunctionModel(
        lambda theta, batch: Normal(theta.mu, theta.sigma).log_prob(batch.x),
        parameters={"mu": Normal(0.0, 1.0), "sigma": HalfNormal(2.0)},
    )
    target = mhrun.Target(model, mhrun.Dataset.of({"x": [0.3, -1.0, 2.0]}))
    theta = torch.tensor([[0.2, -0.4]], dtype=torch.float64)
    mu, sigma = 0.2, math.exp(-0.4)
    x = np.array([0.3, -1.0, 2.0])
    wanted = (
        stats.norm.logpdf(x, mu, sigma).sum()
        + stats.norm.logpdf(mu)
        + stats.halfnorm.logpdf(sigma, scale=2)
        - 0.4
    )
    assert float(target.log_density(theta)) == pytest.approx(wanted)
    residual = (x - mu) / sigma**2
    by_sigma = (((x - mu) ** 2 / sigma**3) - 1 / sigma).sum() - sigma / 4
    found = target.gradients.full(theta, torch.ones(1, dtype=torch.float64))[0].tolist()
    assert found == pytest.approx([residual.sum() - mu, by_sigma * sigma + 1])


# --- Priors as text ---------------------------------------------------------------------------------------


def test_texts_name_distributions():
    prior = prior_of("Normal(loc=-1, scale=[1.0, 2])", "x")
    assert torch.equal(prior.loc, torch.tensor([-1.0, -1.0], dtype=torch.float64))
    assert torch.equal(prior.scale, torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert all(issubclass(getattr(td, name), td.Distribution) for name in PRIORS)
    exact = Parameters({"s": "HalfNormal(0.1)"}).log_prior(torch.zeros(1, 1, dtype=torch.float64))
    assert float(exact) == pytest.approx(stats.halfnorm.logpdf(1.0, scale=0.1), rel=1e-14)


BY_SCIPY = {
    "Beta": ("Beta(2, 3)", stats.beta(2, 3)),
    "Cauchy": ("Cauchy(1, 2)", stats.cauchy(1, 2)),
    "Chi2": ("Chi2(3)", stats.chi2(3)),
    "Exponential": ("Exponential(2)", stats.expon(scale=0.5)),
    "FisherSnedecor": ("FisherSnedecor(4, 5)", stats.f(4, 5)),
    "Gamma": ("Gamma(2, 1.5)", stats.gamma(2, scale=1 / 1.5)),
    "Gumbel": ("Gumbel(1, 2)", stats.gumbel_r(1, 2)),
    "HalfCauchy": ("HalfCauchy(2)", stats.halfcauchy(scale=2)),
    "HalfNormal": ("HalfNormal(2)", stats.halfnorm(scale=2)),
    "InverseGamma": ("InverseGamma(3, 2)", stats.invgamma(3, scale=2)),
    "Kumaraswamy": ("Kumaraswamy(1, 3)", stats.beta(1, 3)),  # which is this one for a = 1
    "Laplace": ("Laplace(1, 2)", stats.laplace(1, 2)),
    "LogNormal": ("LogNormal(1, 0.5)", stats.lognorm(0.5, scale=math.e)),
    "Normal": ("Normal(1, 2)", stats.norm(1, 2)),
    "Pareto": ("Pareto(2, 3)", stats.pareto(3, scale=2)),
    "StudentT": ("StudentT(3, 1, 2)", stats.t(3, 1, 2)),
    "Uniform": ("Uniform(-1, 3)", stats.uniform(-1, 4)),
    "Weibull": ("Weibull(2, 1.5)", stats.weibull_min(1.5, scale=2)),
}


@pytest.mark.parametrize("name", [name for name in PRIORS if name in BY_SCIPY])
def test_each_prior_of_a_number_has_the_density_of_scipys(name):
    text, of_scipy = BY_SCIPY[name]
    assert set(PRIORS) - set(BY_SCIPY) == {"Dirichlet", "LKJCholesky", "MultivariateNormal"}
    for setting in (text, prior_of(text, "a")):
        parameters = Parameters({"a": setting})
        theta = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
        value = parameters.values(theta)["a"].numpy()
        derivative = torch.autograd.functional.jacobian(lambda u, p=parameters: p.values(u)["a"].sum(), theta)
        wanted = of_scipy.logpdf(value) + np.log(np.abs(derivative[:, 0].numpy()))
        assert parameters.log_prior(theta).numpy() == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize(("dim", "eta"), [(2, 0.7), (3, 2.0), (5, 1.0)])
def test_draws_of_lkj_have_its_marginal_distributions(dim, eta):
    """(r + 1) / 2 ~ Beta(a, a) with a = eta + D / 2 - 1, of every correlation; a false alarm has 10 tests at 1e-6.

    Those of torch 2.13 do not.
    """
    parameters = Parameters({"L": {"shape": [dim, dim], "prior": f"LKJCholesky({dim}, {eta})"}})
    (one,) = parameters.all
    torch.manual_seed(1)
    factors = one.prior.sample((20_000,))
    correlations = factors @ factors.mT
    a = eta + dim / 2 - 1
    for i, j in zip(*np.tril_indices(dim, -1), strict=True):
        p = stats.kstest(correlations[:, i, j].numpy(), stats.beta(a, a, loc=-1, scale=2).cdf).pvalue
        assert p > 1e-6, (i, j, p)


def test_a_transform_and_its_inverse_may_refer_to_each_other():
    """The logistic distribution, and the transform's own inverse, made before."""
    logit = td.SigmoidTransform().inv
    assert logit.inv.inv is logit
    prior = td.TransformedDistribution(td.Uniform(0.0, 1.0), [logit, td.AffineTransform(1.0, 2.0)])
    theta = torch.tensor([[0.3], [-4.0]], dtype=torch.float64)
    found = Parameters({"a": prior}).log_prior(theta)
    assert found.tolist() == pytest.approx(stats.logistic.logpdf([0.3, -4.0], 1, 2), abs=1e-6)


def test_priors_that_have_no_density_on_the_line():
    with pytest.raises(Refusal, match=r"VonMises is a density on a circle.*interval\(-3.14159, 3.14159\)"):
        Parameters({"a": td.VonMises(0.0, 2.0)})
    circle = Parameters({"a": {"prior": td.VonMises(0.0, 2.0), "constraint": "interval(-3.14159, 3.14159)"}})
    u = torch.linspace(-30, 30, 100_001, dtype=torch.float64)
    assert float(torch.trapezoid(circle.log_prior(u[:, None]).exp(), u)) == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(Refusal, match=r"give one within the prior's values, such as interval\(a, b\)"):
        Parameters({"a": {"prior": "HalfNormal(1)", "constraint": "less_than(0.5)"}})
    with pytest.raises(Refusal, match=r"GeneralizedPareto.log_prob fails with numbers of float64"):
        Parameters({"a": td.GeneralizedPareto(0.5, 1.0, 2.0)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("HalfNorml(1.0)", r"no distribution 'HalfNorml'. Did you mean 'HalfNormal'\?"),
        ("Poisson(3.0)", "is not a continuous distribution that a text can name"),
        ("__import__('os').system('true')", "is not a distribution"),
        ("Normal(open('x'), 1)", r"'open\('x'\)' is not a number"),
        ("Normal(0, sigma)", "'sigma' is not a number"),
        ("Normal(0, 1 + 1)", r"'1 \+ 1' is not a number"),
        ("Normal(0, True)", "'True' is not a number"),
        ("Normal(*[0, 1])", "is not a number"),
        ("Normal(**{'loc': 0})", "arguments are numbers"),
        ("Normal(0", "put the whole in quotes"),
        ("HalfNormal(1, 2)", "too many positional arguments"),
        ("Normal", "is not a distribution; write one such as"),
        ("Normal(0, -1)", "scale must be positive, not -1; see"),
        ("Normal([0, 1], [2, -3])", "scale must be positive, not -3; see"),
        ("Uniform(2, 1)", "low must be below high"),
        ("Uniform(1, 1)", "low must be below high"),
        ("Beta(-1, 1)", "concentration1 must be positive, not -1"),
        ("Beta(1, 0)", "concentration0 must be positive, not 0"),
        ("Pareto(1, -1)", "alpha must be positive, not -1"),
        ("Dirichlet([1, -2])", "concentration must be positive, not -2"),
        ("Dirichlet(1)", "concentration must be a list"),
        ("LKJCholesky(2.5, 1)", "dim must be a whole number, at least 2"),
        ("LKJCholesky(3, -1)", "concentration must be positive, not -1"),
        ("Normal([0, 1], [1, 2, 3])", "its arguments have sizes that do not fit together"),
        ("Normal(1e999, 1)", "a number is too large"),
        (
            "MultivariateNormal([0, 0], [[1, 2], [2, 1]])",
            "covariance_matrix must be symmetric and positive definite; see",
        ),
        ("MultivariateNormal([0, 0], [1, 1])", "covariance_matrix must be a matrix"),
        ("MultivariateNormal([0, 0], [[1, 0], [1]])", "the lists in covariance_matrix must have one length"),
        ("Normal(0)", "missing a required argument: 'scale'"),
        ("Normal(0, 1, 2, 3, 4)", "too many positional arguments"),
        ("HalfNormal(" * 2000 + ")" * 2000, "is not a distribution|is not a number"),
    ],
)
def test_texts_that_are_no_prior_are_refused_in_one_line(text, message):
    with pytest.raises(Refusal, match=message) as caught:
        Parameters({"s": text})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"shape": 2, "prior": "Normal([0, 0, 0], 1)"}, r"draw of the prior has shape \[3\].*shape = \[2\]"),
        ({"shape": 4, "prior": "Dirichlet([1, 1, 1])"}, r"draw of the prior has shape \[3\]"),
        (
            {"prior": "HalfNormal(1)", "constraint": "real"},
            "the prior's values are positive, and the constraint",
        ),
        ({"prior": "Beta(1, 1)", "constraint": "positive"}, "the prior's values are between 0 and 1"),
        (
            {"shape": 3, "prior": "Normal(0, 1)", "constraint": "up"},
            "up is not a constraint; there are: real",
        ),
        ({"shape": 1, "constraint": "simplex"}, "cannot be a simplex"),
        ({"shape": 1, "constraint": "interval(2, 1)"}, "first bound must be below the second"),
        ({"shape": 1, "constraint": "interval(2)"}, "must have 2 bounds"),
        ({"shape": 1, "constraint": 3}, "is not a constraint"),
        (
            {"shape": 1, "constraint": constraints.positive_integer},
            "there is no transform|is not a constraint",
        ),
        ({"shape": 0}, "is not a size"),
        ({"shpe": 1}, "has no 'shpe'. Did you mean 'shape'"),
        ({"prior": 3.0}, "is not a distribution; give one of torch.distributions"),
        ({"prior": td.Poisson(2.0)}, "is of whole numbers, and parameters are continuous"),
        ({"constraint": "positive"}, "needs a shape or a prior"),
        ({"shape": 1, "prior": "Normal(0", "1)": None}, "put the whole in quotes"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_one_line(setting, message):
    with pytest.raises(Refusal, match=message) as caught:
        Parameters({"s": setting})
    assert "\n" not in str(caught.value)
    assert "parameters.s" in str(caught.value)


@pytest.mark.parametrize("name", ["chain", "draw", "a b", "1x"])
def test_names_that_traces_cannot_have_are_refused(name):
    with pytest.raises(Refusal, match=r"choose another name|is not a name"):
        Parameters({name: 1})


# --- Start values -----------------------------------------------------------------------------------------


def model(start=None, **parameters):
    return FunctionModel(lambda theta, batch: -batch.x, start, parameters=parameters)


def test_chains_start_at_draws_from_the_priors():
    found = model(s="HalfNormal(2.0)", mu="Normal(3, 1)", free=1)
    theta = found.init(400, Draws(Streams(7, 400), 0))
    values = found.parameters.values(theta)
    assert stats.kstest(values["s"], stats.halfnorm(scale=2).cdf).pvalue > 1e-5
    assert stats.kstest(values["mu"], stats.norm(3).cdf).pvalue > 1e-5
    assert not values["free"].any()  # it has no prior
    assert torch.equal(theta[:5], found.init(5, Draws(Streams(7, 5), 0)))
    assert not torch.equal(theta, found.init(400, Draws(Streams(8, 400), 0)))


def test_truncated_priors_are_drawn_within_their_constraints():
    found = model(
        t={"shape": 8, "prior": "Normal(0, 1)", "constraint": "positive"},
        o={"shape": 3, "prior": "Normal(0, 1)", "constraint": "ordered"},
    )
    values = found.parameters.values(found.init(200, Draws(Streams(7, 200), 0)))
    assert stats.kstest(values["t"].reshape(-1), stats.halfnorm.cdf).pvalue > 1e-5
    assert (values["o"].diff(dim=-1) > 0).all()


def test_given_starts_are_in_the_users_coordinates():
    found = model({"s": 2.0, "w": [0.2, 0.8]}, s="HalfNormal(1.0)", w="Dirichlet([1, 1])", free=2)
    values = found.parameters.values(found.init(3, Draws(Streams(0, 3), 0)))
    assert values["s"].tolist() == pytest.approx([2.0] * 3)
    assert values["w"][1].tolist() == pytest.approx([0.2, 0.8])
    by_chain = model({"s": [1.0, 2.0, 3.0]}, s="HalfNormal(1.0)")
    assert by_chain.init(3, Draws(Streams(0, 3), 0)).exp()[:, 0].tolist() == pytest.approx([1, 2, 3])
    with pytest.raises(UserError, match="start of s has 3 rows for 2 chains"):
        by_chain.init(2, Draws(Streams(0, 2), 0))
    for start, message in (
        ({"s": -1.0}, "start of s = -1 is not positive; choose another"),
        ({"s": 0.0}, "start of s = 0 is not positive|is on the edge"),
        ({"s": [1.0, 2.0], "t": 1}, "start.t is not a parameter; there are: s"),
        ({"s": "x"}, "does not fit its size"),
        ({"s": float("nan")}, "is not positive"),
    ):
        with pytest.raises(UserError, match=message):
            model(start, s="HalfNormal(1.0)")


# --- Runs -------------------------------------------------------------------------------------------------


def normal(theta, batch):
    return Normal(theta.mu, theta.sigma).log_prob(batch.x) + theta.w[0].log()


NORMAL = {"mu": Normal(0.0, 1.0), "sigma": "HalfNormal(1.0)", "w": "Dirichlet([1.0, 1.0, 1.0])"}


def run(**changed):
    settings = {
        "model": normal,
        "data": {"x": torch.arange(20.0, dtype=torch.float64) / 10},
        "kernel": mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
        "parameters": NORMAL,
        "step_size": 0.05,
        "steps": 40,
        "warmup": 20,
        "chains": 2,
    }
    return mhrun.sample(**(settings | changed))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_traces_have_variables_in_the_users_coordinates(tmp_path):
    trace = run(folder=tmp_path)
    posterior = trace["posterior"]
    assert list(posterior.data_vars) == ["mu", "sigma", "w"]
    assert posterior["w"].dims == ("chain", "draw", "w_dim_0")
    assert posterior["sigma"].shape == (2, 40)
    assert (posterior["sigma"] > 0).all()
    assert np.allclose(posterior["w"].sum("w_dim_0"), 1)
    assert trace["warmup_posterior"]["w"].shape == (2, 20, 3)
    assert np.array_equal(run(folder=tmp_path)["posterior"]["w"], posterior["w"])
    with pytest.raises(UserError, match="holds the trace of another call"):
        run(folder=tmp_path, parameters={**NORMAL, "sigma": "HalfNormal(2.0)"})
    assert run(thin=None).children.keys() == {"sample_stats", "warmup_sample_stats"}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_axes_have_names_and_labels_in_traces(tmp_path):
    """One axis with labels that two parameters share, one with numbers, one with a name alone."""
    settings = {
        "slopes": {"prior": Normal(0.0, 1.0), "dims": {"feature": ["age", "net income"]}},
        "shift": {
            "shape": [2, 3],
            "prior": Normal(0.0, 1.0),
            "dims": {"feature": ["age", "net income"], "year": None},
        },
        "level": {"shape": 2, "dims": {"temperature": [10, 20.5]}},
        "one": {"prior": Normal(0.0, 1.0), "dims": {"only": ["here"]}},
        "plain": "Dirichlet([1.0, 1.0])",
    }

    def log_lik(theta, batch):
        assert theta.one.shape == (1,)
        return Normal(theta.slopes.sum() + theta.shift.sum() + theta.level.square().sum(), 1.0).log_prob(
            batch.x
        )

    trace = run(model=log_lik, parameters=settings, folder=tmp_path, start={"level": [1.0, 2.0]})
    for posterior in (trace["posterior"], trace["warmup_posterior"]):
        assert posterior["slopes"].dims == ("chain", "draw", "feature")
        assert posterior["shift"].dims == ("chain", "draw", "feature", "year")
        assert list(posterior["feature"].values) == ["age", "net income"]
        assert list(posterior["year"].values) == [0, 1, 2]
        assert list(posterior["temperature"].values) == [10.0, 20.5]
        assert posterior["plain"].dims == ("chain", "draw", "plain_dim_0")
    both = trace["posterior"]["slopes"] * trace["posterior"]["shift"].sel(feature="age", year=1)
    assert both.shape[:2] == (2, 40)
    names = Parameters(settings).names
    assert list(names[:3]) == ["slopes[age]", "slopes[net income]", "shift[age,0]"]
    assert list(names[8:]) == ["level[10]", "level[20.5]", "one[here]", "plain[0]", "plain[1]"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"a": {"shape": 2, "dims": ["f", "g"]}}, r"a.dims has 2 names, and the parameter's shape is \[2\]"),
        ({"a": {"shape": 2, "dims": {"f": ["x"]}}}, "a.dims.f has 1 labels for 2 numbers"),
        ({"a": {"shape": 1, "dims": "f"}}, r"the parameter's shape is \[\]"),
        ({"a": {"shape": 2, "dims": "chain"}}, "traces already have a dimension 'chain'"),
        ({"a": {"shape": 2, "dims": "no name"}}, "'no name' is not a name"),
        ({"a": {"shape": 2, "dims": 3}}, "must name the axes"),
        ({"a": {"shape": 2, "dims": {"f": "xy"}}}, "must be a list of labels"),
        ({"a": {"shape": 2, "dims": {"f": [True, False]}}}, "must be names or numbers; quote words"),
        ({"a": {"shape": 2, "dims": {"f": ["x", "x"]}}}, "has a label twice"),
        ({"a": {"shape": [2, 2], "dims": ["f", "f"]}}, "has a name twice"),
        (
            {"a": {"shape": 2, "dims": "f"}, "b": {"shape": 3, "dims": "f"}},
            "'f' has other labels or another size",
        ),
        ({"a": {"shape": 2, "dims": "b"}, "b": 1}, "'b' is a parameter and an axis"),
        ({"a": {"shape": 2, "dim": "f"}}, "has no 'dim'. Did you mean 'dims'"),
    ],
)
def test_axes_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(Refusal, match=message):
        Parameters(settings)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_interrupted_run_goes_on_in_the_same_coordinates(tmp_path, monkeypatch):
    from mhrun.engine.call import sample as module
    from mhrun.errors import Interrupted

    whole = run()["posterior"]
    begun = module.run_method
    calls = []

    def stopping(method, folder, settings, watcher, stop, attributes):
        return begun(
            method, folder, settings, watcher, lambda: len(calls) < 2 and not calls.append(1), attributes
        )

    monkeypatch.setattr(module, "run_method", stopping)
    for _ in range(2):
        with pytest.raises(Interrupted):
            run(folder=tmp_path)
    after = run(folder=tmp_path)["posterior"]
    for name in ("mu", "sigma", "w"):
        assert np.array_equal(after[name], whole[name])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": lambda theta, batch: normal(theta, batch).sum()}, "do not sum or average over the data"),
        (
            {"model": lambda theta, batch: normal(theta, batch) + 0 * normal(theta, batch)[:, None]},
            r"makes a matrix: give such a field as \(n,\)",
        ),
        (
            {"model": lambda theta, batch: batch.x @ theta.w},
            r"log_lik failed: .*it had theta \(4,\), x \(20,\)",
        ),
        ({"model": lambda theta, batch: batch.x * theta.tau}, "there is no 'tau' here, but mu, sigma, w"),
        ({"model": lambda theta, batch: (batch.x * 0 - 1).sqrt() * theta.mu}, "log-likelihood is not finite"),
        ({"parameters": {"mu": 1}, "start": {"mu": [1, 2, 3]}}, "start of mu has 3 rows for 2 chains"),
        ({"parameters": [1, 2]}, "must be names with sizes"),
        ({"parameters": {}}, "at least one parameter"),
        ({"parameters": None}, "needs start=.*or parameters= with priors"),
        ({"parameters": None, "start": {"mu": 1}}, "requires parameters="),
        (
            {"data": {"x": torch.tensor([1.0, float("nan")])}},
            r"field x has 1 NaN \(in row 1, counted from 0\)",
        ),
        ({"start": {"sigma": -1.0}}, "start of sigma = -1 is not positive"),
    ],
)
def test_bad_models_are_refused_in_one_line(changed, message):
    with pytest.raises(UserError, match=message) as caught:
        run(**changed)
    assert "\n" not in str(caught.value)


def test_a_start_that_is_no_number_is_refused():
    with pytest.raises(
        Refusal, match=r"start = {'mu': 1} must be numbers.*parameters={\.\.\.}, and functions by name"
    ):
        mhrun.FunctionModel(lambda theta, batch: batch, {"mu": 1})


@pytest.mark.parametrize("kind", [Logistic, RobustRegression, PoissonRegression])
def test_regressions_name_their_coefficients(kind):
    assert kind(2).names == ("theta[0]", "theta[1]")
    assert kind(2, names=["intercept", "age"]).names == ("intercept", "age")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["age"], "names has 1 for 2 parameters"),
        ("ab", "names has 1 for 2 parameters"),
        (["age", " "], "a name is a text that is not empty"),
        (["age", 3], "names has 3"),
        (["age", "age"], "'age' twice"),
    ],
)
def test_names_that_do_not_fit_are_refused(names, message):
    with pytest.raises(Refusal, match=re.escape(message)):
        Logistic(2, names=names)


@pytest.mark.slow
def test_coordinates_that_nothing_changes_are_not_judged():
    """L[0, 0] of a Cholesky factor of correlations is 1, and what is above the diagonal 0: nobody's R-hat."""
    parameters = Parameters(
        {"m": 2, "L": {"shape": [3, 3], "prior": "LKJCholesky(3, 2.0)"}, "s": "Gamma(2, 1)"}
    )
    constant = [parameters.names[place] for place in parameters.constant]
    assert constant == ["L[0,0]", "L[0,1]", "L[0,2]", "L[1,2]"]
    assert Parameters({"m": 2}).constant == ()
    # Sizes at which a coordinate is the same in two points that are not apart everywhere.
    for size in (46, 91, 136):
        assert Parameters({"a": {"shape": size, "prior": "Uniform(0, 1)"}}).constant == ()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mhrun.sample(
            lambda theta, x: torch.distributions.MultivariateNormal(theta.m, scale_tril=theta.L).log_prob(x),
            np.random.default_rng(0).normal(size=(50, 3))[:, :2],
            parameters={"m": 2, "L": {"shape": [2, 2], "prior": "LKJCholesky(2, 2.0)"}},
            steps=1_000,
            progress=False,
        )
    assert not [one for one in found if "never moves" in str(one.message)]


def test_bounded_numbers_have_bounds_on_both_sides():
    parameters = {
        "p": "Beta(1, 1)",
        "u": {"shape": 2, "prior": "Uniform(-1, 2)"},
        "w": "Dirichlet([1.0, 1.0])",
        "scale": "HalfNormal(1)",
        "slope": "Normal(0, 1)",
    }
    model = FunctionModel(lambda theta, rows: rows["x"] * 0.0, parameters=parameters)
    assert bounded_names(model) == {"p", "u[0]", "u[1]", "w[0]", "w[1]"}
