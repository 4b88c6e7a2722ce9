"""The formulas of the guide 'Which method for my data?', by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from mhrun.paths import ROOT

N, D = 4_000, 10


@pytest.fixture(scope="module")
def regression():
    """Linear regression with unit noise: covariates (N, D), outcomes (N,), precision of the posterior (D, D)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D)) @ np.diag(np.linspace(0.5, 1.5, D))
    return x, rng.normal(size=N), x.T @ x


@pytest.mark.parametrize(("temperature", "m"), [(1.0, 2_000), (20.0, 500)])
def test_noise_of_a_shared_minibatch(regression, temperature, m):
    """sd^2 = (n/T)^2 var(d) (1/m - 1/n), and a^2 D (n/T) (1/m - 1/n) for a random walk of a tempered deviations."""
    x, y, precision = regression
    rng = np.random.default_rng(1)
    mode = np.linalg.solve(precision, x.T @ y)
    root = np.linalg.cholesky(np.linalg.inv(precision) * temperature)
    a, predicted, measured = 2.38 / D**0.5, [], []
    for _ in range(40):
        theta = mode + root @ rng.normal(size=D)
        other = theta + a * root @ rng.normal(size=D)
        d = -0.5 * (y - x @ other) ** 2 + 0.5 * (y - x @ theta) ** 2
        scale = (N / temperature) ** 2 * (1 / m - 1 / N)
        predicted.append(scale * d.var(ddof=1))
        estimates = [N / temperature * rng.permutation(d)[:m].mean() for _ in range(40)]
        measured.append(np.var(estimates, ddof=1))
    # 40 variances of 39 degrees of freedom: a standard error of 4 %; at six of them.
    assert np.mean(measured) / np.mean(predicted) == pytest.approx(1, abs=0.22)
    # |z|^2 of 40 moves in ten dimensions: a standard error of 7 %.
    assert np.mean(predicted) / (a**2 * D * N / temperature * (1 / m - 1 / N)) == pytest.approx(1, abs=0.4)


def test_minibatch_sizes_of_the_table():
    """m = 5.7 n / T / (s^2 + 5.7 / T), as derived above the table of the guide."""
    page = (ROOT / "docs" / "choosing.md").read_text()
    table = page[page.index("| T | m needed at n = 10<sup>6</sup>") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(rows) == 3
    for temperature, *sizes in rows:
        t = float(temperature.replace("10<sup>4</sup>", "1e4"))
        for sd, size in zip((1.0, 0.7), sizes, strict=True):
            needed = 2.38**2 * 1e6 / t / (sd**2 + 2.38**2 / t)
            assert float(size.replace(",", "")) == pytest.approx(needed, rel=0.01)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_variance_of_sgld_with_minibatches(temperature):
    """var = (T/lambda) (1 + e V / 2T) / (1 - e lambda / 2), V = lambda (n/m - 1), of the mean of normal data."""
    rng = np.random.default_rng(2)
    n, m, chains = 100, 10, 4_000
    data = rng.normal(size=n)
    data = (data - data.mean()) / data.std(ddof=1)
    step = 0.05 / n  # e lambda = 0.05
    theta = np.zeros(chains)
    for _ in range(120):  # e^-12 of the start's share of the variance is left
        batch = data[rng.random((chains, n)).argpartition(m, axis=1)[:, :m]].mean(axis=1)
        theta += step * n * (batch - theta) + np.sqrt(2 * step * temperature) * rng.normal(size=chains)
    noise = n * (n / m - 1)
    exact = temperature / n * (1 + step * noise / (2 * temperature)) / (1 - step * n / 2)
    assert exact / (temperature / n) > 1.03
    # The variance of 4,000 independent chains has a standard error of 2.2 %; at four and a half of them.
    assert theta.var() / exact == pytest.approx(1, abs=0.1)


def test_step_size_of_mala_and_costs():
    """In 300 dimensions the step of the table accepts 0.574, and both costs are those of the table."""
    rng = np.random.default_rng(3)
    dim, chains, steps = 300, 200, 400
    step = 1.36 * dim ** (-1 / 3)
    theta = rng.normal(size=(chains, dim))
    accepted, last, products = 0.0, theta.copy(), []
    for _ in range(steps):
        other = (1 - step) * theta + np.sqrt(2 * step) * rng.normal(size=theta.shape)
        forward = -((other - (1 - step) * theta) ** 2).sum(1) / (4 * step)
        backward = -((theta - (1 - step) * other) ** 2).sum(1) / (4 * step)
        log_ratio = -0.5 * (other**2).sum(1) + 0.5 * (theta**2).sum(1) + backward - forward
        yes = np.log(rng.random(chains)) < log_ratio
        last, theta = theta, np.where(yes[:, None], other, theta)
        accepted += yes.mean() / steps
        products.append((last * theta).mean())
    assert accepted == pytest.approx(0.574, abs=0.03)
    correlation = float(np.mean(products))
    steps_per_draw = (1 + correlation) / (1 - correlation)  # of an AR(1) chain
    assert steps_per_draw / (2.6 * dim ** (1 / 3)) == pytest.approx(1, abs=0.25)
