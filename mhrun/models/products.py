"""Matrix products of many chains, each with weights of its own.

On a CPU a product is done chain by chain: it is large enough to keep the processor busy, and single products are
faster there than batched ones. Where torch can reach oneDNN's float32 product and it is the faster one (on
AMD processors twice as fast as MKL's), it is used; that is a private function of torch, so it is tried out first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x weight^T + bias: (C or 1, m, k), (C, h, k) and (C, h) -> (C, m, h)."""
    if not _by_chain(x, weight):
        return torch.matmul(x, weight.transpose(1, 2)) + bias[:, None]
    product = _product()
    parts = [product(x[c if len(x) > 1 else 0], weight[c], bias[c]) for c in range(len(weight))]
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def outer(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Fill out (C, h, k) with left^T right: (C, m, h) and (C or 1, m, k)."""
    if not _by_chain(left, right):
        torch.matmul(left.transpose(1, 2), right, out=out)
        return
    product = _product()
    for c in range(len(left)):
        out[c] = product(left[c].t(), right[c if len(right) > 1 else 0].t(), None)


def _by_chain(*factors: Tensor) -> bool:
    return all(f.device.type == "cpu" and f.dtype == torch.float32 for f in factors) and not (
        torch.is_grad_enabled() and any(f.requires_grad for f in factors)
    )


Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_settled: str | None = None


def settle(name: str | None) -> str:
    """Settle which product is used from now on, by name, and return its name; None: whichever is the faster here.

    The two round differently, and a stopwatch may decide otherwise another day: a run goes on with the one that it
    began with.
    """
    global _settled
    _settled = name
    _product.cache_clear()
    return "onednn" if _product() is _onednn else "torch"


@lru_cache(maxsize=1)
def _product() -> Product:
    """Return the faster of the two ways to x weight^T + bias, (m, k), (h, k) and (h,) -> (m, h)."""
    if _settled == "torch":
        return torch.nn.functional.linear
    try:
        x, weight = (torch.linspace(-1, 1, rows * 512).reshape(rows, 512) for rows in (128, 256))
        if not torch.allclose(_onednn(x, weight, None), x @ weight.t(), rtol=1e-4, atol=1e-3):
            return torch.nn.functional.linear
    except Exception:  # private: it may be gone, or be another
        return torch.nn.functional.linear
    if _settled == "onednn":
        return _onednn
    plain = _seconds(lambda: torch.nn.functional.linear(x, weight))
    return _onednn if _seconds(lambda: _onednn(x, weight, None)) < 0.9 * plain else torch.nn.functional.linear


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def _seconds(work: Callable[[], Tensor]) -> float:
    best = float("inf")
    for _ in range(9):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
