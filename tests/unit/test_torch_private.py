"""What torch does not document and this package uses does what is expected of it, in the installed version."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mhrun.torch_private import (
    TorchDispatchMode,
    count_dispatch_modes,
    is_fake,
    is_wrapped,
    lookup_backend,
    traced,
    tree_leaves,
    tree_map,
    warn_of_slow_vmap,
)


def test_dispatch_modes_are_seen():
    class Mode(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Mode.seen += 1
            return func(*args, **(kwargs or {}))

    assert not count_dispatch_modes()
    with Mode():
        assert count_dispatch_modes()
        torch.ones(2) + 1
    assert Mode.seen >= 2
    assert not count_dispatch_modes()


def test_tensors_without_values_and_inside_transforms_are_known():
    with FakeTensorMode():
        assert is_fake(torch.ones(2))
    assert not is_fake(torch.ones(2))
    inside = []
    torch.func.vmap(lambda x: inside.append(is_wrapped(x)) or x)(torch.ones(2))
    torch.func.grad(lambda x: inside.append(is_wrapped(x)) or x)(torch.tensor(1.0))
    assert inside == [True, True]
    assert not is_wrapped(torch.ones(2))


def test_a_traced_function_is_freed_with_its_constants():
    def scaled_by(constant):
        form = traced(lambda x: (x * constant, x + 1), [torch.zeros(3)])
        product, total = form(torch.tensor([2.0, 3.0, 4.0]))
        assert product.tolist() == [0.0, 3.0, 8.0]
        assert total.tolist() == [3.0, 4.0, 5.0]
        return weakref.ref(constant)

    left = scaled_by(torch.arange(3.0))
    gc.collect()
    assert left() is None


def test_trees_and_backends():
    tree = {"a": [1, (2, 3)], "b": 4}
    assert tree_leaves(tree) == [1, 2, 3, 4]
    assert tree_map(lambda x: -x, tree) == {"a": [-1, (-2, -3)], "b": -4}
    assert callable(lookup_backend("eager"))


@pytest.mark.parametrize("shown", [False, True])
def test_warnings_of_slow_vmaps_can_be_switched(shown):
    warn_of_slow_vmap(shown)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.func.vmap(lambda x: torch.histc(x, 3))(torch.rand(2, 5))
    finally:
        warn_of_slow_vmap(True)
    assert bool(caught) == shown
