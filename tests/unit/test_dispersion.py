"""Pearson's statistic of counts, from all rows or from evenly spaced ones."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import mhrun
from mhrun.cli.init.hints import hints_of
from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.models.dispersion import dispersion_warnings
from mhrun.models.poisson_regression import PoissonRegression


def test_the_statistic_is_divided_by_its_degrees_of_freedom():
    """Of 12 counts and 4 parameters it is the sum of squares over the mean by 8."""
    y, mean = torch.tensor([0.0, 40.0] * 6), torch.full((12,), 20.0)
    (line,) = dispersion_warnings(y, mean, 4)
    assert re.search(r"variance is about (\S+) times", line)[1] == f"{12 * 20 / 8:.2g}"
    assert not list(dispersion_warnings(y[:4], mean[:4], 4))


@pytest.mark.parametrize(("mean", "lines"), [(0.1, 0), (20.0, 1)])
def test_the_statistic_varies_more_for_small_means(mean, lines):
    """It is 2.1 for both; by chance it has an sd of 0.35 about 1 for a mean of 0.1, and of 0.14 for one of 20."""
    means = torch.full((100,), mean)
    assert len(list(dispersion_warnings(means + (2.1 * means).sqrt(), means, 1))) == lines


@pytest.mark.parametrize(("rows", "lines"), [(25, 0), (100, 1)])
def test_the_statistic_varies_more_with_fewer_rows(rows, lines):
    """It is about 2.3; by chance it has an sd of 0.29 about 1 for 25 rows, and of 0.14 for 100."""
    means = torch.full((rows,), 20.0)
    assert len(list(dispersion_warnings(means + (2.2 * means).sqrt(), means, 1))) == lines


@pytest.mark.parametrize("places", [slice(None, 100), slice(100, None)])
def test_rows_of_a_large_table_are_evenly_spaced(monkeypatch, places):
    """Counts vary too much in the first half or in the second: both halves are read."""
    monkeypatch.setattr("mhrun.models.dispersion.ROWS", 100)
    y = torch.full((200,), 20.0, dtype=torch.float64)
    y[places] = torch.tensor([0.0, 0.0, 40.0, 40.0] * 25, dtype=torch.float64)
    data = {"x": torch.ones(200, 1, dtype=torch.float64), "y": y}
    theta = torch.tensor([[20.0]], dtype=torch.float64).log()
    assert len(PoissonRegression(1, 10.0).fit_warnings(theta, data)) == 1


def _counts(rng, groups, *, n, mean, columns=0, size=None):
    """Return counts whose log-means differ by an effect of each group, sd 1, and columns that groups decide."""
    codes = rng.integers(0, groups, n)
    x, of_groups = rng.normal(size=(n, 2)), rng.normal(size=(groups, columns))[codes]
    means = mean * np.exp(rng.normal(size=groups)[codes] + 0.3 * x[:, 0])
    y = rng.poisson(means if size is None else means * rng.gamma(size, 1 / size, n))
    fields = {"x": np.column_stack([x, of_groups]), "y": y.astype(float), "school": codes}
    names = [f"x{k}" for k in range(2 + columns)]
    facts = {"dropped": 0, "columns": names, "intercept": False, "scales": {}}
    return replace(Dataset.of(fields), facts=facts | {"groups": {"school": list(map(str, range(groups)))}})


def _dispersion(data):
    return [line for line in hints_of(data, "Poisson") if "times their mean" in line]


@pytest.mark.parametrize(
    ("groups", "settings"),
    [
        (8, {"n": 1_000, "mean": 3.0}),
        (80, {"n": 200, "mean": 0.3}),  # most groups are zeros, or have a row or two
        (150, {"n": 300, "mean": 100.0}),  # half of the degrees of freedom are effects
        (20, {"n": 60, "mean": 2.0, "columns": 15}),  # which are no further degrees of freedom
    ],
)
def test_poisson_counts_in_groups_are_not_named(groups, settings):
    """200 tables of Poisson counts, and no false alarm: 5 sd of the statistic above 1 are needed, and at least 1.5.

    Given the sum of its counts a group of k rows contributes k - 1 on average, however small the counts.
    """
    rng = np.random.default_rng(7)
    assert not any(_dispersion(_counts(rng, groups, **settings)) for _ in range(50))


@pytest.mark.parametrize(("groups", "n", "mean"), [(8, 3_000, 3.0), (150, 300, 100.0), (3_000, 9_000, 3.0)])
def test_overdispersed_counts_in_groups_are_named(groups, n, mean):
    (line,) = _dispersion(_counts(np.random.default_rng(8), groups, n=n, mean=mean, size=1.0))
    assert "times their mean" in line


def test_overdispersion_within_two_columns_of_groups_is_named():
    rng = np.random.default_rng(9)
    for size, count in ((None, 0), (1.0, 1)):
        data = _counts(rng, 30, n=600, mean=20.0, size=size)
        rater = torch.from_numpy(rng.integers(0, 20, 600))
        facts = data.facts | {"groups": data.facts["groups"] | {"rater": list(map(str, range(20)))}}
        assert len(_dispersion(replace(data, fields={**data.fields, "rater": rater}, facts=facts))) == count


def test_counts_that_are_all_zero_in_the_groups_that_are_judged_are_no_error():
    """The first thousand of 3,000 groups are."""
    data = _counts(np.random.default_rng(8), 3_000, n=9_000, mean=3.0, size=1.0)
    y = torch.where(data.fields["school"] < 1_000, 0.0, data.fields["y"])
    assert _dispersion(replace(data, fields={**data.fields, "y": y})) == []


def _means(theta, rows):
    return theta.effects[rows.group].exp()


def _model(groups=100, **settings):
    """Return counts whose log-means are the effects of groups."""

    def log_lik(theta, rows):
        return torch.distributions.Poisson(_means(theta, rows)).log_prob(rows.y)

    parameters = {"effects": {"shape": groups, "prior": "Normal(3.0, 1.0)"}}
    return mhrun.FunctionModel(log_lik, parameters=parameters, **({"mean": _means} | settings))


def test_effects_count_by_what_the_data_determine_of_them():
    """200 counts in 100 groups: chi^2 / n is about 1 where effects are shrunken, and 1/2 where they are free."""
    rng = np.random.default_rng(10)
    group = np.arange(200) // 2
    for means, same, free in ((20.0, 0, 0), (20.0 * rng.gamma(10, 0.1, 200), 1, 1)):
        data = {"y": torch.from_numpy(rng.poisson(means, 200) * 1.0), "group": torch.from_numpy(group)}
        total = torch.from_numpy(np.bincount(group, data["y"]))
        sums = {"same": (data["y"].mean().log().expand(100), 0.01), "free": ((total / 2).log(), total**-0.5)}
        for form, count in (("same", same), ("free", free)):
            centre, sd = sums[form]
            draws = centre + sd * torch.from_numpy(rng.normal(size=(400, 100)))
            assert len(_model(family="poisson").fit_warnings(draws, data)) == count, form


def test_the_family_of_a_function_is_checked():
    with pytest.raises(Refusal, match="family = 'normal' is unknown; choose poisson or binomial"):
        _model(family="normal")
    with pytest.raises(Refusal, match="family = poisson requires mean"):
        _model(family="poisson", mean=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (_means, "times their mean"),
        (lambda theta, rows: rows.nothing, "the fit of the model cannot be estimated"),
    ],
    ids=["right", "wrong"],
)
def test_counts_of_a_function_are_judged_after_a_call(mean, words):
    """Also if their means cannot be computed, the draws are returned."""
    rng = np.random.default_rng(11)
    data = {"y": rng.poisson(rng.gamma(1, 20, 60)).astype(float), "group": np.arange(60) % 3}
    kernel = mhrun.MetropolisHastings(
        mhrun.HamiltonianProposal(leapfrog_steps=5), mhrun.Full(), mhrun.Metropolis()
    )
    settings = {"step_size": 0.02, "steps": 300, "warmup": 200, "progress": False}
    with pytest.warns(UserWarning, match=words):
        trace = mhrun.sample(_model(3, family="poisson", mean=mean), data, kernel, **settings)
    assert trace["posterior"].sizes["draw"] == 300


def test_a_structural_zero_hides_nothing():
    """A count whose mean is 0 at every draw has no variance for each unit of its mean."""
    rng = np.random.default_rng(11)
    y = torch.from_numpy(rng.negative_binomial(1, 0.1, 400).astype(float))
    known = torch.ones(400, dtype=torch.float64)
    y[0] = known[0] = 0.0
    model = mhrun.FunctionModel(
        lambda theta, rows: torch.distributions.Poisson(theta.rate * rows.known + 1e-12).log_prob(rows.y),
        parameters={"rate": "Gamma(1, 1)"},
        mean=lambda theta, rows: theta.rate * rows.known,
        family="poisson",
    )
    draws = torch.from_numpy(rng.normal(float(y.mean()), 0.1, (200, 1)))
    (line,) = model.fit_warnings(draws, {"y": y, "known": known})
    assert "times their mean" in line
