"""Elementary functions in plain arithmetic, which the compiler can vectorise.

numba's `math.exp` and `math.log` are calls for one number at a time. These are polynomials on a short interval,
accurate to a few units in the last place; the tests bound the error. Whole numbers are of 32 bits where they become
float64 or come from it: AVX2 has no conversions of 64 bits. The coefficients are of Taylor series, or where
shorter polynomials save time, of interpolation at Chebyshev's points (mpmath's `chebyfit`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mhrun.native.compiler import piece

f32, i32, u32 = np.float32, np.int32, np.uint32
f64, i64 = np.float64, np.int64

LOG2E = 1.4426950408889634
# log 2 in two parts: k * LN2_HIGH is exact for the k that occur.
LN2_HIGH_32, LN2_LOW_32 = f32(0.693359375), f32(-2.12194440e-4)
LN2_HIGH_64, LN2_LOW_64 = 0.6931471803691238, 1.9082149292705877e-10


@piece
def exp_negative_32(x: Any) -> Any:
    """exp(x) for float32 x <= 0; exp(-87) below -87."""
    x = max(x, f32(-87.0))
    k = i32(x * f32(LOG2E) - f32(0.5))
    r = x - f32(k) * LN2_HIGH_32 - f32(k) * LN2_LOW_32  # |r| <= log(2)/2
    p = f32(1 / 5040)
    p = p * r + f32(1 / 720)
    p = p * r + f32(1 / 120)
    p = p * r + f32(1 / 24)
    p = p * r + f32(1 / 6)
    p = p * r + f32(0.5)
    p = p * r + f32(1.0)
    p = p * r + f32(1.0)
    return p * i32((k + i32(127)) << i32(23)).view(np.float32)


@piece
def tanh_32(x: Any) -> Any:
    """tanh(x) for float32; NaN for NaN. Near 0 by a polynomial of Cephes (`tanhf.c`), elsewhere by exp(-2 |x|)."""
    a = abs(x)
    q = x * x
    p = f32(-5.70498872745e-3)
    p = p * q + f32(2.06390887954e-2)
    p = p * q + f32(-5.37397155531e-2)
    p = p * q + f32(1.33314422036e-1)
    p = p * q + f32(-3.33332819422e-1)
    near = x + x * q * p
    e = exp_negative_32(f32(-2.0) * (a if a < f32(44.0) else f32(44.0)))
    far = (f32(1.0) - e) / (f32(1.0) + e)
    far = -far if x < f32(0.0) else far
    y = near if a < f32(0.625) else far
    return y if x == x else x


@piece
def sigmoid_32(x: Any) -> Any:
    """1 / (1 + exp(-x)) for float32; NaN for NaN, and below -87 as at -87."""
    a = abs(x)
    e = exp_negative_32(-a if a < f32(87.0) else f32(-87.0))
    y = (e if x < f32(0.0) else f32(1.0)) / (f32(1.0) + e)
    return y if x == x else x


@piece
def log_of_ratio_32(e: Any, d: Any) -> Any:
    """log((1 + e) / (1 + d)) for float32 e and d in [0, 1]: 2 atanh z with |z| <= 1/3."""
    z = (e - d) / (f32(2.0) + e + d)
    q = z * z
    p = f32(1 / 13)
    p = p * q + f32(1 / 11)
    p = p * q + f32(1 / 9)
    p = p * q + f32(1 / 7)
    p = p * q + f32(1 / 5)
    p = p * q + f32(1 / 3)
    p = p * q + f32(1.0)
    return f32(2.0) * z * p


@piece
def exp_negative_64(x: Any) -> Any:
    """exp(x) for float64 x <= 0; exp(-700) below -700."""
    x = max(x, -700.0)
    k = i32(x * LOG2E - 0.5)
    r = x - f64(k) * LN2_HIGH_64 - f64(k) * LN2_LOW_64
    p = 2.510038549551032e-08
    p = p * r + 2.7620088445409746e-07
    p = p * r + 2.7557268459997064e-06
    p = p * r + 2.4801521295954376e-05
    p = p * r + 0.00019841269863053618
    p = p * r + 0.0013888888917213717
    p = p * r + 0.008333333333330062
    p = p * r + 0.04166666666662413
    p = p * r + 0.16666666666666669
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * i64(i64(k + i32(1023)) << i64(52)).view(np.float64)


@piece
def tanh_64(x: Any) -> Any:
    """tanh(x) for float64; NaN for NaN. Near 0 by a rational function of Cephes (`tanh.c`), elsewhere as `tanh_32`."""
    a = abs(x)
    q = x * x
    p = (-9.64399179425052238628e-1 * q - 9.92877231001918586564e1) * q - 1.61468768441708447952e3
    d = ((q + 1.12811678491632931402e2) * q + 2.23548839060100448583e3) * q + 4.84406305325125486048e3
    near = x + x * q * (p / d)
    e = exp_negative_64(-2.0 * (a if a < 44.0 else 44.0))
    far = (1.0 - e) / (1.0 + e)
    far = -far if x < 0.0 else far
    y = near if a < 0.625 else far
    return y if x == x else x


@piece
def sigmoid_64(x: Any) -> Any:
    """1 / (1 + exp(-x)) for float64; NaN for NaN, and below -700 as at -700."""
    a = abs(x)
    e = exp_negative_64(-a if a < 700.0 else -700.0)
    y = (e if x < 0.0 else 1.0) / (1.0 + e)
    return y if x == x else x


@piece
def _twice_atanh_64(z: Any) -> Any:
    """2 atanh z for float64 z with |z| <= 1/3."""
    q = z * z
    p = 0.08082022805971766
    p = p * q + 0.04400369243072337
    p = p * q + 0.06000536404795356
    p = p * q + 0.06657072104827468
    p = p * q + 0.07692785032479312
    p = p * q + 0.09090894718066429
    p = p * q + 0.11111111358713932
    p = p * q + 0.1428571428355438
    p = p * q + 0.20000000000007292
    p = p * q + 0.3333333333333333
    p = p * q + 1.0
    return 2.0 * z * p


@piece
def log1p_unit_64(e: Any) -> Any:
    """log(1 + e) for float64 e in [0, 1]."""
    return _twice_atanh_64(e / (2.0 + e))


@piece
def log_of_ratio_64(e: Any, d: Any) -> Any:
    """log((1 + e) / (1 + d)) for float64 e and d in [0, 1]."""
    return _twice_atanh_64((e - d) / (2.0 + e + d))


@piece
def log_64(x: Any) -> Any:
    """log(x) for a normal float64 x > 0: 2 atanh s with |s| <= 0.172, by its series to s^23."""
    bits = f64(x).view(np.int64)
    k = (bits - i64(0x3FE6A09E667F3BCD)) >> i64(52)  # x / 2^k is in [sqrt(1/2), sqrt(2))
    f = i64(bits - (k << i64(52))).view(np.float64) - 1.0
    s = f / (2.0 + f)
    q = s * s
    p = 1 / 23
    p = p * q + 1 / 21
    p = p * q + 1 / 19
    p = p * q + 1 / 17
    p = p * q + 1 / 15
    p = p * q + 1 / 13
    p = p * q + 1 / 11
    p = p * q + 1 / 9
    p = p * q + 1 / 7
    p = p * q + 1 / 5
    p = p * q + 1 / 3
    return f64(k) * LN2_HIGH_64 + (2.0 * s + (2.0 * s * q * p + f64(k) * LN2_LOW_64))


@piece
def exp_64(x: Any) -> Any:
    """exp(x) for any float64: infinity above 700, exp(-700) below -700, and NaN of NaN."""
    e = exp_negative_64(-abs(x))
    y = 1.0 / e if x > 0.0 else e
    y = y if x <= 700.0 else np.inf
    return y if x == x else x


@piece
def log1p_64(z: Any) -> Any:
    """log(1 + z) for float64 z >= 0, also tiny or infinite, and NaN of NaN."""
    small, large = log1p_unit_64(min(z, 1.0)), log_64(1.0 + z)
    y = small if z <= 1.0 else large
    return y if z < np.inf else z


@piece
def cos_sin_64(t: Any) -> Any:
    """cos(2 pi t) and sin(2 pi t) for float64 t in [0, 1]: series on the eighth of a turn about a quarter turn."""
    k = i32(4.0 * t + 0.5)
    x = (t - f64(k) * 0.25) * 6.283185307179586
    q = x * x
    p = 1 / 355687428096000
    p = p * q - 1 / 1307674368000
    p = p * q + 1 / 6227020800
    p = p * q - 1 / 39916800
    p = p * q + 1 / 362880
    p = p * q - 1 / 5040
    p = p * q + 1 / 120
    p = p * q - 1 / 6
    s = x + x * q * p
    p = 1 / 20922789888000
    p = p * q - 1 / 87178291200
    p = p * q + 1 / 479001600
    p = p * q - 1 / 3628800
    p = p * q + 1 / 40320
    p = p * q - 1 / 720
    p = p * q + 1 / 24
    c = 1.0 - 0.5 * q + q * q * p
    odd = (k & i32(1)) != 0
    cosine, sine = s if odd else c, c if odd else s
    cosine = -cosine if ((k + i32(1)) & i32(2)) != 0 else cosine
    sine = -sine if (k & i32(2)) != 0 else sine
    return cosine, sine


@piece
def log_unit_32(a: Any) -> Any:
    """log((a + 1/2) / 2^32), float32, for a word a, uint32: 2 atanh s with |s| <= 0.172, by its series to s^9."""
    bits = f32(f32(a) + f32(0.5)).view(np.int32)
    k = i32((bits - i32(0x3F3504F3)) >> i32(23))  # the number over 2^k is in [sqrt(1/2), sqrt(2))
    f = i32(bits - (k << i32(23))).view(np.float32) - f32(1.0)
    # Near 1 from the other end: a does not fit into a float32, and a logarithm near 0 would be lost.
    below_one = (f32(u32(u32(0xFFFFFFFF) - a)) + f32(0.5)) * f32(-(2.0**-32))
    f = below_one if k == i32(32) else f
    s = f / (f32(2.0) + f)
    q = s * s
    p = f32(1 / 9)
    p = p * q + f32(1 / 7)
    p = p * q + f32(1 / 5)
    p = p * q + f32(1 / 3)
    return f32(k - i32(32)) * f32(0.6931471805599453) + (f32(2.0) * s + f32(2.0) * s * q * p)


@piece
def cos_sin_32(b: Any) -> Any:
    """cos(2 pi t) and sin(2 pi t), float32, for t = (b + 1/2) / 2^32 and a word b, uint32; see `cos_sin_64`."""
    k = u32(u32(b + u32(1 << 29)) >> u32(30))
    x = (f32(i32(u32(b - u32(k << u32(30))))) + f32(0.5)) * f32(6.283185307179586 * 2.0**-32)
    q = x * x
    p = f32(1 / 362880)
    p = p * q - f32(1 / 5040)
    p = p * q + f32(1 / 120)
    p = p * q - f32(1 / 6)
    s = x + x * q * p
    p = f32(-1 / 3628800)
    p = p * q + f32(1 / 40320)
    p = p * q - f32(1 / 720)
    p = p * q + f32(1 / 24)
    c = f32(1.0) - f32(0.5) * q + q * q * p
    odd = (k & u32(1)) != 0
    cosine, sine = s if odd else c, c if odd else s
    cosine = -cosine if (u32(k + u32(1)) & u32(2)) != 0 else cosine
    sine = -sine if (k & u32(2)) != 0 else sine
    return cosine, sine
