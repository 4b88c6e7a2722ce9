"""Matrix products of many chains with different weights.

On a CPU the products are computed chain by chain, which is faster than a batched product at these sizes. On AMD
processors oneDNN's float32 product is twice as fast as MKL's, torch's default. It is available through a private
function of torch only, so its presence and correctness are tested before use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from mhrun.errors import UserError


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
    for c in range(len(left)):
        transposed, operand = left[c].t(), right[c if len(right) > 1 else 0]
        if _product() is _onednn:
            out[c] = _onednn(transposed, operand.t(), None)
        else:
            torch.mm(transposed, operand, out=out[c])


def _by_chain(*factors: Tensor) -> bool:
    return all(f.device.type == "cpu" and f.dtype == torch.float32 for f in factors) and not (
        torch.is_grad_enabled() and any(f.requires_grad for f in factors)
    )


Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_selected: str | None = None


def select_product(name: str | None) -> str:
    """Select the product by name for all later calls, and return its name; None selects the one for this processor.

    The two products round differently, so a resumed run uses the one with which it started.

    Raises:
        UserError: the named product is not available.
    """
    global _selected
    if name == "onednn" and not _agrees():
        raise UserError(
            "This run started with a matrix product that torch does not provide here; resume it where it "
            "started, or restart it with runtime.force=true."
        )
    _selected = name
    _product.cache_clear()
    return "onednn" if _product() is _onednn else "torch"


@lru_cache(maxsize=1)
def _product() -> Product:
    """Return the function x weight^T + bias, (m, k), (h, k) and (h,) -> (m, h): the selected one, or the default."""
    onednn = _selected == "onednn" or (_selected is None and _amd() and _agrees())
    return _onednn if onednn else torch.nn.functional.linear


def _amd() -> bool:
    """Return whether this is an AMD processor; not decided by timing, so that runs are bit-identical."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _agrees() -> bool:
    """Return whether torch provides oneDNN's product and its result is correct."""
    x, weight = (torch.linspace(-1, 1, rows * 512).reshape(rows, 512) for rows in (128, 256))
    try:
        return torch.allclose(_onednn(x, weight, None), x @ weight.t(), rtol=1e-4, atol=1e-3)
    except Exception:  # a private function: it may be missing or have another signature
        return False


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
