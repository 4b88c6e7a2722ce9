"""A copy of a user's module, ready for sampling: which of its layers train, what they keep, and where chains begin."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import UninitializedParameter

from mhrun.errors import Refusal, UserError

_JITTER = 0.1  # sd of the starts of a parameter without an initialiser, relative to its root mean square


class Buffer(NamedTuple):
    """A tensor beside the parameters that the module's training mode changes, such as a running mean."""

    name: str
    value: Tensor  # its initial value


class Prepared(NamedTuple):
    """A module's copy in evaluation mode, apart from `trains`."""

    module: nn.Module
    trains: tuple[str, ...]  # names of the layers that a dynamics runs in training mode: they own the buffers
    buffers: tuple[Buffer, ...]  # of these layers
    batch_norms: tuple[str, ...]  # layers of torch that keep or use statistics of minibatches
    idle_norms: tuple[str, ...]  # layers of torch in evaluation mode whose statistics are those of no data
    dropouts: tuple[str, ...]  # layers whose dropout was switched off
    tokens: bool  # whether whole numbers are passed on as they are, to an embedding


def prepared(module: nn.Module) -> Prepared:
    """Return a copy of a module in evaluation mode, except for layers that keep running statistics.

    - A layer in training mode that owns buffers (BatchNorm, or a layer of the user's) stays in training mode.
    - Parameters with ``requires_grad=False`` are constants: buffers that belong to no chain.
    - Dropout is off. Layers that contain dropout as a setting (LSTM, attention) have it set to 0.

    Raises:
        Refusal: a scripted module or one that cannot be copied, a module without parameters, with a lazy layer that was
            never run, or with an embedding whose gradient is not that of its outputs.
    """
    clone = _copy_of(module)
    _check_parameters(clone)
    _check_inputs(clone)
    _check_embeddings(clone)
    trains, dropouts = _set_modes(clone)
    layers = dict(clone.named_modules())
    first = {id(b): Buffer(name, b.detach().clone()) for name, b in clone.named_buffers()}
    owned = [b for name in trains for b in layers[name]._buffers.values() if b is not None]
    norms = [name for name, part in layers.items() if _uses_minibatch(part, in_training=name in trains)]
    idle = [name for name, part in layers.items() if name not in trains and _is_untouched(part)]
    _freeze_constants(clone)
    tokens = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in layers.values())
    buffers = tuple(first[id(b)] for b in owned)
    return Prepared(clone, tuple(trains), buffers, tuple(norms), tuple(idle), tuple(dropouts), tokens)


def _copy_of(module: nn.Module) -> nn.Module:
    if isinstance(module, torch.jit.ScriptModule):
        raise Refusal(
            "a scripted or traced module has no forward to call with other parameters; give the original."
        )
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:  # as of torch's older weight_norm, whose weight is no leaf
        raise Refusal(
            f"the module cannot be copied: {str(error).partition('.')[0]}. If it has nn.utils.weight_norm, take "
            "nn.utils.parametrizations.weight_norm."
        ) from error


def warn_of_layers(copied: Prepared) -> None:
    """Warn of layers whose dropout was switched off, and of BatchNorm with the statistics of no data."""
    if copied.dropouts:
        warnings.warn(
            f"dropout is off in layer {', '.join(copied.dropouts)}: a likelihood cannot be random. Remove "
            "dropout, or put that layer alone into evaluation mode, layer.eval(), to silence this.",
            UserWarning,
            stacklevel=3,
        )
    if copied.idle_norms:
        warnings.warn(
            f"BatchNorm is in evaluation mode in layer {', '.join(copied.idle_norms)} and has seen no "
            "data: with mean 0 and variance 1 it normalises nothing. Call its train(), or train the module first.",
            UserWarning,
            stacklevel=3,
        )


def _check_parameters(module: nn.Module) -> None:
    """Refuse a module that has no parameters to sample, or some without a shape."""
    parameters = list(module.parameters())
    if not parameters:
        raise Refusal("the module has no parameters.")
    if not any(p.requires_grad for p in parameters):
        raise Refusal("all parameters of the module are constants (requires_grad=False).")
    if any(isinstance(p, UninitializedParameter) for p in parameters):
        raise Refusal("the module has a lazy layer without a shape; run it once on a batch of the data.")


def _check_inputs(module: nn.Module) -> None:
    """Refuse a module whose forward pass requires more than x."""
    parameters = inspect.signature(module.forward).parameters.values()
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    required = [p.name for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(required) > 1:
        raise Refusal(
            f"forward of {type(module).__name__} takes {', '.join(required)}, and a module gets the field x alone; "
            "join its inputs in x, and take them apart in forward."
        )


def _check_embeddings(module: nn.Module) -> None:
    """Refuse embeddings whose rows change or have another gradient than that of the likelihood."""
    for name, part in module.named_modules():
        if not isinstance(part, nn.Embedding | nn.EmbeddingBag) or not part.weight.requires_grad:
            continue
        remedies = {
            "max_norm": "its forward pass changes the weights; leave it out, and give the weights a prior",
            "sparse": "gradients are dense here; leave it out",
            "padding_idx": "it hides the gradient of that row, which the outputs depend on; leave it out, and mask "
            "the padding in forward",
        }
        for setting, remedy in remedies.items():
            value = getattr(part, setting)
            if value is not None and value is not False:  # padding_idx may be 0
                raise Refusal(f"layer {name or 'of the module'} has {setting}: {remedy}.")


def _set_modes(module: nn.Module) -> tuple[list[str], list[str]]:
    """Put a module into evaluation mode, in place, and switch its dropout off.

    Returns:
        The names of the layers that a dynamics runs in training mode, and of those whose dropout was on.
    """
    trained = {name for name, part in module.named_modules() if part.training}
    module.eval()
    trains, dropouts = [], []
    for name, part in module.named_modules():
        if isinstance(part, _DropoutNd):
            dropouts += [name] if name in trained and part.p > 0 else []
        elif isinstance(getattr(part, "dropout", None), float) and part.dropout > 0:  # LSTM, attention
            dropouts += [name] if name in trained else []
            part.dropout = 0.0
        elif name in trained and _keeps(part):
            trains.append(name)
        if isinstance(part, nn.RNNBase | nn.MultiheadAttention | nn.TransformerEncoderLayer):
            # Deterministic without dropout. cuDNN has no gradient of an LSTM in evaluation mode, and attention in
            # evaluation mode takes another path, which rounds differently.
            part.training = True
    return trains, dropouts


def _uses_minibatch(part: nn.Module, *, in_training: bool) -> bool:
    """Return whether a layer of torch keeps or uses statistics of minibatches."""
    without_statistics = isinstance(part, _BatchNorm) and part.running_mean is None
    return without_statistics or (isinstance(part, _NormBase) and in_training)


def _is_untouched(part: nn.Module) -> bool:
    """Return whether a layer keeps statistics of minibatches and has not been run on any."""
    return (
        isinstance(part, _NormBase) and part.num_batches_tracked is not None and not part.num_batches_tracked
    )


def _freeze_constants(module: nn.Module) -> None:
    """Make buffers of the parameters with ``requires_grad=False``, in place: no state contains them."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del part._parameters[name]
                part.register_buffer(name, parameter.detach().clone())


def _keeps(part: nn.Module) -> bool:
    """Return whether training mode may change a buffer that this layer owns."""
    owns_buffer = any(b is not None for b in part._buffers.values())
    library = type(part).__module__.startswith("torch.")
    return owns_buffer and (isinstance(part, _NormBase) or not library)


def reset(module: nn.Module) -> None:
    """Draw a module's parameters anew, as its layers draw theirs, from torch's generator; in place.

    A parameter that no layer initialises (a bare `nn.Parameter`) gets its value plus normal noise with a standard
    deviation of a tenth of its root mean square, or 0.1 where it is 0.
    """
    initial = {p: (p._version, p.detach().clone()) for p in module.parameters()}
    parts = list(module.modules())
    for part in parts:
        if callable(initialise := getattr(part, "reset_parameters", None)):
            initialise()
    for part in reversed(parts):  # attention and transformers: after the layers within them
        if not hasattr(part, "reset_parameters") and callable(
            initialise := getattr(part, "_reset_parameters", None)
        ):
            initialise()
    for parameter, (version, value) in initial.items():
        if parameter._version == version and torch.equal(parameter, value):
            scale = float(value.square().mean().sqrt()) or 1.0
            parameter.data.add_(torch.randn_like(value), alpha=_JITTER * scale)


def initialised(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that layers of the module initialise, whose present values do not matter."""
    with torch.random.fork_rng(devices=[]):
        trial = copy.deepcopy(module)
        initial = [(p._version, p.detach().clone()) for p in trial.parameters()]
        for part in trial.modules():
            for name in ("reset_parameters", "_reset_parameters"):
                if callable(initialise := getattr(part, name, None)):
                    initialise()
        pairs = zip(module.parameters(), trial.parameters(), initial, strict=True)
        for parameter, redrawn, (version, value) in pairs:
            if redrawn._version != version or not torch.equal(redrawn, value):
                yield parameter


def theta_of_state(
    module: nn.Module, names: Sequence[str], state: nn.Module | Mapping[str, Tensor]
) -> Tensor:
    """Return the parameters (D,), float64, of these names in a trained module or its state dict.

    Raises:
        UserError: a parameter is missing or has another shape, or a buffer is not that of `module`.
    """
    state = state.state_dict() if isinstance(state, nn.Module) else state
    kept = module.state_dict()
    for name, value in state.items():
        if name in kept and getattr(value, "shape", None) != kept[name].shape:
            shape = tuple(getattr(value, "shape", ()))
            raise UserError(f"{name} of the start has the shape {shape}, not {tuple(kept[name].shape)}.")
    lacking = [name for name in names if name not in state]
    if lacking or not set(state) <= set(kept):
        wrong = lacking or sorted(set(state) - set(kept))
        raise UserError(
            f"the start {'lacks' if lacking else 'has an unknown'} {', '.join(wrong[:3])}; "
            "give a state dict of the same module."
        )
    for name, value in module.named_buffers():
        if name in state and not torch.equal(torch.as_tensor(state[name]).to(value), value):
            raise UserError(
                f"{name} of the start is not that of the module; load the state into the module before "
                "ModuleModel(module)."
            )
    values = [torch.as_tensor(state[name]).detach() for name in names]
    return torch.cat([value.reshape(-1).double().cpu() for value in values])
