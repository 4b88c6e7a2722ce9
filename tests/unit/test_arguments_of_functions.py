"""Functions of a model with other arguments than those they are called with."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

import mhrun
from mhrun.errors import UserError
from mhrun.models.function_checks import check_arguments

DATA = {"x": np.ones((20, 1)), "y": np.ones(20)}


def by_field(theta, x, y):
    return -((y - theta[0] * x) ** 2)


def by_batch(theta, batch):
    return -((batch.y - theta[0] * batch.x[:, 0]) ** 2)


def of_theta(theta):
    return -(theta**2).sum()


def of_three(theta, batch, scale):
    return by_batch(theta, batch) / scale


@pytest.mark.parametrize(
    ("model", "data", "settings", "message"),
    [
        (
            by_field,
            DATA,
            {},
            r"log_lik \(by_field\) \(test_arguments_of_functions.py, line \d+\) has the arguments \(theta, x, y\), and "
            r"is called with \(theta, batch\): the data are one argument, batch.x and other fields\.$",
        ),
        (by_field, DATA["x"], {}, r"called with \(theta, batch\): the data are one argument, a tensor\.$"),
        (of_theta, DATA, {}, r"log_lik \(of_theta\) .* has the arguments \(theta\)"),
        (by_batch, DATA, {"log_prior": by_batch}, r"log_prior \(by_batch\) .* called with \(theta\)\.$"),
        (by_batch, None, {}, r"the model \(by_batch\) .*, and is called with \(theta\): a log density"),
    ],
)
def test_other_arguments_are_named_before_anything_is_called(model, data, settings, message):
    with pytest.raises(UserError, match=message):
        mhrun.sample(model, data, start=[0.0], **settings)


def test_simulate_and_mean_take_theta_and_the_data_as_well():
    with pytest.raises(UserError, match=r"simulate \(of_theta\) .* is called with \(theta, batch\)"):
        mhrun.FunctionModel(by_batch, [0.0], simulate=of_theta)
    with pytest.raises(UserError, match=r"mean \(of_theta\) .* is called with \(theta, batch\)"):
        mhrun.FunctionModel(by_batch, [0.0], mean=of_theta)


class Likelihood:
    def method(self, theta, batch):
        return by_batch(theta, batch)

    __call__ = method


@pytest.mark.parametrize(
    "function",
    [
        by_batch,
        functools.partial(of_three, scale=2.0),
        lambda theta, batch, scale=1.0: of_three(theta, batch, scale),
        lambda *arguments: by_batch(*arguments),
        Likelihood().method,
        Likelihood(),
        torch.func.vmap(by_batch),
        max,  # Python does not know its parameters
    ],
)
def test_whatever_can_be_called_with_them_passes(function):
    check_arguments("log_lik", function, "theta", "batch")


def test_a_setting_without_a_default_is_named():
    with pytest.raises(UserError, match=r"has the arguments \(theta, batch, scale\)"):
        mhrun.FunctionModel(of_three, [0.0])
