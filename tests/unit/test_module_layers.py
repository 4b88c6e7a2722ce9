"""Fully connected networks are recognised by the graph of their forward pass, and others are not taken for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mhrun.models.module_copy import prepared
from mhrun.models.module_layers import FullyConnected, fully_connected


class Net(nn.Module):
    """Two layers, applied as `apply` has it."""

    def __init__(self, apply, *, reversed_order=False):
        super().__init__()
        if reversed_order:
            self.last, self.first = nn.Linear(5, 3), nn.Linear(12, 5)
        else:
            self.first, self.last = nn.Linear(12, 5), nn.Linear(5, 3)
        self.dropout = nn.Dropout(0.0)
        self.apply_to = apply

    def forward(self, x):
        """Return the outputs."""
        return self.apply_to(self, x)


JOINED = {
    "nn.Flatten": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(inplace=True)), nn.Identity(), nn.Linear(5, 3)
    ),
    "view by size": lambda: Net(
        lambda net, x: net.last(net.dropout(F.relu(net.first(x.view(x.size(0), -1)))))
    ),
    "reshape by shape": lambda: Net(
        lambda net, x: net.last(
            F.dropout(torch.relu(net.first(x.reshape(x.shape[0], -1))), 0.2, net.training)
        )
    ),
    "view by both": lambda: Net(lambda net, x: net.last(net.first(x.view(x.shape[0], 12)).relu())),
    "view by number": lambda: Net(lambda net, x: net.last(net.first(x.view(-1, 12)).relu())),
    "flatten": lambda: Net(lambda net, x: net.last(net.first(torch.flatten(x, 1)).relu())),
    "method": lambda: Net(lambda net, x: net.last(net.first(x.flatten(1)).relu_())),
}


@pytest.mark.parametrize("name", JOINED)
def test_networks_of_flattened_data(name):
    """However the dimensions of a datum are joined."""
    assert fully_connected(prepared(JOINED[name]())) == FullyConnected((12, 5, 3), ("relu",), flattens=True)


def test_networks_of_any_depth():
    """Of one layer too, which is a softmax regression."""
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)]
    assert fully_connected(prepared(nn.Sequential(*layers))) == FullyConnected(
        (4, 6, 6, 2), ("relu", "relu"), flattens=False
    )
    assert fully_connected(prepared(nn.Linear(4, 2))) == FullyConnected((4, 2), (), flattens=False)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("tanh", torch.tanh),
        ("tanh", F.tanh),
        ("tanh", lambda x: x.tanh()),
        ("sigmoid", torch.sigmoid),
        ("sigmoid", F.sigmoid),
        ("sigmoid", lambda x: x.sigmoid()),
    ],
)
def test_activations(name, activation):
    """However they are applied."""
    net = Net(lambda net, x: net.last(activation(net.first(x))))
    assert fully_connected(prepared(net)) == FullyConnected((12, 5, 3), (name,), flattens=False)
    both = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    assert fully_connected(prepared(both)).activations == ("relu", "tanh")
    both[1] = nn.Sigmoid()
    assert fully_connected(prepared(both)).activations == ("sigmoid", "tanh")


def _frozen():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    net[0].bias.requires_grad_(False)
    return net


def _hooked():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    net[0].register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    return net


def _tied():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def _parametrized():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.utils.parametrizations.weight_norm(net[0])
    return net


class Doubled(nn.Linear):
    """Twice a linear layer."""

    def forward(self, x):
        """Return the outputs."""
        return 2 * super().forward(x)


OTHERS = {
    "no bias": lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
    "another activation": lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)),
    "leaky": lambda: nn.Sequential(nn.Linear(4, 3), nn.LeakyReLU(), nn.Linear(3, 2)),
    "no activation": lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),
    "two activations": lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.ReLU(), nn.Linear(3, 2)),
    "activation at the end": lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)),
    "flattened late": lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)),
    "flattened in part": lambda: nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
    "frozen": _frozen,
    "hook": _hooked,
    "tied": _tied,
    "parametrized": _parametrized,
    "subclass": lambda: nn.Sequential(Doubled(4, 3), nn.ReLU(), nn.Linear(3, 2)),
    "scaled inputs": lambda: Net(lambda net, x: net.last(F.relu(net.first(x / 255)))),
    "scaled outputs": lambda: Net(lambda net, x: 2 * net.last(F.relu(net.first(x)))),
    "skips a layer": lambda: Net(lambda net, x: net.last(F.relu(net.first(x)))[:, :2]),
    "unused branch": lambda: Net(lambda net, x: (F.relu(net.first(x)), net.last(net.first(x)))[1]),
    "residual": lambda: Net(lambda net, x: (lambda h: net.last(h + F.relu(h)))(net.first(x))),
    "branch": lambda: Net(lambda net, x: net.last(F.relu(net.first(x))) if x.sum() > 0 else net.last(net.first(x))),
    "other order": lambda: Net(lambda net, x: net.last(F.relu(net.first(x))), reversed_order=True),
    "dropout in training": lambda: Net(lambda net, x: net.last(F.dropout(net.first(x), 0.5, training=True))),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not_taken_for_fully_connected(name):
    """Each differs from a fully connected network in one respect."""
    assert fully_connected(prepared(OTHERS[name]())) is None


def test_what_forward_keeps_is_that_of_its_calls():
    """Reading its graph leaves nothing in a module, such as a scale that the first call would set."""
    net = Net(
        lambda net, x: (vars(net).setdefault("first_size", x.shape[0]), net.last(F.relu(net.first(x))))[1]
    )
    copied = prepared(net)
    fully_connected(copied)
    assert "first_size" not in vars(copied.module)
