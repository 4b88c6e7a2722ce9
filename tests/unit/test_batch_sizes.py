"""Mean and spread of minibatch sizes, as a trace adds them up."""

from itertools import pairwise

import numpy as np
import pytest

from mhrun.engine.diagnosis.batch_sizes import batch_sizes
from mhrun.store.blocks import TraceWriter
from mhrun.store.netcdf import Shape
from mhrun.types import INFO_DEFAULTS, INFO_DTYPES

N, WARMUP = 5_000_000, 100


def found(folder, size, n=N):
    """Return the sizes of decisions (C, K), written in three parts after a burn-in with others."""
    chains, steps = size.shape
    total = WARMUP + steps
    record = {
        name: np.broadcast_to(np.asarray(v, INFO_DTYPES[name]), (chains, total))
        for name, v in INFO_DEFAULTS.items()
    }
    record |= {name: np.zeros((chains, total), t) for name, t in INFO_DTYPES.items() if name not in record}
    record["theta"] = np.zeros((chains, total, 1))
    record["batch_size"] = np.concatenate([np.full((chains, WARMUP), 7), size], axis=1)
    writer = TraceWriter(folder, Shape(chains, ("a",), WARMUP, steps, 1), INFO_DTYPES, n)
    cuts = [0, WARMUP // 2, WARMUP + steps // 3, total]
    for first, stop in pairwise(cuts):
        writer.append(first + 1, {name: v[:, first:stop] for name, v in record.items()})
    return batch_sizes({"totals": {k: v.tolist() for k, v in writer.totals.items()}}, n, size.size)


@pytest.mark.parametrize("m", [1, 4_288_447, N])
def test_sizes_that_are_all_the_same_have_no_spread(tmp_path, m):
    sizes = found(tmp_path, np.full((4, 30_000), m))
    assert sizes.overall_mean == m
    assert sizes.overall_sd == 0  # sums of squares gave 6.8 at m = 4,288,447
    assert sizes.on_all == (120_000 if m == N else 0)


@pytest.mark.parametrize(
    ("low", "high", "share"), [(4_288_440, 4_288_450, 0.0), (10, 10_000, 0.3), (0, 3, 0.9)]
)
def test_the_spread_is_that_of_numpy(tmp_path, low, high, share):
    rng = np.random.default_rng(1)
    size = rng.integers(low, high, (3, 20_000))
    size[rng.random(size.shape) < share] = N
    size[1] += (size[1] < N) * 5  # chains differ
    sizes, part = found(tmp_path, size), size[size < N]
    assert sizes.overall_mean == pytest.approx(size.mean(), rel=1e-12)
    assert sizes.overall_sd == pytest.approx(size.std(), rel=1e-9)
    assert sizes.mean == pytest.approx(part.mean(), rel=1e-12)
    assert sizes.var == pytest.approx(part.var(), rel=1e-9)
    assert sizes.on_all == (size == N).sum()


def test_the_mean_inverse_is_of_the_minibatches_alone(tmp_path):
    rng = np.random.default_rng(2)
    size = rng.integers(900, 1100, (2, 50_000))
    exact = (1 / size).mean()
    size[:, ::2] = N
    assert found(tmp_path, size).mean_inverse == pytest.approx(exact, rel=1e-4)


def test_a_chain_that_read_all_data_first(tmp_path):
    size = np.array([[N, 5, 7], [3, N, 3]])
    sizes = found(tmp_path, size)
    assert sizes.overall_sd == pytest.approx(size.std(), rel=1e-9)
    assert sizes.mean == pytest.approx(4.5)
