"""The series of `mhrun.native.maths` are as good as they say. Called as plain Python: no compiler."""

from __future__ import annotations

import numpy as np
from scipy import special

from mhrun.native import compiled, maths

u64 = np.uint64


def test_exponentials_to_a_few_units_in_the_last_place(rng):
    x = np.concatenate([-rng.exponential(15, 4000), -rng.random(1000), [0.0]])
    single = np.array([maths.exp_negative_32(np.float32(v)) for v in x])
    truth = np.exp(x.astype(np.float32).astype(np.float64))
    normal = x > -86
    assert np.abs(single[normal] / truth[normal] - 1).max() < 3 * 2.0**-24
    double = np.array([maths.exp_negative_64(v) for v in x])
    assert np.abs(double / np.exp(x) - 1).max() < 4 * 2.0**-53


def test_far_tails_are_nothing_and_not_garbage():
    assert 0 <= maths.exp_negative_32(np.float32(-1e30)) < 1e-37
    assert 0 <= maths.exp_negative_64(-1e300) < 1e-300


def test_exponentials_and_logarithms_of_any_number(rng):
    """In compiled loops and as plain Python; beyond their range they are what they are of infinity."""
    x = np.concatenate([rng.normal(size=4000) * 10.0 ** rng.integers(-12, 3, 4000), [0.0, 700.0, -699.0]])
    x = x[np.abs(x) <= 700]
    ours = np.array([maths.exp_64(v) for v in x])
    assert np.abs(ours / np.exp(x) - 1).max() < 6 * 2.0**-53
    z = np.concatenate([np.abs(x), 10.0 ** rng.uniform(-300, 300, 4000), [1.0, np.nextafter(1, 2)]])
    ours = np.array([maths.log1p_64(v) for v in z[z > 0]])
    assert np.abs(ours / np.log1p(z[z > 0]) - 1).max() < 6 * 2.0**-53
    assert maths.log1p_64(0.0) == 0

    def loop(values, exponentials, logarithms):
        for i in range(len(values)):
            exponentials[i], logarithms[i] = maths.exp_64(values[i]), maths.log1p_64(abs(values[i]))

    ends = np.array([0.0, np.inf, -np.inf, 701.0, 1e300, -1e300, np.nan])
    exponentials, logarithms = np.empty((2, len(ends)))
    compiled(loop)(ends, exponentials, logarithms)
    assert np.array_equal(exponentials[[0, 1, 3, 4]], [1.0, np.inf, np.inf, np.inf])
    assert (exponentials[[2, 5]] < 1e-300).all()
    assert np.isnan(exponentials[-1])
    assert np.allclose(logarithms[[0, 3, 4, 5]], np.log1p(np.abs(ends[[0, 3, 4, 5]])), rtol=1e-15)
    assert np.isinf(logarithms[[1, 2]]).all()
    assert np.isnan(logarithms[-1])


def test_activations_to_a_few_units_in_the_last_place(rng):
    """Near 0, where tanh loses no digits, in between, and far away; not a number stays so."""
    x = np.concatenate(
        [rng.normal(size=4000) * 10.0 ** rng.integers(-6, 2, 4000), [0.0, 0.625, -0.625, 90, -80]]
    )
    single = x.astype(np.float32)
    of_single = single.astype(np.float64)
    for ours, truth, most in (
        ([maths.tanh_32(v) for v in single], np.tanh(of_single), 3),
        ([maths.sigmoid_32(v) for v in single], special.expit(of_single), 4),
    ):
        assert np.abs(np.array(ours, float) - truth).max() < most * 2.0**-24
        known = (truth != 0) & (truth > 1e-37) | (truth < 0)
        assert np.abs(np.array(ours, float)[known] / truth[known] - 1).max() < 2 * most * 2.0**-24
    for double, truth in ((maths.tanh_64, np.tanh(x)), (maths.sigmoid_64, special.expit(x))):
        ours = np.array([double(v) for v in x])
        assert np.abs(ours - truth)[truth != 0].max() < 4 * 2.0**-53
        assert np.abs(ours[truth != 0] / truth[truth != 0] - 1).max() < 8 * 2.0**-53
    for piece, number in (
        (maths.tanh_32, np.float32),
        (maths.sigmoid_32, np.float32),
        (maths.tanh_64, float),
        (maths.sigmoid_64, float),
    ):
        assert np.isnan(piece(number(np.nan)))
        with np.errstate(all="ignore"):
            assert piece(number(np.inf)) == 1
            lowest = piece(number(-np.inf))
        assert lowest == -1 or 0 < lowest < 1e-37


def test_logarithms(rng):
    e, d = rng.random((2, 4000)).astype(np.float32)
    ours = np.array([maths.log_of_ratio_32(a, b) for a, b in zip(e, d, strict=True)])
    truth = np.log((1 + e.astype(float)) / (1 + d.astype(float)))
    assert np.abs(ours - truth).max() < 2.0**-22
    double = np.array([maths.log1p_unit_64(float(v)) for v in e])
    assert np.abs(double / np.log1p(e.astype(float)) - 1).max() < 6 * 2.0**-53
    e, d = rng.random((2, 4000))
    ratio = np.array([maths.log_of_ratio_64(a, b) for a, b in zip(e, d, strict=True)])
    assert np.abs(ratio - (np.log1p(e) - np.log1p(d))).max() < 4 * 2.0**-53
    ends = np.array([maths.log_of_ratio_64(1.0, 0.0), maths.log_of_ratio_64(0.0, 1.0)])
    assert np.abs(np.abs(ends) / np.log(2) - 1).max() < 4 * 2.0**-53


def test_logarithms_and_turns_of_random_words(rng):
    word = np.concatenate([rng.integers(0, 2**32, 4000), [0, 1, 2**31, 2**30, 3 * 2**30, 2**32 - 1]])
    u = (word + 0.5) * 2.0**-32
    ours = np.array([maths.log_64(v) for v in u])
    assert np.abs(ours - np.log(u)).max() < 8 * 2.0**-53
    assert np.abs(ours / np.log(u) - 1)[u < 0.99].max() < 6 * 2.0**-53
    cosine, sine = np.array([maths.cos_sin_64(v) for v in u]).T
    assert np.abs(cosine - np.cos(2 * np.pi * u)).max() < 8 * 2.0**-53
    assert np.abs(sine - np.sin(2 * np.pi * u)).max() < 8 * 2.0**-53


def test_single_precision_logarithms_and_turns_of_random_words(rng):
    """To a few units in the last place everywhere: also near 1, where the logarithm is near 0, and near whole turns."""
    edge = int(2**32 * 0.5**0.5)
    ends = [0, 1, 2, 2**24 - 1, 2**24 + 1, 2**29 - 1, 2**29, 2**31, 2**32 - 2**29, 2**32 - 2, 2**32 - 1]
    near = [edge + offset for offset in (-300, -1, 0, 1, 300)]
    word = np.concatenate([rng.integers(0, 2**32, 4000), 2**32 - rng.integers(1, 2**12, 500), ends, near])
    u = (word.astype(np.uint32) + 0.5) * 2.0**-32
    truth = np.log(u)
    truth[u > 0.9] = np.log1p(-((2.0**32 - 0.5 - word) * 2.0**-32))[u > 0.9]
    with np.errstate(over="ignore"):
        ours = np.array([maths.log_unit_32(np.uint32(w)) for w in word])
        cosine, sine = np.array([maths.cos_sin_32(np.uint32(w)) for w in word]).T
    assert ours.dtype == cosine.dtype == np.float32
    assert np.abs(ours / truth - 1).max() < 5 * 2.0**-24
    turn = (word.astype(float) + 0.5) * 2.0**-32
    assert np.abs(cosine - np.cos(2 * np.pi * turn)).max() < 3 * 2.0**-24
    assert np.abs(sine - np.sin(2 * np.pi * turn)).max() < 3 * 2.0**-24
    for quarter in range(4):  # where one of the two is near 0, and is that angle from the quarter turn
        near = np.arange(-200, 200)
        with np.errstate(over="ignore"):
            both = [maths.cos_sin_32(np.uint32((quarter * 2**30 + int(k)) % 2**32)) for k in near]
        small = np.array(both)[:, 1 - quarter % 2] * (1, -1, -1, 1)[quarter]
        assert np.abs(small / np.sin(2 * np.pi * (near + 0.5) * 2.0**-32) - 1).max() < 5 * 2.0**-24


def test_machine_code_is_found_whatever_was_imported_first(monkeypatch):
    """The key of numba's cache does not depend on whether torch or the program imported NumPy."""
    from numba.core.caching import dumps

    from mhrun.native.compiler import compiled

    def body(x):
        return u64(x) + np.exp(x)

    key = dumps((body,))
    monkeypatch.setattr(np, "__name__", "".join(("num", "py")))  # equal, and another object
    assert dumps((body,)) != key
    compiled(body)
    assert dumps((body,)) == key
