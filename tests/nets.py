"""Small networks, and one in plain loops: its outputs, losses and gradient by the chain rule."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from mhrun.models.perceptron import Perceptron
from mhrun.random import derive_key

KEY = derive_key(4, "networks")
LAYERS = [5, 4, 6, 3]
C, M, N = 3, 7, 40


def matrices(theta, layers=LAYERS):
    """Cut a flat theta (D,) into W1 (h, k), b1 (h,), W2, ..."""
    parts, at = [], 0
    for k, h in pairwise(layers):
        weight = theta[at : at + h * k].reshape(h, k)
        bias = theta[at + h * k : at + h * k + h]
        parts.append((weight, bias))
        at += h * k + h
    assert at == len(theta)
    return parts


def outputs_of(theta, x, layers=LAYERS):
    """What goes into each layer, and the outputs, for one datum."""
    values = [np.asarray(x, float)]
    for i, (weight, bias) in enumerate(matrices(theta, layers)):
        out = np.zeros(len(bias))
        for j in range(len(bias)):
            out[j] = bias[j] + sum(weight[j, k] * values[-1][k] for k in range(weight.shape[1]))
        values.append(np.maximum(out, 0) if i < len(layers) - 2 else out)
    return values


def categorical(z, y):
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    return z[y] - z.max() - math.log(np.exp(z - z.max()).sum()), np.eye(len(z))[y] - p


def clipped_binary(z, y):
    """The loss of the authors' code of Wu et al.: TensorFlow's clip_by_value lets no slope through outside."""
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    value, grad = 0.0, np.zeros(len(z))
    for k in range(len(z)):
        c = min(max(p[k], 1e-10), 0.9999999)
        value += math.log(c) if k == y else math.log(1 - c)
        if 1e-10 <= p[k] <= 0.9999999:
            d_p = 1 / c if k == y else -1 / (1 - c)
            for j in range(len(z)):
                grad[j] += d_p * p[k] * ((j == k) - p[j])
    return value, grad


LOSSES = {"categorical": categorical, "clipped_binary": clipped_binary}


def by_hand(theta, x, y, loss, layers=LAYERS):
    """Log-likelihood of one datum and its gradient (D,), by the chain rule from the last layer back."""
    values = outputs_of(theta, x, layers)
    value, back = loss(values[-1], y)
    pieces = []
    for i, (weight, _) in reversed(list(enumerate(matrices(theta, layers)))):
        pieces.append(np.concatenate([np.outer(back, values[i]).ravel(), back]))
        back = np.array([back @ weight[:, k] * (values[i][k] > 0) for k in range(weight.shape[1])])
    return value, np.concatenate(pieces[::-1])


def drawn(rng):
    """Parameters of three chains and a minibatch for each."""
    theta = torch.from_numpy(rng.normal(0, 1.0, (C, Perceptron(LAYERS).dim)))
    x = torch.from_numpy(rng.normal(0, 1.0, (C, M, LAYERS[0])))
    return theta, {"x": x, "y": torch.from_numpy(rng.integers(0, LAYERS[-1], (C, M)))}


def sequential(layers=LAYERS):
    parts = []
    for k, h in pairwise(layers):
        parts += [nn.Linear(k, h), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def conv():
    net = nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(32, 3),
    )
    net[2].running_mean += torch.tensor([0.3, -0.2])
    net[2].running_var *= 2.0
    return net
