"""Chooses the fastest evaluation of a module by measuring it with a run's shapes."""

from __future__ import annotations

import hashlib
import math
import platform
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.array_cache import kept
from mhrun.cores import cpu_name
from mhrun.engine.cost import compiling_pays
from mhrun.engine.method import Method
from mhrun.errors import UserError
from mhrun.models.module import ModuleModel
from mhrun.models.module_evaluation import BOUND, COMPILED, VMAPPED
from mhrun.store.fingerprint import fingerprint
from mhrun.target.precision import FP32, lowered
from mhrun.types import Rows

_TRIAL_DATA = 512  # data of the trial minibatch, at most
_LEAST, _MOST_ROUNDS = 4, 32  # gradients that are timed; passes of small modules are replayed after some 20
_STEPS = 1000  # of a run that is worth the measurement, whatever its steps take
_SECONDS = 0.5  # after which no more than the least are timed
_CLEARLY = 0.8  # another evaluation is chosen if it takes less than this share of the time of `bound`


def choose_evaluation(method: Method, begun_with: str | None) -> str | None:
    """Select how a module is evaluated at the chains' parameters, and return it for the run's record.

    Evaluations round differently, so that a run goes on with what it began with. Otherwise they are timed on a
    minibatch of the run, if it is long. None for another model.
    """
    model = method.target.model
    if not isinstance(model, ModuleModel):
        return None
    evaluation = begun_with
    if evaluation is None:
        evaluation = model.evaluation if model.evaluation != "auto" else None
    if evaluation is None:
        pays = method.shape.total >= _STEPS or compiling_pays(method)
        evaluation = fastest(method, model) if pays else BOUND
    model.select_evaluation(evaluation)
    return evaluation


def fastest(method: Method, model: ModuleModel) -> str:
    """Return the evaluation with the best of a few gradients of all chains on a minibatch of the run's size.

    Near a tie, or where others fail, it is ``bound``, which works for any module. The measurement is cached on disk, so
    that the same program has the same result on the same machine.
    """
    theta = method.first_points()
    if (names := evaluations(method, model, theta)) == [BOUND]:
        return BOUND
    m = max(1, min(method.kernel.reads(method.target), method.target.n, _TRIAL_DATA))
    rows = method.target.data.rows(torch.arange(m, device=method.target.device).expand(len(theta), m))
    shapes = [(name, tuple(field.shape), str(field.dtype)) for name, field in rows.items()]
    environment: tuple[Any, ...] = (
        torch.__version__,
        torch.get_num_threads(),
        cpu_name(),
        platform.node(),
        str(theta.device),
    )
    precision = method.target.precision.gradients
    environment += () if precision == FP32 else (precision,)
    facts = repr((fingerprint(model), shapes, str(theta.dtype), environment, names))
    name = hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
    with lowered(precision, theta.device):
        timings = kept(
            "evaluation", name, "4", lambda: {"seconds": np.array(_seconds(model, names, theta, rows))}
        )
    seconds = dict(zip(names, map(float, timings["seconds"]), strict=True))
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < _CLEARLY * seconds[BOUND] else BOUND


def evaluations(method: Method, model: ModuleModel, theta: Tensor) -> list[str]:
    """Return the evaluations to choose from at points (C, D): of one chain, `VMAPPED` is never faster than `BOUND`."""
    names = [BOUND, VMAPPED] if len(theta) > 1 else [BOUND]
    pays = theta.device.type == "cpu" and compiling_pays(method)
    return [*names, COMPILED] if pays and model.has_compiled_loop else names


def _seconds(model: ModuleModel, names: Sequence[str], theta: Tensor, rows: Rows) -> list[float]:
    """Return the seconds of a gradient by each evaluation, infinite where it fails."""
    seconds = []
    for name in names:
        model.select_evaluation(name)
        try:
            model.log_lik(theta, rows)  # some layers have a gradient under vmap, and no evaluation mode
            seconds.append(_best(model, theta, rows))
        except UserError:
            if name == BOUND:
                raise
            seconds.append(math.inf)
    return seconds


def _best(model: ModuleModel, theta: Tensor, rows: Rows) -> float:
    _timed(model, theta, rows)  # the first of a process imports a second's worth of torch
    times: list[float] = []
    while len(times) < _LEAST or (len(times) < _MOST_ROUNDS and sum(times) < _SECONDS):
        times.append(_timed(model, theta, rows))
    return min(times)


def _timed(model: ModuleModel, theta: Tensor, rows: Rows) -> float:
    if theta.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    model.log_lik_and_grad(theta, rows)
    if theta.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began
