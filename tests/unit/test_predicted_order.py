"""Predictions from traces whose dimensions somebody has put in another order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from torch.distributions import Normal

import mhrun

RNG = np.random.default_rng(9)
DATA = {"x": RNG.standard_normal((50, 2)), "y": RNG.standard_normal(50)}
WALK = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis())
CALL = {"steps": 50, "warmup": 0, "step_size": 0.2, "seed": 1, "progress": False}


@pytest.fixture(scope="module")
def named():
    parameters = {
        "a": "Normal(0, 5)",
        "w": {"dims": {"feature": ["u", "v"]}, "prior": "Normal(0, 5)"},
        "z": {"shape": 3, "prior": "Normal(0, 5)"},
    }

    def log_lik(theta, rows):
        return Normal(theta.a + rows.x @ theta.w + theta.z[2], 1.0).log_prob(rows.y)

    with pytest.warns(UserWarning, match="R-hat"):
        return mhrun.sample(log_lik, DATA, WALK, parameters=parameters, **CALL)


def of_named(theta, rows):
    return theta.a + rows.x @ theta.w + theta.z[0] - theta.z[2]


@pytest.mark.parametrize(
    "change",
    [
        lambda trace: trace.sel(feature=["v", "u"]),
        lambda trace: trace.isel(z_dim_0=[2, 0, 1]),
        lambda trace: xr.DataTree.from_dict(
            {"/": trace.dataset, "posterior": trace["posterior"].to_dataset().transpose(..., "chain")}
        ),
    ],
)
def test_another_order_of_dimensions_changes_no_prediction(named, change):
    expected = mhrun.predict(named, of_named, DATA)
    assert mhrun.predict(change(named), of_named, DATA).equals(expected)
    assert np.ptp(expected.to_numpy()) > 0.1


def test_labels_of_theta_are_put_back_in_order_too():
    def log_lik(theta, rows):
        return Normal(rows.x @ theta, 1.0).log_prob(rows.y)

    with pytest.warns(UserWarning, match="R-hat"):
        trace = mhrun.sample(log_lik, DATA, WALK, start=[0.0, 0.0], **CALL)

    def mean(theta, rows):
        return rows.x @ theta

    expected = mhrun.predict(trace, mean, DATA)
    assert mhrun.predict(trace.isel(parameter=[1, 0]), mean, DATA).equals(expected)


# Characters of labels that are kept: in the second case none.
@pytest.mark.parametrize("longest", [32_000, 10])
def test_labels_that_are_numbers_are_no_places(longest, monkeypatch):
    monkeypatch.setattr("mhrun.store.trace_file._LONGEST_ATTRIBUTE", longest)
    parameters = {"w": {"dims": {"site": [3, 1]}, "prior": "Normal(0, 5)"}}

    def mean(theta, rows):
        return rows.x @ theta.w

    with pytest.warns(UserWarning, match="R-hat"):
        trace = mhrun.sample(
            lambda theta, rows: Normal(rows.x @ theta.w, 1.0).log_prob(rows.y),
            DATA,
            WALK,
            parameters=parameters,
            **CALL,
        )
    expected = trace["posterior"]["w"].to_numpy().mean((0, 1)) @ DATA["x"].T
    np.testing.assert_allclose(mhrun.predict(trace, mean, DATA), expected)
    renamed = trace["posterior"].to_dataset().rename(site="place")
    other = xr.DataTree.from_dict({"/": trace.dataset, "posterior": renamed})
    np.testing.assert_allclose(mhrun.predict(other, mean, DATA), expected)
    if longest > 10:
        np.testing.assert_allclose(mhrun.predict(trace.sel(site=[1, 3]), mean, DATA), expected)


@pytest.mark.parametrize("name", ["chain", "draw"])
def test_a_trace_without_its_chains_or_draws_is_refused_in_a_line(named, name):
    with pytest.raises(mhrun.errors.UserError, match=rf"no dimension {name}; .*isel\({name}=\[0\]\)"):
        mhrun.predict(named.isel({name: 0}), of_named, DATA)
    kept = mhrun.predict(named.isel({name: [0]}), of_named, DATA)
    assert torch.from_numpy(kept.to_numpy()).isfinite().all()
