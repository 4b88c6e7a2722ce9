"""Classes as the outcome of a torch module: likelihoods, probabilities and where chains begin."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

import mhrun
from mhrun.errors import Refusal, UserError
from mhrun.models.module import ModuleModel
from mhrun.random import Draws, Streams
from mhrun.target import Target

DRAW = torch.Generator().manual_seed(4)
X = torch.randn(80, 3, generator=DRAW, dtype=torch.float64)
Y = (X[:, 0] + torch.randn(80, generator=DRAW, dtype=torch.float64) > 0).long()
WEIGHTS = torch.tensor([1.0, 4.0], dtype=torch.float64)
DYNAMICS = mhrun.Unadjusted(mhrun.SGHMC(friction=0.1), m=20)


def weighted(outputs, rows):
    log_p = torch.log_softmax(outputs, -1)
    return WEIGHTS.to(outputs)[rows["y"].long()] * log_p.gather(-1, rows["y"].long()[:, None])[:, 0]


def sampled(model, data=None, **settings):
    call = {"step_size": 1e-3, "steps": 60, "warmup": 20, "chains": 2, "seed": 0, "thin": 4} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mhrun.sample(model, data or {"x": X, "y": Y}, DYNAMICS, **call)


@pytest.mark.parametrize("flat", [False, True], ids=["(m, 1)", "(m,)"])
def test_a_linear_module_with_a_bernoulli_likelihood_is_logistic_regression(rng, flat):
    module = nn.Sequential(nn.Linear(3, 1, bias=False), *([nn.Flatten(0)] if flat else []))
    model = ModuleModel(module, "bernoulli", prior_variance=2.0)
    theta = torch.from_numpy(rng.normal(0, 2, (4, 3)))
    rows = {"x": X[None], "y": Y[None]}
    z = theta.numpy() @ X.numpy().T
    expected = -np.logaddexp(0, np.where(Y == 1, -z, z))
    assert model.log_lik(theta, rows).numpy() == pytest.approx(expected)
    logistic = mhrun.Logistic(3, prior_variance=2.0)
    other = {"x": X[None], "y": 2 * Y[None] - 1}
    assert torch.allclose(model.log_lik(theta, rows), logistic.log_lik(theta, other))
    p = special.expit(z)
    assert model.predict(theta, rows).exp().numpy() == pytest.approx(np.stack([1 - p, p], -1))
    _, grad = model.log_lik_and_grad(theta, rows)
    residual = Y.numpy() - p
    assert grad.numpy() == pytest.approx(residual @ X.numpy() / len(X))


def test_a_bernoulli_likelihood_has_the_monitors_and_predictions_of_classes():
    test = {"x": X[:30], "y": Y[:30]}
    model = ModuleModel(nn.Linear(3, 1), "bernoulli", prior_variance=1.0)
    trace = sampled(model, monitor=mhrun.Predictive(test, every=20, collect=4))
    theta = trace["posterior"]["theta"].to_numpy()  # (C, S, 4)
    p = special.expit(theta[..., :3] @ X[:30].numpy().T + theta[..., 3:]).mean(1)  # (C, 30)
    nll = -np.where(Y[:30] == 1, np.log(p), np.log1p(-p)).mean(1)
    assert trace["monitor"]["nll_of_ensemble"][:, -1].to_numpy() == pytest.approx(nll, rel=1e-5)
    found = mhrun.predict(trace, model, X[:30])
    assert found.dims == ("datum", "class")
    assert found[:, 1].to_numpy() == pytest.approx(p.mean(0), rel=1e-5)


@pytest.mark.parametrize("log_probs", ["softmax", lambda outputs: torch.log_softmax(outputs, -1)])
def test_a_likelihood_of_classes_of_your_own_says_their_probabilities(log_probs):
    model = ModuleModel(nn.Linear(3, 2), weighted, 1.0, log_probs=log_probs)
    trace = sampled(model, monitor=mhrun.Predictive({"x": X, "y": Y}, every=20, collect=4))
    theta = trace["posterior"]["theta"].to_numpy()
    logits = np.einsum("csjk,nk->csnj", theta[..., :6].reshape(2, -1, 2, 3), X.numpy()) + theta[..., None, 6:]
    p = special.softmax(logits, -1).mean(1)  # (C, n, 2)
    nll = -np.log(np.take_along_axis(p, Y.numpy()[None, :, None], -1))[..., 0].mean(1)
    assert trace["monitor"]["nll_of_ensemble"][:, -1].to_numpy() == pytest.approx(nll, rel=1e-5)
    assert mhrun.predict(trace, model, X).to_numpy() == pytest.approx(p.mean(0), rel=1e-5)


def test_without_them_it_predicts_no_classes():
    model = ModuleModel(nn.Linear(3, 2), weighted)
    monitor = mhrun.Predictive({"x": X, "y": Y}, every=20)
    with pytest.raises(Refusal, match="classes, which ModuleModel does not without log_probs; held_out"):
        sampled(model, monitor=monitor)
    with pytest.raises(UserError, match="predicts no classes: give it log_probs, such as softmax"):
        model.predict(torch.zeros(1, 8), {"x": X[None].float()})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"log_probs": "sofmax"}, "no log_probs 'sofmax'.*Did you mean 'softmax'"),
        ({"likelihood": "bernouli"}, "no likelihood 'bernouli'.*Did you mean 'bernoulli'"),
        ({"likelihood": "bernoulli", "log_probs": "sigmoid"}, "bernoulli has its own class probabilities"),
        ({"log_probs": 3}, "log_probs = 3 must be softmax, sigmoid or a function"),
        ({"likelihood": None}, "likelihood = None must be categorical, bernoulli or a function"),
        ({"evaluation": None}, "there is no evaluation 'None'; choose auto"),
        ({"start": "modul"}, "no start 'modul'; choose fresh, module. Did you mean 'module'"),
    ],
)
def test_settings_that_are_wrong_are_named(settings, message):
    with pytest.raises(Refusal, match=message):
        ModuleModel(nn.Linear(3, 1), **settings)


def test_outputs_of_another_number_or_shape_are_named():
    with pytest.raises(Refusal, match="2 outputs, and bernoulli takes one; give likelihood = categorical"):
        sampled(ModuleModel(nn.Linear(3, 2), "bernoulli"))
    with pytest.raises(Refusal, match="from 0 to 1; the data have -1"):
        sampled(ModuleModel(nn.Linear(3, 1), "bernoulli"), {"x": X, "y": 2 * Y - 1})
    wrong = ModuleModel(nn.Linear(3, 2), weighted, log_probs=lambda outputs: outputs[:, 0])
    with pytest.raises(UserError, match=r"log_probs must return .* a tensor \(80, K\)"):
        wrong.predict(torch.zeros(1, 8), {"x": X[None].float()})


@pytest.mark.parametrize(
    ("outputs", "log_probs", "message"),
    [
        (1, "softmax", "softmax takes an output for each class, and the module has one; give sigmoid"),
        (2, "sigmoid", "sigmoid takes one output, and the module has 2; give softmax"),
        (
            2,
            lambda outputs: torch.sigmoid(outputs),
            "must return log-probabilities, and those of a datum make 3.3 ",
        ),
    ],
)
def test_what_are_no_log_probabilities_is_refused(outputs, log_probs, message):
    model = ModuleModel(nn.Linear(3, outputs), weighted, log_probs=log_probs)
    with pytest.raises(UserError, match=message):
        model.predict(torch.zeros(1, model.dim), {"x": X[None].float()})


def test_functions_may_have_names_in_a_configuration(tmp_path, monkeypatch):
    (tmp_path / "outcome.py").write_text(
        "def log_lik(outputs, rows):\n    return -((outputs[:, 0] - rows['y']) ** 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"'outcome\.log_lik' is not in a trusted package"):
        ModuleModel(nn.Linear(3, 1), "outcome.log_lik")
    monkeypatch.setenv("MHRUN_TRUST", "outcome")
    model = ModuleModel(nn.Linear(3, 1, bias=False), "outcome.log_lik")
    rows = {"x": X[None], "y": Y[None].double()}
    theta = torch.ones(1, 3, dtype=torch.float64)
    assert torch.allclose(model.log_lik(theta, rows), -((X.sum(1) - Y) ** 2)[None])


@pytest.mark.parametrize(("last", "warns"), [([nn.Sigmoid()], 1), ([], 0)])
def test_a_sigmoid_before_the_likelihood_s_is_warned_of_once(last, warns):
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        module = nn.Sequential(nn.Linear(3, 1), *last)
        call = {"step_size": 1e-3, "steps": 5, "warmup": 0, "chains": 2, "seed": 0}
        mhrun.sample(ModuleModel(module, "bernoulli"), {"x": X, "y": Y}, DYNAMICS, **call)
    assert (
        sum("their sigmoid; remove the module's own sigmoid." in str(one.message) for one in raised) == warns
    )


def test_chains_may_begin_at_the_module_s_own_weights():
    """Its weights decide the model then, and otherwise do not."""
    torch.manual_seed(7)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    draws = Draws(Streams(5, 3), 0)
    trained = ModuleModel(module, start="module").init(3, draws)
    assert torch.equal(trained, nn.utils.parameters_to_vector(module.parameters()).detach().expand(3, -1))
    fresh = ModuleModel(module).init(3, draws)
    assert (fresh[0] != fresh[1]).any()
    assert not torch.isclose(fresh, trained).all(1).any()
    trace = sampled(ModuleModel(module, start="module"), step_size=1e-12, steps=4, warmup=0, thin=1)
    first = trace["posterior"]["theta"][:, 0, : trained.shape[1]].to_numpy()
    assert first == pytest.approx(trained[:2].double().numpy(), abs=1e-4)


def test_a_target_of_such_a_model_is_evaluated_chain_by_chain_and_at_once_alike(rng):
    data = mhrun.Dataset.of({"x": X, "y": Y})
    theta = torch.from_numpy(rng.normal(size=(3, 4)))
    values = []
    for evaluation in ("bound", "vmapped"):
        model = ModuleModel(nn.Linear(3, 1), "bernoulli", 1.0, evaluation)
        values.append(Target(model, data).log_density(theta))
    assert torch.allclose(*values)
