"""The target of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mhrun.build import build, call
from mhrun.data.files import look_in
from mhrun.errors import UserError
from mhrun.target.precision import FP32
from mhrun.target.target import Target


def unavailable(device: str) -> str:
    """Return why a device cannot be used, and what to do."""
    if device.split(":")[0] != "cuda" or torch.cuda.is_available():
        return f"device = '{device}' is not available; choose cpu{' or cuda' * torch.cuda.is_available()}."
    if torch.version.cuda is None:
        reason = f"torch {torch.__version__} has no CUDA; install a build with CUDA (docs/install.md)"
    else:
        reason = f"torch {torch.__version__} finds no GPU; see whether nvidia-smi does"
    return f"device = '{device}' is not available: {reason}, or choose cpu."


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
    for name, part, attribute in (("model", model, "log_prior"), ("data", source, "n")):
        if not hasattr(part, attribute):
            raise UserError(f"{name}: {type(part).__name__} is not a {name} part; choose one of conf/{name}.")
    settings = {"model": model, "data": source, "device": device} | dict(config["target"])
    settings["precision"] = config.get("precision", FP32)
    return call(Target, settings, "the target", "target")
