"""The layers of a module that is a fully connected network, read off its graph."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from mhrun.models.module_copy import Prepared
from mhrun.models.perceptron_native import ACTIVATIONS, RELU, SIGMOID, TANH

_LAYERS = {nn.ReLU: RELU, nn.Tanh: TANH, nn.Sigmoid: SIGMOID}
_FUNCTIONS = {
    F.relu: RELU,
    torch.relu: RELU,
    torch.relu_: RELU,
    torch.tanh: TANH,
    F.tanh: TANH,
    torch.sigmoid: SIGMOID,
    F.sigmoid: SIGMOID,
}
_METHODS = {"relu": RELU, "relu_": RELU, "tanh": TANH, "sigmoid": SIGMOID}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class FullyConnected(NamedTuple):
    """A network of linear layers with biases, and an activation between them."""

    units: Sequence[int]  # of each layer, from the inputs to the outputs
    activations: Sequence[str]  # of each layer but the last, see `mhrun.models.perceptron_native`
    flattens: bool  # whether the dimensions of a datum are joined first


def fully_connected(prepared: Prepared) -> FullyConnected | None:
    """Return the layers of a module, or None if it is any other than a fully connected network.

    Its parameters must be those of the layers, in the order in which they are applied, as in theta. What `forward` does
    is read off its graph (`torch.fx`); what cannot be traced is another module.
    """
    parts = list(prepared.module.modules())
    if prepared.buffers or any(getattr(part, hooks) for part in parts for hooks in _HOOKS):
        return None
    layers = [part for part in parts if type(part) is nn.Linear]
    if not layers or any(part._parameters and part not in layers for part in parts):
        return None
    try:
        # A copy, as `forward` may keep what it is called with. A single layer is then one of the graph, too.
        module = nn.Sequential(copy.deepcopy(prepared.module))
        nodes = list(fx.Tracer().trace(module).nodes)
    except Exception:  # Python's own branches, and whatever else `forward` may do
        return None
    steps = list(_steps(module, nodes))
    if None in steps:
        return None
    flattens = "flatten" in steps
    kinds = [step for step in steps if step != "identity"]
    if flattens and (kinds[0] != "flatten" or kinds.count("flatten") > 1):
        return None
    kinds = kinds[flattens:]
    linear = [step for step in kinds[::2] if isinstance(step, nn.Linear)]
    activations = kinds[1::2]
    if len(linear) != len(kinds[::2]) or len(kinds) % 2 == 0 or set(activations) - set(ACTIVATIONS):
        return None
    own = [p for layer in linear for p in (layer.weight, layer.bias)]
    if [id(p) for p in own] != [id(p) for p in module.parameters()]:
        return None
    if any(one.out_features != other.in_features for one, other in pairwise(linear)):
        return None
    units = (linear[0].in_features, *(layer.out_features for layer in linear))
    return FullyConnected(units, tuple(activations), flattens)


def _steps(module: nn.Module, nodes: Sequence[fx.Node]) -> Iterator[Any]:
    """Yield what each operation does: a layer, an activation, `flatten`, `identity`, or None for all else."""
    inputs, *rest, output = nodes
    last, sizes = inputs, set[fx.Node]()
    for node in rest:
        if node.op == "placeholder":
            yield None
        elif _is_size(node, inputs, sizes):
            sizes.add(node)
            continue
        elif not node.args or node.args[0] is not last:
            yield None
        else:
            yield _step(module, node, sizes)
        last = node
    yield "identity" if output.args == (last,) else None


def _is_size(node: fx.Node, inputs: fx.Node, sizes: set[fx.Node]) -> bool:
    """Return whether an operation is a part of `x.size(0)` or `x.shape[0]`, of the inputs x."""
    if node.op == "call_method":
        return node.target == "size" and bool(node.args == (inputs, 0))
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return bool(node.args == (inputs, "shape"))
    return node.target is operator.getitem and node.args[0] in sizes and bool(node.args[1] == 0)


def _step(module: nn.Module, node: fx.Node, sizes: set[fx.Node]) -> Any:
    rest = (*node.args[1:], *node.kwargs.values())
    if node.op == "call_module":
        return None if rest else _layer(module.get_submodule(str(node.target)))
    if node.op == "call_function":
        if node.target in _FUNCTIONS:
            return None if rest and _FUNCTIONS[node.target] != RELU else _FUNCTIONS[node.target]
        if node.target is F.dropout:
            return "identity" if node.kwargs.get("training") is False else None
        return "flatten" if node.target is torch.flatten and rest == (1,) else None
    if node.op == "call_method":
        if node.target in _METHODS:
            return None if rest else _METHODS[str(node.target)]
        if node.target == "flatten":
            return "flatten" if rest == (1,) else None
        if node.target in ("view", "reshape") and len(rest) == 2:
            # To (m, k) in any case: the loop is for data with as many numbers as the first layer has inputs.
            joined = (rest[0] in sizes or rest[0] == -1) and isinstance(rest[1], int)
            return "flatten" if joined else None
    return None


def _layer(part: nn.Module) -> Any:
    """Return what a layer does; exact types, as a subclass may do anything."""
    if type(part) is nn.Linear:
        names = set(part._parameters)
        return part if names == {"weight", "bias"} and part.bias is not None else None
    if type(part) in _LAYERS:
        return _LAYERS[type(part)]
    if type(part) is nn.Identity or (isinstance(part, _DropoutNd) and not part.training):
        return "identity"
    if type(part) is nn.Flatten:
        return "flatten" if (part.start_dim, part.end_dim) == (1, -1) else None
    return None
