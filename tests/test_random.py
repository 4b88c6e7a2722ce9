"""Random numbers: known answers, independence of what should not matter, uniformity."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from laws import ALPHA, Z, assert_counts
from scipy import stats

from mhrun.native import philox as pieces
from mhrun.native.numbers import indices
from mhrun.random import LOW, MANY, Purpose, Streams, derive_key, philox, rectangle


# Known answers of the reference implementation, Random123's kat_vectors.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((LOW,) * 4, (1 << 64) - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected):
    words = philox(*(torch.tensor(c) for c in counter), key)
    assert tuple(int(w) for w in words) == expected


def test_both_paths_make_the_same_numbers():
    key = derive_key(5, "both")
    draws = Streams(key, 7, first_chain=2).at(2**33 + 5)
    split = pieces.split_key(key)
    step = pieces.u64(2**33 + 5)
    normal, uniform = draws.normal(Purpose.PROPOSAL, 6), draws.uniform(Purpose.ACCEPT)
    for row in range(7):
        chain = pieces.u64(2 + row)
        ours = [
            z
            for block in range(2)
            for z in pieces.normals(pieces.u64(block), pieces.PROPOSAL, step, chain, split)
        ]
        assert normal[row].numpy() == pytest.approx(ours[:6], rel=1e-12)
        assert float(uniform[row]) == pieces.uniform(pieces.ACCEPT, step, chain, split)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize(
    ("n", "m"), [(1, 1), (5, 3), (1000, 1000), (1025, 1025), (13007, 101), (2**31 - 1, 50)]
)
def test_both_paths_draw_the_same_minibatches(n, m, replacement):
    key = derive_key(1, "batches")
    compiled = indices(key, 3, 4, np.arange(5), n, m, rectangle(n), replacement)
    draws = Streams(key, 5).at(3)
    for k in range(4):
        draws.step = 3 + k
        assert (draws.index(n, m, replacement=replacement).numpy() == compiled[k]).all()


def test_a_chain_does_not_see_its_neighbours_nor_the_prefetching():
    key = derive_key(9, "alone")
    many, one = Streams(key, 8), Streams(key, 1, first_chain=5)
    for ask in (
        lambda d: d.normal(Purpose.PROPOSAL, 3),
        lambda d: d.uniform(Purpose.ACCEPT),
        lambda d: d.index(5000, 40, replacement=False),
        lambda d: d.index(5000, 40, replacement=True),
    ):
        running = many.at(1)
        for step in (1, 2, 3, 70, 200):
            running.step = step
            fresh = one.at(step)
            assert torch.equal(ask(running)[5], ask(fresh)[0])


def test_purposes_and_steps_and_keys_have_different_numbers():
    words = [
        Streams(key, 2).words(purpose, step, 1, 2).flatten().tolist()
        for key in (derive_key(0, "a"), derive_key(0, "b"), derive_key(1, "a"))
        for purpose in Purpose
        for step in (0, 1, 2**32)
    ]
    everything = [w for part in words for w in part]
    assert len(set(everything)) == len(everything)


def test_rectangles_hold_their_data_tightly():
    for n in [*range(1, 3000), 13007, 60_000, 10**6, 10**8, 2**31 - 1]:
        a, b = rectangle(n)
        assert a * b >= n
        assert max(a, b) < 2**16.1
        if n > 1024:
            assert a * b - n < 0.01 * n


@pytest.mark.parametrize(("n", "m"), [(1025, 1025), (5000, 5000), (13007, 900)])
def test_batches_without_replacement_do_not_repeat(n, m):
    index = Streams(derive_key(2, "distinct"), 50).at(1).index(n, m, replacement=False)
    assert index.min() >= 0
    assert index.max() < n
    assert all(len(set(row.tolist())) == m for row in index)


def test_small_data_are_ordered_exactly_uniformly():
    draws = Streams(derive_key(3, "orders"), 200_000).at(1)
    index = draws.index(5, 3, replacement=False).numpy()
    code = index @ np.array([25, 5, 1])
    triples = [25 * a + 5 * b + c for a, b, c in itertools.permutations(range(5), 3)]
    assert_counts(np.array([(code == t).sum() for t in triples]), np.full(60, 1 / 60), "ordered triples")


@pytest.mark.parametrize(("n", "m"), [(1025, 40), (13007, 100), (1_000_000, 1000)])
def test_permuted_batches_have_the_moments_of_sampling_without_replacement(n, m):
    """Batch means of functions that a poor permutation would betray: trends, parities, rows and columns."""
    count = min(40_000, 20_000_000 // m)
    index = indices(derive_key(4, "moments"), 1, count, np.arange(1), n, m, rectangle(n), False)[:, 0]
    position = np.arange(n)
    _a, b = rectangle(n)
    rng = np.random.default_rng(0)
    for name, x in {
        "trend": position / n,
        "row": position // b,
        "column": position % b,
        "parity": position % 2,
        "half": position < n // 2,
        "wave": np.sin(2 * np.pi * 37 * position / n),
        "noise": rng.standard_normal(n),
        "rare": rng.random(n) < 0.01,
    }.items():
        values = np.asarray(x, dtype=float)
        means = values[index].mean(axis=1)
        variance = values.var(ddof=1) / m * (1 - m / n)
        z = (means.mean() - values.mean()) / math.sqrt(variance / count)
        assert abs(z) < Z, f"{name}: mean off by {z:.1f} standard errors"
        kurtosis = stats.kurtosis(means)
        spread = (means.var(ddof=1) / variance - 1) / math.sqrt((2 + max(kurtosis, 0)) / count)
        assert abs(spread) < Z, f"{name}: variance off by {spread:.1f} standard errors"


def test_permuted_batches_are_uniform_in_single_data_and_in_pairs():
    n, m, count = 1030, 40, 50_000
    index = indices(derive_key(6, "pairs"), 1, count, np.arange(1), n, m, rectangle(n), False)[:, 0]
    single = np.bincount(index.ravel(), minlength=n)
    # Within a batch data are not independent; across batches the first of each are.
    assert_counts(np.bincount(index[:, 0], minlength=n), np.full(n, 1 / n), "first of a batch")
    assert_counts(np.bincount(index[:, -1], minlength=n), np.full(n, 1 / n), "last of a batch")
    excess = (single - count * m / n) / np.sqrt(count * m / n * (1 - m / n))
    assert np.abs(excess).max() < stats.norm.isf(ALPHA / n / 2)
    gap = (index[:, 1] - index[:, 0]) % n
    assert_counts(np.bincount(gap, minlength=n)[1:], np.full(n - 1, 1 / (n - 1)), "gap of the first two")


def test_independent_indices_are_uniform_where_a_32_bit_modulo_is_not():
    # At this n, 2^32 mod n is large: a modulo of 32-bit words would favour the lower third by half.
    n = 3 * 2**29 - 1
    index = Streams(derive_key(8, "large"), 400).at(1).index(n, 2000, replacement=True).numpy().ravel()
    counts = np.histogram(index, bins=60, range=(0, n))[0]
    assert_counts(counts, np.full(60, 1 / 60), "large n")


def test_normals_and_uniforms_follow_their_laws():
    draws = Streams(derive_key(7, "laws"), 1000).at(1)
    z = draws.normal(Purpose.NOISE, 1000).numpy().ravel()
    u = np.concatenate(
        [Streams(derive_key(7, "u"), 1000).at(s).uniform(Purpose.ACCEPT).numpy() for s in range(200)]
    )
    assert stats.kstest(z, "norm").pvalue > ALPHA
    assert stats.kstest(u, "uniform").pvalue > ALPHA
    pairs = np.histogram2d(stats.norm.cdf(z[::2]), stats.norm.cdf(z[1::2]), bins=16, range=((0, 1), (0, 1)))[
        0
    ]
    assert_counts(pairs.ravel(), np.full(256, 1 / 256), "pairs of normals")


@pytest.mark.parametrize("n", [300, 5000])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_batch_without_repeats_grows(n, compiled):
    streams = Streams(derive_key(9, "grow"), 6, compiled=compiled)
    whole = streams.at(4).index(n, 200, replacement=False)
    draws = streams.at(4)
    parts = [draws.index(n, 50, replacement=False, start=start) for start in (0, 50, 100, 150)]
    assert torch.equal(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("compiled", [False, True])
def test_parts_of_a_batch_with_repeats_are_independent(compiled):
    draws = Streams(derive_key(9, "grow"), 400, compiled=compiled).at(4)
    one = draws.index(10**6, 50, replacement=True).double()
    two = draws.index(10**6, 50, replacement=True, start=50).double()
    r = np.corrcoef(one.flatten(), two.flatten())[0, 1]
    assert abs(r) < 5 / np.sqrt(one.numel())  # 5 sigma: 6e-7
    assert not set(one[0].tolist()) & set(two[0].tolist())


def test_uses_of_a_purpose_have_numbers_of_their_own():
    draws = Streams(derive_key(10, "uses"), 20_000).at(1)
    columns = [draws.uniform(Purpose.ACCEPT, use).numpy() for use in range(4)]
    r = np.corrcoef(columns) - np.eye(4)
    assert np.abs(r).max() < 5.5 / np.sqrt(20_000)


def test_numbers_are_drawn_once():
    draws = Streams(derive_key(11, "once"), 2).at(1)
    draws.uniform(Purpose.ACCEPT)
    with pytest.raises(RuntimeError, match="drawn twice"):
        draws.normal(Purpose.ACCEPT, 1)
    draws.normal(Purpose.ACCEPT, 1, use=1)
    draws.step = 2
    draws.uniform(Purpose.ACCEPT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [MANY, MANY + 1, MANY + 6, MANY + 7])
def test_many_normals_of_both_generators_are_one_s(dtype, count):
    """To rounding; and they are those that fewer normals begin with."""
    key = derive_key(12, "many")
    for step in (1, 2**33 + 5):
        plain = Streams(key, 3, first_chain=2).at(step)
        found = Streams(key, 3, first_chain=2, compiled=True).at(step).normal(Purpose.NOISE, count, 3, dtype)
        wanted = plain.normal(Purpose.NOISE, count, 3, dtype)
        assert found.dtype == wanted.dtype == dtype
        assert found.shape == wanted.shape == (3, count)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        assert torch.allclose(found, wanted, rtol=tolerance, atol=tolerance)
        few = Streams(key, 3, first_chain=2).at(step).normal(Purpose.NOISE, MANY - 1, 3, dtype)
        assert torch.equal(few, wanted[:, : MANY - 1])


@pytest.mark.parametrize("compiled", [False, True])
def test_many_normals_follow_their_law_and_are_each_chain_s_own(compiled):
    key, count = derive_key(13, "many"), 20_001

    def drawn(chains, step, purpose=Purpose.NOISE, use=0, first=0):
        streams = Streams(key, chains, first_chain=first, compiled=compiled)
        return streams.at(step).normal(purpose, count, use).numpy()

    many = drawn(4, 7)
    for chain in (0, 3):
        assert np.array_equal(drawn(1, 7, first=chain)[0], many[chain])
    assert stats.kstest(many.ravel(), "norm").pvalue > ALPHA
    others = [drawn(1, 8), drawn(1, 7, Purpose.PROPOSAL), drawn(1, 7, use=1)]
    lagged = np.stack([many[0, :-1], many[0, 1:]])
    r = np.corrcoef(np.concatenate([many, *others])) - np.eye(7)
    assert np.abs(r).max() < 5.5 / np.sqrt(count)
    assert abs(np.corrcoef(lagged)[0, 1]) < 5.5 / np.sqrt(count)
    square = np.corrcoef(many[0, 0:-1:2] ** 2, many[0, 1::2] ** 2)[0, 1]  # the two of a Box-Muller pair
    assert abs(square) < 5.5 / np.sqrt(count / 2)
    draws = Streams(key, 1, compiled=compiled).at(1)
    draws.normal(Purpose.NOISE, MANY)
    with pytest.raises(RuntimeError, match="drawn twice"):
        draws.normal(Purpose.NOISE, MANY)
    draws.step = 2
    assert not np.array_equal(draws.normal(Purpose.NOISE, count)[0].numpy(), drawn(1, 1)[0])


@pytest.mark.parametrize("compiled", [False, True])
def test_streams_of_some_chains_are_theirs_whoever_the_others_are(compiled):
    whole = Streams(derive_key(14, "of"), 6, first_chain=3, compiled=compiled)
    some, one = whole.of("trial", torch.tensor([4, 0, 5])), whole.of("trial", torch.tensor([0]))
    assert (some.chains, one.chains) == (3, 1)

    def ask(streams, step):
        draws = streams.at(step)
        return [
            draws.uniform(Purpose.ACCEPT)[:, None],
            draws.normal(Purpose.PROPOSAL, 5),
            draws.normal(Purpose.NOISE, MANY),
            draws.index(2000, 7, replacement=False).double(),
            draws.index(2000, 7, replacement=True, use=1).double(),
        ]

    named = whole.of("other", torch.tensor([4, 0, 5]))
    for step in (1, 500):
        found = ask(some, step)
        for a, b in zip(found, ask(one, step), strict=True):
            assert torch.equal(a[1], b[0])
        # Numbers of their own: neither the parent's nor another name's, nor those of the step before.
        parents = [values[[4, 0, 5]] for values in ask(whole, step)]
        for others in (parents, ask(named, step), ask(some, step + 1)):
            for a, b in zip(found, others, strict=True):
                assert not (a == b).all(-1).any()
    again = whole.of("trial", torch.tensor([2])).of("deeper", torch.tensor([0]))
    direct = whole.of("trial", torch.arange(6)).of("deeper", torch.tensor([2]))
    assert torch.equal(again.at(1).uniform(Purpose.ACCEPT), direct.at(1).uniform(Purpose.ACCEPT))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_many_normals_of_a_gpu_are_a_function_of_the_step():
    key = derive_key(15, "many")
    one, two = (Streams(key, 3, "cuda").at(5).normal(Purpose.NOISE, 20_001) for _ in range(2))
    assert torch.equal(one, two)
    other = Streams(key, 3, "cuda").at(6).normal(Purpose.NOISE, 20_001)
    assert abs(float(torch.corrcoef(torch.stack([one[0], other[0]]))[0, 1])) < 5.5 / math.sqrt(20_001)
    assert stats.kstest(one.cpu().numpy().ravel(), "norm").pvalue > ALPHA
