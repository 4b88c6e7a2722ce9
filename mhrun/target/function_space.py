"""Predictions of a network at its draws, by which its chains are judged instead of by its weights.

Hidden units can be exchanged without a change of what a network predicts, and chains whose weights differ may predict
the same: R-hat and effective sample sizes of weights say little (Izmailov, Vikram, Hoffman & Wilson 2021, section 4).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mhrun.data import Dataset
from mhrun.diagnostics.chains import ChainDraws, some_coordinates
from mhrun.errors import UserError
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.ownership import blame
from mhrun.types import Model, Rows, blocks_of
from mhrun.types.capabilities import predicts_classes

DATA = 32
"""Of the data that a network was fitted to, so many, evenly spaced, are predicted."""
_WORK = 5e10  # multiplications that are done at most, some ten seconds
_PER_VALUE = 10  # multiplications that a value of a layer takes as long as, besides those of products
_DRAWS_TO_JUDGE = (
    1000  # draws of all chains without which a costly network is not judged: they have to be worth 400
)
_HELD = 1 << 22  # numbers that are held at once
_SEEN = 1e-3  # range of a probability below which it is left out
_ROUNDING = 1e-9  # the same of an output, relative to its size


class Predictions(NamedTuple):
    """What a network predicts at some data."""

    values: ChainDraws  # (C, S, K)
    names: list[str]  # of each of the K numbers
    are_probabilities: bool  # or outputs of a module with a likelihood of the user's


def is_network(model: Model) -> bool:
    """Return whether the parameters are the weights of a network with hidden units, which symmetries exchange."""
    return (
        isinstance(model, ModuleModel | Perceptron) and sum(block.weights for block in blocks_of(model)) > 1
    )


def that_vary(*several: Predictions) -> npt.NDArray[np.intp]:
    """Return the indices of the predictions that are finite and vary in some sample; if none does, of the finite.

    A probability varies if its range exceeds a thousandth: smaller differences between chains do not matter. An output
    of a regression, whose unit is arbitrary, varies unless it is constant to within rounding.

    Raises:
        UserError: the samples have other predictions, or none is finite at all draws.
    """
    if any(found.names != several[0].names for found in several):
        raise UserError("the networks predict different things.")
    finite = np.all([np.isfinite(found.values).all((0, 1)) for found in several], axis=0)
    if not finite.any():
        raise UserError("no prediction is finite at all draws.")
    values = [np.where(finite, found.values, 0.0) for found in several]
    widths = np.max([np.ptp(sample, axis=(0, 1)) for sample in values], axis=0)
    size = np.max([np.abs(sample).max((0, 1)) for sample in values], axis=0)
    varies = widths > (_SEEN if several[0].are_probabilities else _ROUNDING * size)
    if not varies.any():
        varies = widths > _ROUNDING * size
    return np.flatnonzero(varies if varies.any() else finite)


def predictions(model: Model, data: Dataset, draws: ChainDraws) -> Predictions:
    """Return what a network predicts at some data.

    Args:
        model: a network, see `is_network`.
        data: of which up to `DATA` are predicted, evenly spaced.
        draws: its parameters, with buffers if it has some, (C, S, P).

    Returns:
        (C, S', K) with K <= 64: class probabilities, or outputs of a module with another likelihood. S' = S, or fewer
        evenly spaced draws of a network that is costly to evaluate.

    Raises:
        UserError: the network cannot be evaluated on a CPU, or too few draws of it in some ten seconds.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a few small products: threads would wait for each other
    try:
        with torch.no_grad():
            try:
                return _predictions(model, data, draws, torch.float64)
            except _TooCostly:
                raise
            except Exception as error:
                try:  # a module may make tensors in the one type that it was written for
                    return _predictions(model, data, draws, torch.float32)
                except Exception:
                    raise UserError(f"the network cannot be evaluated on a CPU: {blame(error)}.") from error
    finally:
        torch.set_num_threads(threads)


class _TooCostly(UserError):
    """Predictions take too long."""


def _predictions(model: Model, data: Dataset, draws: ChainDraws, dtype: torch.dtype) -> Predictions:
    chosen = some_coordinates(data.n, DATA)
    rows: Rows = {name: field[chosen][None] for name, field in data.to(torch.device("cpu")).fields.items()}
    is_classifier = predicts_classes(model)
    per_datum = model.values_per_datum(rows) if isinstance(model, ModuleModel) else 64

    def predicted(points: ChainDraws) -> Tensor:
        """Return predictions (B, m, ...) at points (B, P)."""
        theta = torch.from_numpy(points.astype(np.float64)).to(dtype)
        if not isinstance(model, ModuleModel):
            assert predicts_classes(model)
            return model.predict(theta, rows).exp()
        outputs = model.outputs_at_many(theta, rows)
        return model.log_probs(outputs).exp() if is_classifier else outputs

    with FlopCounterMode(display=False) as counter:
        shape = predicted(draws[0, :1]).shape[1:]
    most = _WORK / (counter.get_total_flops() / 2 + len(chosen) * _PER_VALUE * per_datum)
    if most < min(_DRAWS_TO_JUDGE, draws.shape[0] * draws.shape[1]):
        raise _TooCostly(f"its predictions at {_DRAWS_TO_JUDGE:,} draws take too long.")
    draws = draws[:, :: -(-draws.shape[0] * draws.shape[1] // int(most))]
    flat = draws.reshape(-1, draws.shape[-1])
    places = some_coordinates(int(np.prod(shape)))
    size = max(1, _HELD // (flat.shape[1] + len(chosen) * max(64, per_datum)))
    values = np.concatenate(
        [
            predicted(flat[start : start + size]).flatten(1)[:, places].double().numpy()
            for start in range(0, len(flat), size)
        ]
    )
    names = []
    for datum, *which in np.array(np.unravel_index(places, shape)).T:
        what = "".join(f"[{k}]" for k in which) if int(np.prod(shape[1:])) > 1 else ""
        names.append(f"{'probability' if is_classifier else 'output'}{what} at datum {chosen[datum]}")
    return Predictions(values.reshape(*draws.shape[:2], -1), names, is_classifier)
