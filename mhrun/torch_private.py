"""What is used of torch that its documentation does not promise: another version may have it in another form.

A new version of torch is checked here: `pytest tests/unit/test_torch_private.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = [
    "TorchDispatchMode",
    "assert_on_device",
    "count_dispatch_modes",
    "is_fake",
    "is_wrapped",
    "lookup_backend",
    "traced",
    "tree_leaves",
    "tree_map",
    "warn_of_slow_vmap",
]

count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Return how many dispatch modes are active, which have to see operations."""

is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Return whether a tensor is inside a `torch.func` transform."""

# Where it is missing, the warnings show. Python's filters would be slow to change at each step, and are the user's.
warn_of_slow_vmap: Callable[[bool], None] = getattr(
    torch._C._functorch, "_set_vmap_fallback_warning_enabled", lambda _: None
)
"""Switch the warnings on operations that `vmap` calls for each chain on or off."""

assert_on_device: Callable[[Tensor], None] = torch._assert_async
"""Check that a boolean tensor is true, without synchronisation; on CUDA devices alone."""


def is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor has no values, as where a step is recorded for a captured graph."""
    return isinstance(tensor, FakeTensor)


def lookup_backend(name: str) -> Callable[..., Any]:
    """Return a backend of `torch.compile` by its name."""
    backend: Callable[..., Any] = torch._dynamo.lookup_backend(name)
    return backend


def traced(function: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Callable[..., Any]:
    """Return TorchScript's form of a function, which is freed with the last reference to it."""
    try:  # torch.jit.trace keeps it, with the data that are its constants, as long as the process lives
        from torch.jit._trace import _create_interpreter_name_lookup_fn

        names = [f"tensor{k}" for k in range(len(tensors))]
        lookup = _create_interpreter_name_lookup_fn(1)
        graph, _ = torch._C._create_graph_by_tracing(
            function, tuple(tensors), lookup, True, False, None, names
        )
        form: Callable[..., Any] = torch._C._create_function_from_graph("replay", graph)
    except (ImportError, AttributeError, TypeError):  # these have another form
        form = torch.jit.trace(function, tuple(tensors), check_trace=False)
    return form
