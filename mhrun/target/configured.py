"""The target of a configuration."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mhrun.build import build, call
from mhrun.data import Dataset
from mhrun.data.files import look_in
from mhrun.errors import UserError
from mhrun.target.precision import FP32
from mhrun.target.target import Target


def unavailable(device: str) -> str:
    """Return why a device cannot be used, and what to do."""
    if device.split(":")[0] != "cuda" or torch.cuda.is_available():
        return f"device = {device!r} is not available; choose cpu{' or cuda' * torch.cuda.is_available()}."
    if torch.version.cuda is None:
        reason = f"torch {torch.__version__} has no CUDA; install a build with CUDA (docs/install.md)"
    else:
        reason = f"torch {torch.__version__} finds no GPU; see whether nvidia-smi does"
    return f"device = {device!r} is not available: {reason}, or choose cpu."


def check_members(group: str, part: object, members: Sequence[str]) -> None:
    """Check that a part has what its group must have. Properties are not evaluated: names of a network are many.

    What ``__getattr__`` gives counts, as of a model that wraps another.

    Raises:
        UserError: it lacks some of it, or all.
    """

    def has(name: str) -> bool:
        declared = inspect.getattr_static(part, name, None)
        return declared is not None or getattr(part, name, None) is not None

    missing = [name for name in members if not has(name)]
    if len(missing) == len(members):
        raise UserError(f"{group}: {type(part).__name__} is not a {group} part; choose one of conf/{group}.")
    if missing:
        raise UserError(
            f"{group}: {type(part).__name__} has no {' and no '.join(missing)}; a {group} part has "
            f"{', '.join(members)}."
        )


def target_of(config: Mapping[str, Any]) -> Target:
    """Return the target of a resolved configuration. Its data are loaded on first use.

    Raises:
        UserError: an unknown part or an invalid setting.
    """
    device = str(config["device"])
    if device != "cpu" and not (device.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise UserError(unavailable(device))
    look_in((config.get("runtime") or {}).get("data_dir"))
    model = build(config["model"], "model")
    source = build(config["data"], "data")
    check_members("model", model, ("dim", "names", "init", "log_prior", "log_lik"))
    if not isinstance(source, Dataset):
        check_members("data", source, ("n", "load"))
    settings = {"model": model, "data": source, "device": device} | dict(config["target"])
    settings["precision"] = config.get("precision", FP32)
    return call(Target, settings, "the target", "target")
