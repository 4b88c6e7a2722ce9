"""The number formats of matrix products and convolutions: of gradients, and of the ratios of acceptance tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from mhrun.errors import Refusal, check_choice
from mhrun.types.capabilities import TakesAutocast, offers

FP32, TF32, BF16 = "fp32", "tf32", "bf16"
PRECISIONS = (FP32, TF32, BF16)
SMALL_SCALE = 100.0
"""The largest n/T at which rounding of log-likelihoods to TF32 or bfloat16 may enter an acceptance ratio.

A mean log-likelihood difference is biased by up to 1e-3 in bfloat16, and a ratio has n/T times that.
"""


class Precision(NamedTuple):
    """The formats of products; parameters, momenta, noise and sums keep the dtype of the state.

    - ``fp32``: that of the state, with TF32 off.
    - ``tf32``: products of float32 rounded to 10 bits, on NVIDIA GPUs.
    - ``bf16``: products and activations in bfloat16 by `torch.autocast`.
    """

    gradients: str = FP32
    ratio: str = FP32  # of the log-likelihoods of acceptance tests on minibatches of fixed size


def check_precision(name: Any, device: torch.device, model: Any, surrogate: str) -> None:
    """Check that gradients can be computed in this format.

    Raises:
        Refusal: an unknown format, or one that the device, the model or a surrogate does not allow.
    """
    check_choice("precision", name, PRECISIONS)
    if name == TF32 and device.type == "cpu":
        raise Refusal("precision = tf32 is a format of NVIDIA GPUs; on a CPU choose fp32 or bf16.")
    if name == BF16 and not (offers(model, TakesAutocast) and model.takes_autocast):
        raise Refusal(
            f"precision = bf16 is for torch modules: {type(model).__name__} computes its gradient itself; choose "
            "fp32, or tf32 on a GPU."
        )
    if name != FP32 and surrogate != "none":
        raise Refusal(
            f"precision = {name} rounds more than the remainders of a surrogate are; choose precision=fp32, or "
            "surrogate=none (target.surrogate in a configuration)."
        )


def lowered(name: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which products are computed in this format; flags are restored as it ends."""
    if name == BF16:
        # Without a cache of weights, which would outlive a change of the parameters that a module is bound to.
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
    return _flags(tf32=True) if name == TF32 else nullcontext()


def exact_products(device: torch.device, deterministic: bool) -> AbstractContextManager[Any]:
    """Return a context with TF32 off; `deterministic`: and with one cuDNN algorithm for each shape.

    An acceptance ratio needs both of its points evaluated by the same algorithm.
    """
    return nullcontext() if device.type == "cpu" else _flags(tf32=False, deterministic=deterministic)


@contextmanager
def _flags(tf32: bool, deterministic: bool = False) -> Iterator[None]:
    """Set torch's flags of products, and restore them."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    cuda.allow_tf32 = cudnn.allow_tf32 = tf32
    if deterministic:
        cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cuda.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
