"""What a torch module needs of its data, and which of its parameters are sampled."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import mhrun
from mhrun.errors import Refusal, UserError
from mhrun.models.module import ModuleModel

X = torch.randn(60, 5, generator=torch.Generator().manual_seed(3))
Y = (X[:, 0] > 0).long()


def classifier(outputs=2):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs))


def sampled(module, data, **settings):
    kernel = mhrun.Unadjusted(mhrun.SGHMC(friction=0.1), m=20)
    call = {"step_size": 1e-3, "steps": 12, "warmup": 0, "chains": 2, "seed": 0} | settings
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        trace = mhrun.sample(module, data, kernel, **call)
    return trace, [str(one.message) for one in raised]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (0.97 * Y, "whole numbers from 0 to 1; the data have 0.97 in row .* For another outcome"),
        (Y + 1, r"whole numbers from 0 to 1; the data have 2 .*Classes are counted from 0: give y - 1\."),
        (Y[:, None], r"y with one number per datum; the data have rows of shape \(1,\); give y\[:, 0\]"),
        (Y - 1, "whole numbers from 0 to 1; the data have -1"),
        (nn.functional.one_hot(Y), r"y with one number per datum.*one-hot, give y.argmax\(1\)"),
    ],
)
def test_labels_that_are_no_classes_are_refused(y, message):
    with pytest.raises(Refusal, match=message):
        sampled(classifier(), {"x": X, "y": y})


def test_what_is_no_classifier_is_referred_to_a_likelihood():
    with pytest.raises(
        Refusal, match=r"one output, .* bernoulli for classes 0 and 1.* give likelihood= a function"
    ):
        sampled(classifier(outputs=1), {"x": X, "y": X[:, 0]})
    with pytest.raises(Refusal, match="a classifier needs the classes y; the data have x"):
        sampled(classifier(), {"x": X})
    with pytest.raises(UserError, match="data of 2 arrays need names"):
        sampled(classifier(), (X, Y))
    pairs = torch.utils.data.TensorDataset(X, Y)
    for data, name in ((pairs, "TensorDataset"), (torch.utils.data.DataLoader(pairs), "DataLoader")):
        with pytest.raises(UserError, match=f"a {name} has no names for its tensors; give the tensors"):
            sampled(classifier(), data)


@pytest.mark.parametrize(("last", "warns"), [(nn.Softmax(1), True), (nn.LogSoftmax(1), False)])
def test_outputs_that_are_probabilities_are_warned_of(last, warns):
    _, lines = sampled(nn.Sequential(nn.Linear(5, 2), last), {"x": X, "y": Y})
    assert any("outputs are probabilities" in line for line in lines) == warns


def test_a_parameter_without_gradient_is_a_constant():
    module = classifier()
    module[0].requires_grad_(False)
    module[1].weight.requires_grad_(False)
    model = ModuleModel(module)
    assert [block.name for block in model.blocks] == ["1.bias", "3.weight", "3.bias"]
    assert "1.weight" not in model.buffer_names
    point = torch.randn(model.dim, generator=torch.Generator().manual_seed(2))
    at = model.module_at(point)
    assert torch.equal(at[0].weight, module[0].weight)
    plain = classifier().eval()
    with torch.no_grad():
        plain[1].bias.copy_(point[:8])
        plain[3].weight.copy_(point[8:24].reshape(2, 8))
        plain[3].bias.copy_(point[24:])
        wanted = plain(X).log_softmax(-1).gather(1, Y[:, None])[:, 0]
    rows = {"x": X[None], "y": Y[None]}
    for evaluation in ("bound", "vmapped"):
        model.select_evaluation(evaluation)
        torch.testing.assert_close(model.log_lik(point[None], rows)[0], wanted)
    trace, _ = sampled(module, {"x": X, "y": Y})
    assert trace["posterior"].sizes["draw"] == 12
    with pytest.raises(Refusal, match="are constants"):
        ModuleModel(module.requires_grad_(False))


def test_constants_of_modules_that_a_function_makes_are_those_of_the_first():
    def make():
        module = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
        module[0].requires_grad_(False)
        return module

    model = ModuleModel(make)
    assert model.dim == 10
    trace, _ = sampled(model, {"x": X, "y": Y})
    assert np.isfinite(trace["posterior"]["theta"].to_numpy()).all()


def test_frozen_recurrent_and_attention_layers_are_constants():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.LSTM(5, 4, batch_first=True)
            self.attention = nn.MultiheadAttention(4, 1, batch_first=True)
            self.last = nn.Linear(4, 2)
            self.recurrent.requires_grad_(False)
            self.attention.in_proj_weight.requires_grad_(False)

        def forward(self, x):
            hidden, _ = self.recurrent(x[:, None])
            return self.last(self.attention(hidden, hidden, hidden)[0][:, -1])

    net = Net()
    model = ModuleModel(net)
    assert all(not block.name.startswith("recurrent") for block in model.blocks)
    start = torch.cat([p.detach().reshape(-1) for p in net.parameters() if p.requires_grad])
    rows = {"x": X[None], "y": Y[None]}
    found, grad = model.log_lik_and_grad(start[None], rows)
    assert grad.shape == (1, model.dim)
    wanted = net(X).log_softmax(-1).gather(1, Y[:, None])[:, 0]
    torch.testing.assert_close(found[0], wanted.detach(), rtol=1e-4, atol=1e-5)


def test_data_of_other_classes_need_no_classes():
    monitor = mhrun.Uncertainty({"x": X[:9], "y": Y[:9]}, {"x": X + 5}, every=4, collect=4)
    trace, _ = sampled(classifier(), {"x": X, "y": Y}, monitor=monitor)
    assert "auroc" in trace["monitor"]


def test_too_few_draws_and_low_temperatures_are_reported():
    _, lines = sampled(classifier(), {"x": X, "y": Y}, steps=30, thin=10, temperature=0.25)
    assert any(
        "R-hat and ESS are unknown: they need 10 valid draws of each chain, and one has 3" in line
        for line in lines
    )
    assert any("T = 0.25, narrower than the posterior" in line for line in lines)


def trained():
    module = classifier()
    for _ in range(3):
        module(X)  # changes BatchNorm's running statistics
    return module


@pytest.mark.parametrize("form", ["module", "state", "one for each chain"])
def test_chains_begin_at_a_trained_module(form):
    module, other = trained(), trained()
    with torch.no_grad():
        other[0].weight.mul_(2.0)
    start = {
        "module": module,
        "state": module.state_dict(),
        "one for each chain": [module, other.state_dict()],
    }
    trace, _ = sampled(module, {"x": X, "y": Y}, start=start[form], step_size=1e-30, steps=4)
    theta = torch.as_tensor(trace["posterior"]["theta"].values)[:, 0]
    seconds = other if form == "one for each chain" else module
    for row, wanted in zip(theta, (module, seconds), strict=True):
        points = torch.cat([p.detach().reshape(-1) for p in wanted.parameters()])
        torch.testing.assert_close(row[: len(points)].double(), points.double())
    model = ModuleModel(module)
    point = theta[0, : model.dim]
    assert torch.equal(model.theta_of(model.module_at(point)), point.double())


def test_a_start_that_does_not_fit_the_module_is_refused():
    module = trained()
    state = module.state_dict()
    for start, message in (
        ({k: v for k, v in state.items() if k != "3.bias"}, "the start lacks 3.bias; give a state dict"),
        (state | {"4.bias": torch.zeros(2)}, "the start has an unknown 4.bias"),
        (state | {"3.bias": torch.zeros(3)}, r"3.bias of the start has the shape \(3,\), not \(2,\)"),
        (
            classifier(),
            "1.running_mean of the start is not that of the module; load the state into the module",
        ),
        ([0.0] * 3, "start must be a list of points, each of 82 numbers"),
        ("trained.pt", "start = 'trained.pt' must be numbers"),
    ):
        with pytest.raises(UserError, match=message):
            sampled(module, {"x": X, "y": Y}, start=start)
