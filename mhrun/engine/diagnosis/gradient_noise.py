"""The covariance of minibatch noise of gradients, from gradients of single data."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.engine.landscape.surface import Surface
from mhrun.target import Target
from mhrun.types.scale import Scale

# Data whose gradients are evaluated: as many as there is room for their numbers, between these. Among 512 of 210,000
# there may be none of a hundred that decide on a parameter: a step was chosen at which its draws had no limit.
_MIN_GRADIENTS, _MAX_GRADIENTS, _MAX_NUMBERS = 512, 20_000, 1 << 22
POINTS = 8  # where, with a control variate, which has no noise at the mode itself; else at one point


def root_of_covariance(
    surface: Surface, points: Tensor, scale: Scale | None = None, in_pass: int | None = None
) -> Tensor:
    """Return R (K, D), with R^T R the covariance of gradients of single data, in the coordinates of a scale if given.

    From up to 20,000 of the data, or from all of a surface that is of all data.

    Args:
        surface: gradients that are evaluated are added to its count.
        points: where they are evaluated (P, D); covariances are averaged.
        scale: of the coordinates.
        in_pass: points among which all data are divided in each pass over them; all points if None.
    """
    if surface.is_whole:
        roots = [_root_on_all_data(surface, some, scale) for some in points.split(in_pass or len(points))]
        return torch.cat(roots) / len(roots) ** 0.5
    single = surface.single_gradients(points, max(rows_of(points.shape[1]), 2 * len(points))).cpu()
    single = single if scale is None else scale.pull(single)
    freedom = max(1, single.shape[1] - 1) * len(points)
    return ((single - single.mean(1, keepdim=True)) / freedom**0.5).flatten(0, 1)


def rows_of(dim: int) -> int:
    """Return the number of gradients that are evaluated, of parts of the data."""
    return min(_MAX_GRADIENTS, max(_MIN_GRADIENTS, _MAX_NUMBERS // dim))


def _root_on_all_data(surface: Surface, points: Tensor, scale: Scale | None) -> Tensor:
    sums = torch.zeros(points.shape, dtype=torch.float64)
    squares = torch.zeros(*points.shape, points.shape[1], dtype=torch.float64)
    for block in surface.all_single_gradients(points):
        single = block.cpu() if scale is None else scale.pull(block.cpu())
        sums += single.sum(1)
        squares += single.mT @ single
    count = surface.target.n // len(points)
    means = sums / count
    covariance = (squares - count * means[:, :, None] * means[:, None]).mean(0) / max(1, count - 1)
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    return eigenvalues.clamp_min(0).sqrt()[:, None] * vectors.T


def of_minibatch(target: Target, m: int) -> float:
    """Return by what that covariance is multiplied in the gradient of the log posterior on m data."""
    return float(torch.as_tensor(target.batches.error_share(m))) * target.n**2 / m


def largest_eigenvalue(root: Tensor) -> float:
    """Return the largest eigenvalue of R^T R; NaN if R is not finite."""
    gram = root @ root.T if len(root) < root.shape[1] else root.T @ root
    return float(torch.linalg.eigvalsh(gram).max()) if gram.isfinite().all() else float("nan")
