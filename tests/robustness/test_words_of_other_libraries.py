"""What calls say to the names and habits of other libraries."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.stats
import torch

import mhrun
from mhrun.errors import UserError

Y = np.linspace(-1.0, 1.0, 20)


def log_lik(theta, batch):
    return -0.5 * (batch.y - theta) ** 2


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("step", "sample has no argument 'step'. Did you mean 'steps'?"),
        ("draws", "sample has no argument 'draws'. It is called steps here."),
        ("target_accept", "sample has no argument 'target_accept'. It is called acceptance here."),
        ("m", 'It is a setting of a method: mhrun.method("mint", m=100).'),
        ("nothing_like_it", "sample has no argument 'nothing_like_it'."),
    ],
)
def test_keywords_that_sample_does_not_have(keyword, said):
    with pytest.raises(UserError) as caught:
        mhrun.sample(log_lik, {"y": Y}, start=[0.0], **{keyword: 2})
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize("name", ["predict", "log_score", "compare"])
def test_keywords_that_other_functions_do_not_have(name):
    with pytest.raises(UserError, match=f"{name} has no argument 'nothing_like_it'."):
        getattr(mhrun, name)(nothing_like_it=1)


def test_arguments_that_are_missing_have_pythons_own_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'data'"):
        mhrun.sample(log_lik)


def test_nuts_is_another_method():
    with pytest.raises(UserError, match="The default method, hmc, is Hamiltonian"):
        mhrun.sample(log_lik, {"y": Y}, "nuts", start=[0.0])


def test_a_prior_of_scipy_is_refused():
    with pytest.raises(UserError, match="of type rv_continuous_frozen, neither a size nor a prior"):
        mhrun.sample(log_lik, {"y": Y}, parameters={"a": scipy.stats.norm(0, 1)})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array(["a", "b"]), r"holds text \('a' in row 0, counted from 0\), which pandas.factorize turns"),
        (np.array([[1.0, 2.0], [3.0, "b"]], dtype=object), r"not numbers \('b' in row 1"),
        (np.array([1.0, None], dtype=object), r"holds None in row 1 \(counted from 0\)"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), r"holds datetime64\[D\] values"),
    ],
)
def test_data_that_are_no_numbers(values, said):
    with pytest.raises(UserError, match=said):
        mhrun.sample(log_lik, {"y": values}, start=[0.0])


def test_a_product_with_a_single_number_is_explained():
    def product(theta, batch):
        return -0.5 * (batch.y - batch.x @ theta.w) ** 2

    with pytest.raises(
        UserError, match=r'a parameter of several numbers has their count, such as \{"shape": 2'
    ):
        mhrun.sample(product, {"y": Y, "x": np.ones((20, 2))}, parameters={"w": "Normal(0, 3)"})


@pytest.mark.parametrize("standardised", [True, False])
def test_times_that_were_standardised_are_named(standardised):
    times = np.array([1.2, 0.4, 3.3, 2.0, 0.7, -5.1])
    times = (times - times.mean()) / times.std() if standardised else times

    def weibull(theta, batch):
        return theta.k.log() + (theta.k - 1) * batch.x[:, 0].log() - batch.x[:, 0] ** theta.k

    with pytest.raises(UserError) as caught:
        mhrun.sample(weibull, {"x": times[:, None]}, parameters={"k": "HalfNormal(1)"})
    assert ("x is standardised, so that it has negative values" in str(caught.value)) == standardised


def test_a_call_keeps_its_documentation():
    assert "Sample with any kernel" in mhrun.sample.__doc__
    assert torch.float64 is mhrun.sample.__wrapped__.__kwdefaults__["dtype"]


def test_warnings_are_at_the_line_of_the_call():
    data = {"y": Y}
    calls = {
        "sample": lambda: mhrun.sample(
            log_lik, data, "mcmc", start=[0.0], steps=300, warmup=100, progress=False
        ),
        "compare": lambda: mhrun.compare(trace.isel(chain=[0])),
        "log_score": lambda: mhrun.log_score(trace, log_lik, {"y": np.array([60.0])}),
        "predict": lambda: mhrun.predict(stopped, lambda theta, batch: theta[0] + batch.y, data),
    }
    lines = {}
    for name, call in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = call()
        lines[name] = {one.filename for one in caught}
        if name == "sample":
            trace, stopped = found, found.copy(deep=True)
            stopped["sample_stats"]["diverging"][0, -1] = True
            stopped["sample_stats"]["valid"][0, -1] = False
    assert lines == {name: {__file__} for name in calls}
