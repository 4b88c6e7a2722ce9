"""Random numbers: known answers, independence of what should not matter, uniformity."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from significance import ALPHA, Z, assert_counts

from mhrun.data import Dataset
from mhrun.data.no_data import NoData
from mhrun.errors import UserError
from mhrun.native import Draw, indices
from mhrun.native import philox as pieces
from mhrun.native.numbers import normals, permutations
from mhrun.random import MANY, Draws, Purpose, Streams, derive_key
from mhrun.random import permutations as kept_permutations
from mhrun.random import streams as stream_module
from mhrun.random.philox import LOW, enough, philox
from mhrun.target import Target


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
    draws = Draws(Streams(key, 7, first_chain=2), 2**33 + 5)
    split = pieces.split_key(key)
    step = pieces.u64(2**33 + 5)
    normal, uniform = draws.normal(Purpose.PROPOSAL, 6), draws.uniform(Purpose.ACCEPT)
    for row in range(7):
        at = Draw(split, step, pieces.u64(2 + row))
        ours = [z for block in range(2) for z in pieces.normals(pieces.u64(block), pieces.PROPOSAL, at)]
        assert normal[row].numpy() == pytest.approx(ours[:6], rel=1e-12)
        assert float(uniform[row]) == pieces.uniform(pieces.ACCEPT, at)


@pytest.mark.slow
def test_normals_of_a_vector_are_those_of_its_blocks():
    """However many: the first few are made in one loop, more in tiles, and the last are a part of a block."""
    at = Draw(pieces.split_key(derive_key(6, "vector")), pieces.u64(9), pieces.u64(1))
    blocks = 2 * pieces.BLOCKS + 3
    each = np.ravel([pieces.normals(pieces.u64(block), pieces.NOISE, at) for block in range(blocks)])
    few, tile = 4 * pieces.FEW, 4 * pieces.BLOCKS
    for count in (1, 4, 7, few - 1, few, few + 2, tile, tile + 1, 2 * tile - 1, 2 * tile + 10):
        for dtype, tolerance in (("float64", 1e-12), ("float32", 1e-6)):
            found = np.empty(count, dtype)
            pieces.fill_normals(found, pieces.NOISE, at)
            made = normals(derive_key(6, "vector"), 9, np.array([1]), count, int(Purpose.NOISE), 0, dtype)[0]
            np.testing.assert_allclose(found, each[:count], rtol=tolerance)
            np.testing.assert_allclose(made, each[:count], rtol=tolerance)


SIZES = [
    *((1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 2), (4, 3), (5, 5)),
    *((999, 499), (999, 500), (999, 998), (1000, 499), (1000, 500), (1000, 501), (1000, 999), (1000, 1000)),
    *((1025, 1025), (13007, 101), (13007, 6503), (13007, 6504), (2**31 - 1, 1), (2**31 - 1, 50)),
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_both_paths_draw_the_same_minibatches(n, m):
    key = derive_key(1, "batches")
    plain, fast = Streams(key, 5), Streams(key, 5, compiled=True)
    for replacement in (True, False):
        one, two = Draws(plain, 3), Draws(fast, 3)
        for step in (3, 4, 90, 2**33 + 7):
            one.step = two.step = step
            batch = one.index(n, m, replacement=replacement)
            assert batch.shape == (5, m)
            assert batch.dtype == torch.int64
            assert torch.equal(batch, two.index(n, m, replacement=replacement))
            some = torch.tensor([3, 0])
            with_rows = Draws(fast, step).index(n, m, replacement=replacement, rows=some)
            assert torch.equal(with_rows, batch[some])
            assert torch.equal(
                Draws(plain, step).index(n, m, replacement=replacement, rows=some), batch[some]
            )
            common = Draws(plain, step).index(n, m, replacement=replacement, common=True)
            assert torch.equal(common, batch[:1])


@pytest.mark.parametrize(("n", "m"), [size for size in SIZES if size[1] > 1])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_minibatch_without_replacement_grows_by_going_on(n, m, compiled):
    """In parts of any size, for fewer and fewer chains, from any place on: the indices of one draw."""
    streams = Streams(derive_key(1, "grow"), 4, compiled=compiled)
    whole = Draws(streams, 9).index(n, m, replacement=False)
    for part in (1, 7, 64, 1023):
        if m // part > 40:
            continue
        draws, rows = Draws(streams, 9), torch.arange(4)
        for count, start in enumerate(range(0, m, part)):
            stop = min(start + part, m)
            found = draws.index(n, stop - start, replacement=False, start=start, rows=rows)
            assert torch.equal(found, whole[rows, start:stop])
            if count % 3 == 1 and len(rows) > 1:
                rows = rows[1:]
    steps, chains = torch.tensor([9, 9, 9]), torch.tensor([2, 0, 2])
    for start in {0, m // 3, m - 1}:
        found = streams.permuted(steps, chains, n, start, m)
        assert torch.equal(found, whole[chains, start:])


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 2), (3, 3), (10, 6), (11, 11), (2000, 1001), (2001, 2001)])
def test_a_few_permutations_need_no_compiled_loop(n, m, monkeypatch):
    streams, compiled = Streams(derive_key(3, "few"), 3), Streams(derive_key(3, "few"), 3, compiled=True)
    step, chain = torch.tensor([(7 << 32) + 5]), torch.tensor([2])
    for start in {0, n // 3, n // 2}:
        expected = compiled.permuted(step, chain, n, start, m, use=3)
        with monkeypatch.context() as patch:
            patch.setattr("mhrun.random.streams.permutations", None)
            assert torch.equal(streams.permuted(step, chain, n, start, m, use=3), expected)
    calls = []
    monkeypatch.setattr(
        "mhrun.random.streams.permutations", lambda *_: calls.append(1) or np.zeros((1, m), np.int64)
    )
    for _ in range(100):
        streams.permuted(step, chain, n, 0, m)
    assert len(calls) == 100 - 64 + len({0, n // 3, n // 2})  # from then on compiling pays


@pytest.mark.parametrize(
    ("n", "largest", "bits"),
    [(3000, 3000, 0), (3000, 187, 16), pytest.param(80_000, 5000, 32, marks=pytest.mark.slow)],
)
def test_a_workspace_forgets_what_was_drawn_before(n, largest, bits):
    """Bits that are cleared one by one or all at once, and a table whose positions are numbered on until they end."""
    key = derive_key(2, "work")
    work = indices.workspace(n, largest)
    assert 8 * work.table.itemsize * (len(work.table) > 0) == bits
    split = pieces.split_key(key)
    index = np.empty(n + 1, np.int64)
    whole = {
        step: permutations(key, np.array([step]), np.array([1]), n, 0, largest)[0] for step in range(1, 5)
    }
    if bits:
        work.at[2] = 2**bits - 5 * len(work.links)
    began_anew, before = 0, work.at[2]
    with np.errstate(over="ignore"):
        for m in (5, 40, 41, 150, 187, 187, 1499, 1500, 1501, 12, 1600, 4999, 5000, 1):
            for step, order in whole.items():
                if m <= largest:
                    draw = Draw(split, pieces.u64(step), pieces.u64(1))
                    indices.distinct(index, m, pieces.u64(n), draw, pieces.MINIBATCH, 0, work)
                    assert (index[:m] == order[:m]).all()
                    began_anew += work.at[2] < before
                    before = work.at[2]
    assert began_anew == bool(bits)


@pytest.mark.parametrize("n", [2, 15, 16, 100, 3000, 100_000])
def test_a_growing_minibatch_moves_from_the_table_to_the_bits(n):
    """Minibatches in parts, some of which outgrow the table, from one workspace: the data of one draw."""
    key, rng = derive_key(2, "growing"), np.random.default_rng(4)
    work, split, index = indices.workspace(n, n, grows=True), pieces.split_key(key), np.empty(n + 1, np.int64)
    assert work.few == min(n // 16, indices.BEGINNING)
    work.at[2] = 2**16 - 2 * len(work.links) - 20  # so that positions begin anew within the test
    began_anew = False
    for step in range(40):
        whole = permutations(key, np.array([step]), np.array([1]), n, 0, n)[0]
        stop = n if step % 5 == 0 else int(rng.integers(1, max(2, 3 * work.few)))
        start = 0
        draw = Draw(split, pieces.u64(step), pieces.u64(1))
        with np.errstate(over="ignore"):
            while start < min(stop, 4000):
                m = int(rng.integers(1, min(n - start, max(2, work.few)) + 1))
                indices.growing(index, m, pieces.u64(n), draw, pieces.MINIBATCH, start, work)
                assert (index[:m] == whole[start : start + m]).all(), (step, start, m)
                start += m
        began_anew |= work.at[2] < 2**15
    assert began_anew or not work.few


def test_minibatches_of_too_many_data_are_drawn_with_replacement():
    """The table and the bits have positions of 32 bits."""
    assert indices.workspace(2**32, 100, replacement=True).few == 0
    with pytest.raises(UserError, match="4,294,967,296 data are drawn with replacement only"):
        indices.workspace(2**32, 100)


def test_a_chain_does_not_see_its_neighbours_nor_the_prefetching():
    key = derive_key(9, "alone")
    many, one = Streams(key, 8), Streams(key, 1, first_chain=5)
    for request in (
        lambda d: d.normal(Purpose.PROPOSAL, 3),
        lambda d: d.uniform(Purpose.ACCEPT),
        lambda d: d.index(5000, 40, replacement=False),
        lambda d: d.index(5000, 40, replacement=True),
    ):
        running = Draws(many, 1)
        for step in (1, 2, 3, 70, 200):
            running.step = step
            fresh = Draws(one, step)
            assert torch.equal(request(running)[5], request(fresh)[0])


def test_purposes_and_steps_and_keys_have_different_numbers():
    words = [
        Streams(key, 2).words(purpose, step, 1, 2).flatten().tolist()
        for key in (derive_key(0, "a"), derive_key(0, "b"), derive_key(1, "a"))
        for purpose in Purpose
        for step in (0, 1, 2**32)
    ]
    everything = [w for part in words for w in part]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize(
    ("n", "m"), [(1025, 1025), (5000, 5000), (13007, 900), (10**6, 3000), (2**31 - 1, 2000)]
)
def test_batches_without_replacement_do_not_repeat(n, m):
    index = Draws(Streams(derive_key(2, "distinct"), 5), 1).index(n, m, replacement=False)
    assert index.min() >= 0
    assert index.max() < n
    assert all(len(set(row.tolist())) == m for row in index)


def permuted(name, n, m, count):
    """Return minibatches (count, m), half of them over steps and half over chains."""
    half, key = count // 2, derive_key(3, name)
    steps, chains = np.arange(1, half + 1), np.arange(half)
    parts = [
        permutations(key, steps, np.full(half, 7), n, 0, m),
        permutations(key, np.full(half, half + 1), chains, n, 0, m),
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize(("n", "m"), [(2, 1), (2, 2), (3, 2), (3, 3), (4, 2), (4, 3), (4, 4), (5, 4), (5, 5)])
def test_all_ordered_minibatches_of_few_data_are_equally_likely(n, m):
    index = permuted(f"orders {n} {m}", n, m, 120_000)
    code = index @ n ** np.arange(m)
    orders = [np.dot(order, n ** np.arange(m)) for order in itertools.permutations(range(n), m)]
    assert np.isin(code, orders).all()
    counts = np.array([(code == order).sum() for order in orders])
    assert_counts(counts, np.full(len(orders), 1 / len(orders)), f"orders of {m} of {n}")


@pytest.mark.parametrize(
    ("n", "m"),
    [(999, 499), (999, 998), (1000, 1), (1000, 500), (1000, 501), (1000, 999), (1000, 1000), (1025, 40)],
)
def test_places_data_and_pairs_of_a_minibatch_are_uniform(n, m):
    """Each place by itself, each datum's place, and differences of two places of a batch."""
    count = 20_000
    index = permuted(f"places {n} {m}", n, m, count)
    assert all(np.bincount(row, minlength=n).max() == 1 for row in index[:50])
    for place in {0, m // 3, n // 2 - 1, n // 2, n // 2 + 1, m - 2, m - 1} & set(range(m)):
        assert_counts(np.bincount(index[:, place], minlength=n), np.full(n, 1 / n), f"place {place}")
    for first, second in {(0, 1), (0, m - 1), (n // 2 - 1, n // 2), (m - 2, m - 1)}:
        if 0 <= first < second < m:
            gap = (index[:, second] - index[:, first]) % n
            counts = np.bincount(gap, minlength=n)[1:]
            assert_counts(counts, np.full(n - 1, 1 / (n - 1)), f"places {first} and {second}")
            cells = index[:, first] * 20 // n * 20 + index[:, second] * 20 // n
            size = np.bincount(np.arange(n) * 20 // n)
            both = (np.outer(size, size) - np.diag(size)) / (n * (n - 1))
            assert_counts(np.bincount(cells, minlength=400), both.ravel(), f"pairs at {first} and {second}")
    for datum in (0, 1, n // 2, n - 1):  # in the minibatch with probability m / n, and then anywhere
        where = (index == datum).nonzero()[1]
        assert m < n or len(where) == count
        if m < n:
            inside = np.array([len(where), count - len(where)])
            assert_counts(inside, np.array([m / n, 1 - m / n]), f"datum {datum}")
        if m >= 10:
            tenths = np.bincount(np.arange(m) * 10 // m) / m
            assert_counts(np.bincount(where * 10 // m, minlength=10), tenths, f"places of {datum}")


def test_minibatches_of_many_data_are_uniform():
    n, m = 2**31 - 1, 40
    index = permuted("many", n, m, 20_000)
    counts = np.histogram(index, bins=64, range=(0, n))[0]
    assert_counts(counts, np.full(64, 1 / 64), "all")
    assert_counts(np.bincount(index.ravel() % 7, minlength=7), np.full(7, 1 / 7), "residues")


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(1025, 40), (13007, 100), (1_000_000, 1000), (300, 290)])
def test_minibatches_have_the_moments_of_sampling_without_replacement(n, m):
    """Means of functions that a poor permutation would betray: trends, parities, rows and columns."""
    count = min(20_000, 10_000_000 // m)
    index = permuted(f"moments {n}", n, m, count)
    position = np.arange(n)
    b = math.isqrt(n) + 1
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


def test_candidates_nearly_always_suffice():
    """The bound is one: against the exact chance of fewer than m distinct values, by recursion."""
    for n, m in ((4, 2), (10, 5), (1000, 3), (1000, 100), (1000, 500), (13007, 40)):
        count = enough(n, m)
        chance = np.zeros(m + 1)  # of so many distinct values; m and more in one
        chance[0] = 1.0
        seen = np.arange(m + 1) / n
        for _ in range(count):
            new = chance * (1 - seen)
            new[m] = 0.0
            kept = chance - new
            kept[1:] += new[:-1]
            chance = kept
        assert chance[:m].sum() < 1e-18
        assert count < m + 60 + 0.9 * m


def test_streams_that_are_too_short_are_lengthened(monkeypatch):
    whole = Draws(Streams(derive_key(4, "short"), 30), 2).index(50, 25, replacement=False)
    monkeypatch.setattr(stream_module, "enough", lambda n, m: m)
    assert torch.equal(Draws(Streams(derive_key(4, "short"), 30), 2).index(50, 25, replacement=False), whole)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (10, 3), (1001, 100), (64, 64)])
def test_a_pass_is_a_permutation_in_pieces(n, m, compiled, monkeypatch):
    """Whatever part is cached, and wherever a run resumes."""
    streams = Streams(derive_key(5, "pass"), 3, compiled=compiled)
    target = Target(None, NoData() if n == 1 else Dataset.of(np.zeros(n, np.float32)))
    pieces_ = n // m

    def run(steps):
        draws = Draws(streams, 1)
        found = []
        for step in steps:
            draws.step = step
            found.append(target.batches.piece(draws, m))
        return found

    whole = run(range(1, 3 * pieces_ + 1))
    for number in range(3):
        order = torch.cat(whole[number * pieces_ : (number + 1) * pieces_], 1)
        assert order.shape == (3, pieces_ * m)
        assert all(len(set(row.tolist())) == pieces_ * m for row in order)
        numbers = torch.arange(3)
        alone = streams.permuted(torch.full_like(numbers, number + 1), numbers, n, 0, pieces_ * m, 1)
        assert torch.equal(order, alone)
    for first in (2, pieces_, 2 * pieces_ + 1):
        for a, b in zip(run(range(first, 3 * pieces_ + 1)), whole[first - 1 :], strict=True):
            assert torch.equal(a, b)
    for held in (1, 3 * 2 * m, 3 * 5 * m + 1):
        monkeypatch.setattr(kept_permutations, "_HELD", held)
        for a, b in zip(run(range(1, 3 * pieces_ + 1)), whole, strict=True):
            assert torch.equal(a, b)


def test_independent_indices_are_uniform_where_a_32_bit_modulo_is_not():
    # At this n, 2^32 mod n is large: a modulo of 32-bit words would favour the lower third by half.
    n = 3 * 2**29 - 1
    index = Draws(Streams(derive_key(8, "large"), 400), 1).index(n, 2000, replacement=True).numpy().ravel()
    counts = np.histogram(index, bins=60, range=(0, n))[0]
    assert_counts(counts, np.full(60, 1 / 60), "large n")


def test_normals_and_uniforms_follow_their_distribution():
    draws = Draws(Streams(derive_key(7, "laws"), 1000), 1)
    z = draws.normal(Purpose.NOISE, 1000).numpy().ravel()
    u = np.concatenate(
        [Draws(Streams(derive_key(7, "u"), 1000), s).uniform(Purpose.ACCEPT).numpy() for s in range(200)]
    )
    assert stats.kstest(z, "norm").pvalue > ALPHA
    assert stats.kstest(u, "uniform").pvalue > ALPHA
    pairs = np.histogram2d(stats.norm.cdf(z[::2]), stats.norm.cdf(z[1::2]), bins=16, range=((0, 1), (0, 1)))[
        0
    ]
    assert_counts(pairs.ravel(), np.full(256, 1 / 256), "pairs of normals")


@pytest.mark.parametrize("compiled", [False, True])
def test_parts_of_a_batch_with_repeats_are_independent(compiled):
    draws = Draws(Streams(derive_key(9, "grow"), 400, compiled=compiled), 4)
    one = draws.index(10**6, 50, replacement=True).double()
    two = draws.index(10**6, 50, replacement=True, start=50).double()
    r = np.corrcoef(one.flatten(), two.flatten())[0, 1]
    assert abs(r) < 5 / np.sqrt(one.numel())  # 5 sigma: 6e-7
    assert not set(one[0].tolist()) & set(two[0].tolist())


def test_uses_of_a_purpose_have_numbers_of_their_own():
    draws = Draws(Streams(derive_key(10, "uses"), 20_000), 1)
    columns = [draws.uniform(Purpose.ACCEPT, use).numpy() for use in range(4)]
    r = np.corrcoef(columns) - np.eye(4)
    assert np.abs(r).max() < 5.5 / np.sqrt(20_000)


KINDS = {
    "normal": lambda draws: draws.normal(Purpose.NOISE, 4),
    "uniforms": lambda draws: draws.uniforms(Purpose.NOISE, 4),
    "uniform": lambda draws: draws.uniform(Purpose.NOISE),
    "index": lambda draws: draws.index(4, 4, replacement=True),
    "arrivals": lambda draws: torch.stack(list(draws.arrivals(4, 0, 4))),
    "number": lambda draws: draws.number("normal", lambda step: step),
    "coin": lambda draws: torch.tensor(draws.coin("x", 1)),
    "part": lambda draws: draws.part("x", torch.arange(draws.chains)).uniform(Purpose.EXCHANGE),
}


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_numbers_of_one_kind_are_not_those_of_another_drawn_before(first, second):
    """Numbers of several steps are cached, and two kinds may have the same purpose, use and count."""
    for chains in (1, 3):
        draws, alone = (Draws(Streams(5, chains), 1) for _ in range(2))
        KINDS[first](draws)
        for step in (2, 3):
            draws.step = alone.step = step
            assert torch.equal(KINDS[second](draws), KINDS[second](alone))
        if {first, second} == {"coin", "part"}:
            KINDS[first](draws)


def test_numbers_are_drawn_once():
    draws = Draws(Streams(derive_key(11, "once"), 2), 1)
    draws.uniform(Purpose.ACCEPT)
    with pytest.raises(UserError, match="drawn twice"):
        draws.normal(Purpose.ACCEPT, 1)
    draws.normal(Purpose.ACCEPT, 1, use=1)
    draws.index(9, 3, replacement=False)
    draws.index(9, 3, replacement=False, start=3)
    with pytest.raises(
        UserError, match=r"data of a minibatch from number 3 on are drawn twice .*: keep them"
    ):
        draws.index(9, 2, replacement=False, start=3)
    draws.step = 2
    draws.uniform(Purpose.ACCEPT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [MANY, MANY + 1, MANY + 6, MANY + 7])
def test_many_normals_of_both_generators_are_one_s(dtype, count):
    """To rounding; and they are those that fewer normals begin with."""
    key = derive_key(12, "many")
    for step in (1, 2**33 + 5):
        plain = Draws(Streams(key, 3, first_chain=2), step)
        found = Draws(Streams(key, 3, first_chain=2, compiled=True), step).normal(
            Purpose.NOISE, count, 3, dtype
        )
        wanted = plain.normal(Purpose.NOISE, count, 3, dtype)
        assert found.dtype == wanted.dtype == dtype
        assert found.shape == wanted.shape == (3, count)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-6
        assert torch.allclose(found, wanted, rtol=tolerance, atol=tolerance)
        few = Draws(Streams(key, 3, first_chain=2), step).normal(Purpose.NOISE, MANY - 1, 3, dtype)
        assert torch.equal(few, wanted[:, : MANY - 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("compiled", [False, True])
def test_many_normals_follow_their_distribution_and_are_each_chain_s_own(compiled, dtype):
    key, count = derive_key(13, "many"), 20_001

    def drawn(chains, step, purpose=Purpose.NOISE, use=0, first=0):
        streams = Streams(key, chains, first_chain=first, compiled=compiled)
        return Draws(streams, step).normal(purpose, count, use, dtype).numpy()

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
    draws = Draws(Streams(key, 1, compiled=compiled), 1)
    draws.normal(Purpose.NOISE, MANY)
    with pytest.raises(UserError, match="drawn twice"):
        draws.normal(Purpose.NOISE, MANY)
    draws.step = 2
    assert not np.array_equal(draws.normal(Purpose.NOISE, count)[0].numpy(), drawn(1, 1)[0])


def test_a_use_out_of_range_names_the_numbers_of_a_loop_of_any_length():
    draws, rows = Draws(Streams(derive_key(15, "trial"), 6), 4), torch.tensor([0, 2])
    with pytest.raises(UserError, match=r"use = 16 is out of range: .* take the numbers from draws\.trial\("):
        draws.uniform(Purpose.PROPOSAL, use=16)
    found = torch.stack([draws.trial("shrink", rows, k, 40).uniform(Purpose.PROPOSAL) for k in range(40)])
    assert len(found.unique()) == 80


def test_the_numbers_of_a_part_are_drawn_once_a_step_for_the_requested_chains():
    draws = Draws(Streams(derive_key(15, "part"), 6), 4)
    some, others = torch.tensor([0, 2]), torch.tensor([1, 2, 5])
    first = draws.part("exchange", some, 2).uniform(Purpose.EXCHANGE)
    with pytest.raises(UserError, match="drawn twice"):
        draws.part("exchange", some, 2).uniform(Purpose.EXCHANGE)
    more = draws.part("exchange", others, 2).uniform(Purpose.EXCHANGE)
    assert more.shape == (3,)
    assert more[1] == first[1]  # those of chain 2
    draws.step = 6
    assert not torch.equal(draws.part("exchange", others, 2).uniform(Purpose.EXCHANGE), more)
    # A coin selects a kind of step: a second call returns the same, as do all steps that share it.
    coins = [(draws.coin("side", 2), draws.coin("side", 2)) for draws.step in range(2, 400)]
    assert all(one is two for one, two in coins)
    assert all(coins[k] == coins[k + 1] for k in range(0, 396, 2))
    assert 60 < sum(one for one, _ in coins[::2]) < 139  # 199 fair coins, 5.5 sd


def test_numbers_ahead_of_many_kinds_take_bounded_memory():
    draws = Draws(Streams(derive_key(16, "kinds"), 2), 1)
    for step in range(1, 300):
        draws.step = step
        draws.index(10_000, step, replacement=True)
    assert len(draws._kept) <= 64
    again = Draws(Streams(derive_key(16, "kinds"), 2), 299)
    draws.step = 298
    draws.index(10_000, 3, replacement=True)
    draws.step = 299
    assert torch.equal(draws.index(10_000, 3, replacement=True), again.index(10_000, 3, replacement=True))


@pytest.mark.parametrize("compiled", [False, True])
def test_streams_of_some_chains_do_not_depend_on_the_others(compiled):
    whole = Streams(derive_key(14, "of"), 6, first_chain=3, compiled=compiled)
    some, one = whole.of("trial", torch.tensor([4, 0, 5])), whole.of("trial", torch.tensor([0]))
    assert (some.chains, one.chains) == (3, 1)

    def request(streams, step):
        draws = Draws(streams, step)
        return [
            draws.uniform(Purpose.ACCEPT)[:, None],
            draws.normal(Purpose.PROPOSAL, 5),
            draws.normal(Purpose.NOISE, MANY),
            draws.index(2000, 7, replacement=False).double(),
            draws.index(2000, 7, replacement=True, use=1).double(),
        ]

    named = whole.of("other", torch.tensor([4, 0, 5]))
    for step in (1, 500):
        found = request(some, step)
        for a, b in zip(found, request(one, step), strict=True):
            assert torch.equal(a[1], b[0])
        # Numbers of their own: neither the parent's nor another name's, nor those of the step before.
        parents = [values[[4, 0, 5]] for values in request(whole, step)]
        for others in (parents, request(named, step), request(some, step + 1)):
            for a, b in zip(found, others, strict=True):
                assert not (a == b).all(-1).any()
    again = whole.of("trial", torch.tensor([2])).of("deeper", torch.tensor([0]))
    direct = whole.of("trial", torch.arange(6)).of("deeper", torch.tensor([2]))
    assert torch.equal(Draws(again, 1).uniform(Purpose.ACCEPT), Draws(direct, 1).uniform(Purpose.ACCEPT))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_many_normals_of_a_gpu_are_a_function_of_the_step():
    key = derive_key(15, "many")
    one, two = (Draws(Streams(key, 3, "cuda"), 5).normal(Purpose.NOISE, 20_001) for _ in range(2))
    assert torch.equal(one, two)
    other = Draws(Streams(key, 3, "cuda"), 6).normal(Purpose.NOISE, 20_001)
    assert abs(float(torch.corrcoef(torch.stack([one[0], other[0]]))[0, 1])) < 5.5 / math.sqrt(20_001)
    assert stats.kstest(one.cpu().numpy().ravel(), "norm").pvalue > ALPHA


def test_arrivals_are_equal_in_both_paths_and_in_parts():
    key, n = derive_key(21, "arrivals"), 1_234_567
    plain = Draws(Streams(key, 5, first_chain=2), 7).arrivals(n, 0, 40)
    fast = Draws(Streams(key, 5, first_chain=2, compiled=True), 7).arrivals(n, 0, 40)
    assert torch.equal(plain.slot, fast.slot)
    for one, two in zip(plain, fast, strict=True):
        assert torch.allclose(one.double(), two.double(), rtol=1e-14)
    rows, draws = torch.tensor([3, 1]), Draws(Streams(key, 5, first_chain=2), 7)
    later = draws.arrivals(n, 25, 40, rows)
    for one, two in zip(later, plain, strict=True):
        assert torch.equal(one, two[rows, 25:])
    alone = Draws(Streams(key, 1, first_chain=4), 7).arrivals(n, 0, 40)
    assert torch.equal(alone.gap[0], plain.gap[2])
    with pytest.raises(UserError, match="twice"):
        draws.arrivals(n, 25, 30)


def test_the_numbers_of_arrivals_follow_their_distributions():
    marks = Draws(Streams(derive_key(22, "arrivals"), 300), 1).arrivals(7, 0, 200)
    assert stats.kstest(marks.gap.numpy().ravel(), stats.expon.cdf).pvalue > ALPHA
    for uniform in (marks.coin, marks.uniform):
        assert stats.kstest(uniform.numpy().ravel(), stats.uniform.cdf).pvalue > ALPHA
    assert stats.chisquare(np.bincount(marks.slot.numpy().ravel(), minlength=7)).pvalue > ALPHA


def test_normals_that_are_drawn_ahead_are_not_overwritten():
    """Compiled moves write into normals of long rows, which must be numbers of their own."""
    from mhrun.native.vectors import LONG
    from mhrun.random import MANY

    assert LONG >= MANY
