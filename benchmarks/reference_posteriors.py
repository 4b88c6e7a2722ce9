"""Make tests/posteriors.json: means and standard deviations of the ten posteriors, by NumPy and SciPy alone.

Nothing of mhrun's samplers or models is used: densities are written again here. Sources: closed forms, quadrature, or
importance sampling from a Student's t distribution (5 degrees of freedom) about the mode, of a million independent
draws, with its Monte Carlo error. Only the network has a long run of HMC, written here in NumPy.

Arguments: which of them; none makes all, in about three minutes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from problem_posteriors import HIDDEN, POSTERIORS
from scipy import optimize, special, stats

DRAWS, PART = 1 << 20, 1 << 14
Array = np.ndarray[Any, np.dtype[np.float64]]
Names = list[str]


def named(values: dict[str, tuple[float, float, float, float]], source: str) -> dict[str, Any]:
    """Return a reference: for each name mean, sd and the Monte Carlo errors of both."""
    return {
        "source": source,
        "names": {name: [float(f"{v:.8g}") for v in row] for name, row in values.items()},
    }


def normal() -> dict[str, Any]:
    """Quadrature on a grid of mu and log sigma."""
    y = POSTERIORS["normal"]().data["y"]
    mu, log_sigma = np.meshgrid(np.linspace(-2, 8, 2001), np.linspace(-1.0, 2.5, 2001), indexing="ij")
    sigma = np.exp(log_sigma)
    log_p = -len(y) * log_sigma - 0.5 * (((y**2).sum() - 2 * mu * y.sum() + len(y) * mu**2) / sigma**2)
    log_p += stats.norm.logpdf(mu, 0, 5) + stats.halfnorm.logpdf(sigma, scale=5) + log_sigma
    p = np.exp(log_p - log_p.max())
    found = {}
    for name, value in (("mu", mu), ("sigma", sigma)):
        mean = (p * value).sum() / p.sum()
        found[name] = (mean, ((p * (value - mean) ** 2).sum() / p.sum()) ** 0.5, 0.0, 0.0)
    return named(found, "quadrature on 2001 x 2001 points")


def linear() -> dict[str, Any]:
    """Given sigma the coefficients are normal; quadrature over log sigma."""
    data = POSTERIORS["linear"]().data
    x, y = np.column_stack([np.ones(100), data["x"]]), data["y"]
    logs = np.linspace(-2, 2, 4001)
    weights, means, squares = [], [], []
    for s in np.exp(logs):
        precision = x.T @ x / s**2 + np.eye(5) / 25
        mean = np.linalg.solve(precision, x.T @ y / s**2)
        fit = -0.5 * (y @ y / s**2 - mean @ precision @ mean) - 100 * np.log(s)
        weights.append(
            fit - 0.5 * np.linalg.slogdet(precision)[1] + stats.halfnorm.logpdf(s, scale=2) + np.log(s)
        )
        means.append(np.append(mean, s))
        squares.append(np.append(np.linalg.inv(precision).diagonal() + mean**2, s**2))
    w = special.softmax(weights)
    mean, square = w @ np.array(means), w @ np.array(squares)
    names = ["intercept", *(f"slopes[{k}]" for k in range(4)), "sigma"]
    sd = (square - mean**2) ** 0.5
    return named(
        {name: (m, s, 0.0, 0.0) for name, m, s in zip(names, mean, sd, strict=True)},
        "normal given sigma, quadrature over 4001 values of sigma",
    )


def hierarchical() -> dict[str, Any]:
    """Given mu and tau the effects are normal; quadrature over mu and log tau."""
    data = POSTERIORS["hierarchical"]().data
    y, s = data["y"], data["sd"]
    mu, log_tau = np.meshgrid(np.linspace(-25, 30, 1501), np.linspace(-12, 8, 3001), indexing="ij")
    tau = np.exp(log_tau)
    log_p = stats.norm.logpdf(mu, 0, 5) + stats.halfcauchy.logpdf(tau, scale=5) + log_tau
    for yj, sj in zip(y, s, strict=True):
        log_p += stats.norm.logpdf(yj, mu, np.hypot(sj, tau))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    found = {}
    for name, value in (("mu", mu), ("tau", tau)):
        mean = (p * value).sum()
        found[name] = (mean, (p * (value - mean) ** 2).sum() ** 0.5, 0.0, 0.0)
    for j, (yj, sj) in enumerate(zip(y, s, strict=True)):
        share = tau**2 / (tau**2 + sj**2)
        centre, spread = share * yj + (1 - share) * mu, share * sj**2
        mean = (p * centre).sum()
        found[f"effects[{j}]"] = (mean, (p * (spread + (centre - mean) ** 2)).sum() ** 0.5, 0.0, 0.0)
    return named(found, "normal given mu and tau, quadrature on 1501 x 3001 points")


def simplex() -> dict[str, Any]:
    """Dirichlet."""
    a = np.array([12, 7, 3, 1, 0]) + 1.0
    mean = a / a.sum()
    sd = (mean * (1 - mean) / (a.sum() + 1)) ** 0.5
    return named(
        {f"weights[{k}]": (mean[k], sd[k], 0.0, 0.0) for k in range(5)}, "closed form: a Dirichlet posterior"
    )


def curvature(log_density: Callable[[Array], Array], at: Array, h: float = 1e-3) -> Array:
    """Return minus the Hessian (D, D) by central differences."""
    dim = len(at)
    eye = h * np.eye(dim)
    found = np.empty((dim, dim))
    for i in range(dim):
        for j in range(dim):
            signs = ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))
            points = np.array([at + a * eye[i] + b * eye[j] for a, b, _ in signs])
            found[i, j] = -np.dot([s for _, _, s in signs], log_density(points)) / (4 * h * h)
    return found


def by_importance(
    names: Names, start: list[float], log_density: Callable[[Array], Array], values: Callable[[Array], Array]
) -> dict[str, Any]:
    """Return a reference by importance sampling.

    `log_density` is that of unconstrained coordinates (S, D), `values` maps these to the user's (S, P).
    """
    dim, df = len(start), 5.0
    mode = optimize.minimize(lambda u: -log_density(u[None])[0], start, method="BFGS", options={"gtol": 1e-6})
    root = np.linalg.cholesky(np.linalg.inv(curvature(log_density, mode.x))) * 1.15
    rng = np.random.default_rng(0)
    logs, draws = [], []
    for _ in range(DRAWS // PART):
        z = rng.standard_normal((PART, dim)) / np.sqrt(rng.chisquare(df, PART) / df)[:, None]
        u = mode.x + z @ root.T
        proposal = -0.5 * (df + dim) * np.log1p((z**2).sum(1) / df)
        logs.append(log_density(u) - proposal)
        draws.append(values(u))
    log_w, x = np.concatenate(logs), np.concatenate(draws)
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    mean = w @ x
    off = x - mean
    sd = (w @ off**2) ** 0.5
    mean_error = (w**2 @ off**2) ** 0.5
    sd_error = (w**2 @ (off**2 - sd**2) ** 2) ** 0.5 / (2 * sd)
    rows = zip(names, mean, sd, mean_error, sd_error, strict=True)
    kept = 1 / (w**2).sum()
    return named(
        {name: (m, s, me, se) for name, m, s, me, se in rows},
        f"importance sampling, {DRAWS:,} draws of a t distribution, {kept:,.0f} effective",
    )


def robust() -> dict[str, Any]:
    """Student's t errors."""
    data = POSTERIORS["robust"]().data
    x, y = np.column_stack([np.ones(80), data["x"]]), data["y"]

    def log_density(u: Array) -> Array:
        sigma = np.exp(u[:, 4])
        z = (y - u[:, :4] @ x.T) / sigma[:, None]
        log_p = -2.5 * np.log1p(z**2 / 4).sum(1) - 80 * u[:, 4]
        return log_p - (u[:, :4] ** 2).sum(1) / 8 - sigma**2 / 2 + u[:, 4]

    names = ["intercept", *(f"slopes[{k}]" for k in range(3)), "sigma"]
    return by_importance(
        names, [0.0] * 5, log_density, lambda u: np.column_stack([u[:, :4], np.exp(u[:, 4])])
    )


def logistic() -> dict[str, Any]:
    """Binary responses."""
    data = POSTERIORS["logistic"]().data

    def log_density(u: Array) -> Array:
        return -np.logaddexp(0, -data["y"] * (u @ data["x"].T)).sum(1) - (u**2).sum(1) / 18

    return by_importance([f"weights[{k}]" for k in range(5)], [0.0] * 5, log_density, lambda u: u)


def poisson() -> dict[str, Any]:
    """Counts."""
    data = POSTERIORS["poisson"]().data
    x = np.column_stack([np.ones(120), data["x"]])

    def log_density(u: Array) -> Array:
        rate = u @ x.T
        return (data["y"] * rate - np.exp(rate)).sum(1) - (u**2).sum(1) / 8

    names = ["intercept", *(f"slopes[{k}]" for k in range(3))]
    return by_importance(names, [0.0] * 4, log_density, lambda u: u)


def mixture() -> dict[str, Any]:
    """Coordinates: logit of the weight, first mean, log of the gap, log of the scale."""
    y = POSTERIORS["mixture"]().data["y"]

    def values(u: Array) -> Array:
        return np.column_stack([special.expit(u[:, 0]), u[:, 1], u[:, 1] + np.exp(u[:, 2]), np.exp(u[:, 3])])

    def log_density(u: Array) -> Array:
        weight, low, high, sigma = values(u).T
        terms = np.logaddexp(
            np.log(weight)[:, None] - 0.5 * ((y - low[:, None]) / sigma[:, None]) ** 2,
            np.log1p(-weight)[:, None] - 0.5 * ((y - high[:, None]) / sigma[:, None]) ** 2,
        )
        log_p = terms.sum(1) - len(y) * u[:, 3] - (low**2 + high**2) / 18 - sigma**2 / 8
        return log_p + np.log(weight * (1 - weight)) * 2 + u[:, 2] + u[:, 3]

    names = ["weight", "means[0]", "means[1]", "sigma"]
    return by_importance(names, [-0.6, -1.0, 1.0, -0.2], log_density, values)


def ordered() -> dict[str, Any]:
    """Coordinates: slope, first cut, logs of two gaps."""
    data = POSTERIORS["ordered"]().data
    x, y = data["x"], data["y"].astype(int)

    def values(u: Array) -> Array:
        second = u[:, 1] + np.exp(u[:, 2])
        return np.column_stack([u[:, :2], second, second + np.exp(u[:, 3])])

    def log_density(u: Array) -> Array:
        at = values(u)
        far = np.full((len(u), 1), np.inf)
        edges = np.column_stack([-far, at[:, 1:], far])
        shift = at[:, :1] * x
        p = special.expit(edges[:, y + 1] - shift) - special.expit(edges[:, y] - shift)
        return np.log(np.maximum(p, 1e-300)).sum(1) - (at**2).sum(1) / 18 + u[:, 2] + u[:, 3]

    return by_importance(
        ["slope", "cuts[0]", "cuts[1]", "cuts[2]"], [1.0, -1.5, 0.5, 0.5], log_density, values
    )


def network(chains: int = 128, steps: int = 5_000, burn: int = 1_000) -> dict[str, Any]:
    """HMC of many chains from the prior; hidden units and their signs are exchangeable, so that draws are pooled."""
    data = POSTERIORS["network"]().data
    x, y, h = data["x"], data["y"], HIDDEN
    dim = 2 * h + h + 2 * h + 2

    def parts(u: Array) -> tuple[Array, Array, Array, Array]:
        one, two, three = 2 * h, 3 * h, 5 * h
        return (
            u[:, :one].reshape(-1, h, 2),
            u[:, one:two],
            u[:, two:three].reshape(-1, 2, h),
            u[:, three:],
        )

    def value_and_grad(u: Array) -> tuple[Array, Array]:
        w, b, v, c = parts(u)
        a = np.tanh(np.einsum("nk,chk->cnh", x, w) + b[:, None])
        margin = np.einsum("cnh,ch->cn", a, v[:, 1] - v[:, 0]) + (c[:, 1] - c[:, 0])[:, None]
        sign = 2.0 * y - 1.0
        value = -np.logaddexp(0, -sign * margin).sum(1) - 0.5 * (u**2).sum(1)
        slope = sign * special.expit(-sign * margin)  # d log p / d margin
        back = slope[:, :, None] * (v[:, 1] - v[:, 0])[:, None] * (1 - a**2)
        dv = np.einsum("cn,cnh->ch", slope, a)
        grads = [
            np.einsum("cnh,nk->chk", back, x).reshape(len(u), -1),
            back.sum(1),
            np.stack([-dv, dv], 1).reshape(len(u), -1),
            np.stack([-slope.sum(1), slope.sum(1)], 1),
        ]
        return value, np.concatenate(grads, 1) - u

    rng = np.random.default_rng(0)
    u = rng.standard_normal((chains, dim))
    value, grad = value_and_grad(u)
    total, squares, count = np.zeros((chains, 7)), np.zeros((chains, 7)), 0
    for step in range(steps):
        e = 0.12 * (0.5 + rng.random((chains, 1)))
        p = rng.standard_normal((chains, dim))
        to, q, g, height = u.copy(), p.copy(), grad, value
        for _ in range(12):
            q = q + e / 2 * g
            to = to + e * q
            height, g = value_and_grad(to)
            q = q + e / 2 * g
        gain = height - value + 0.5 * ((p**2).sum(1) - (q**2).sum(1))
        yes = np.log(rng.random(chains)) < gain
        u, grad = np.where(yes[:, None], to, u), np.where(yes[:, None], g, grad)
        value = np.where(yes, height, value)
        if step >= burn:
            w, b, v, c = parts(u)
            both = np.column_stack(
                [
                    *(np.sqrt((w[:, :, k] ** 2).mean(1)) for k in range(2)),
                    np.sqrt((b**2).mean(1)),
                    *(np.sqrt((v[:, k] ** 2).mean(1)) for k in range(2)),
                    c,
                ]
            )
            total, squares, count = total + both, squares + both**2, count + 1
    mean_square, by_chain = squares / count, total / count
    found: dict[str, tuple[float, float, float, float]] = {}

    def unit(name: str, k: int) -> None:
        sd = mean_square[:, k].mean() ** 0.5
        error = mean_square[:, k].std(ddof=1) / chains**0.5 / (2 * sd)
        found[name] = (0.0, sd, 0.0, error)

    for i in range(h):
        for k in range(2):
            unit(f"one.weight[{2 * i + k}]", k)
    for i in range(h):
        unit(f"one.bias[{i}]", 2)
    for k in range(2):
        for i in range(h):
            unit(f"two.weight[{h * k + i}]", 3 + k)
    for k in range(2):
        mean = by_chain[:, 5 + k].mean()
        sd = (mean_square[:, 5 + k].mean() - mean**2) ** 0.5
        error = by_chain[:, 5 + k].std(ddof=1) / chains**0.5
        found[f"two.bias[{k}]"] = (mean, sd, error, error)
    return named(
        found, f"HMC in NumPy, {chains} chains of {steps:,} steps, means over exchangeable units and signs"
    )


if __name__ == "__main__":
    place = Path(__file__).resolve().parent.parent / "tests" / "posteriors.json"
    content = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    makers = (normal, linear, robust, logistic, poisson, hierarchical, mixture, ordered, simplex, network)
    for maker in makers:
        if not sys.argv[1:] or maker.__name__ in sys.argv[1:]:
            content[maker.__name__] = maker()
            place.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
