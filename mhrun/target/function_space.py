"""Predictions of a network at its draws, by which its chains are judged instead of by its weights.

Hidden units can be exchanged without a change of what a network predicts, and chains whose weights differ may predict
the same: R-hat and effective sample sizes of weights say little (Izmailov, Vikram, Hoffman & Wilson 2021, section 4).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.build import blame
from mhrun.diagnostics.chains import some_coordinates
from mhrun.errors import UserError
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.target.target import Target
from mhrun.types import Model, blocks_of

DATA = 32
"""Of the data that a network was fitted to, so many, evenly spaced, are predicted."""
_WORK = 3e10  # multiplications that are done at most, some ten seconds
_PER_VALUE = 100  # multiplications behind a value of a layer, such as those of a convolution
_ENOUGH = 1000  # draws of all chains without which a costly network is not judged: they have to be worth 400
_HELD = 1 << 22  # numbers that are held at once
_SEEN = 1e-3  # share of the widest range of a prediction below which another one is left out

Draws = npt.NDArray[np.float64]


def is_network(model: Model) -> bool:
    """Return whether the parameters are the weights of a network with hidden units, which symmetries exchange."""
    return (
        isinstance(model, ModuleModel | Perceptron) and sum(block.weights for block in blocks_of(model)) > 1
    )


def that_vary(*samples: Draws) -> npt.NDArray[np.intp]:
    """Return the places of the predictions (C, S, K) that vary in some of the samples; all, if none does.

    Those are left out whose range is less than a thousandth of the widest one's, such as a probability that is 1 to
    within rounding: nobody sees whether chains agree on its last digits.
    """
    widths = np.max([np.ptp(sample, axis=(0, 1)) for sample in samples], axis=0)
    return np.flatnonzero(widths >= _SEEN * widths.max())


def predictions(target: Target, draws: Draws) -> tuple[Draws, list[str]]:
    """Return what a network predicts at some of its data, and a name for each number.

    Args:
        target: of a network, see `is_network`.
        draws: its parameters, with buffers if it has some, (C, S, P).

    Returns:
        (C, S', K) with K <= 64: class probabilities, or outputs of a module with another likelihood, at up to `DATA`
        data. S' = S, or fewer evenly spaced draws of a network that is costly to evaluate.

    Raises:
        UserError: the network cannot be evaluated on a CPU, or too few draws of it in some ten seconds.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a few small products: threads would wait for each other
    try:
        with torch.no_grad():
            return _predictions(target, draws)
    except UserError:
        raise
    except Exception as error:  # the user's module, in another type or on another device than that of the run
        raise UserError(f"the network cannot be evaluated on a CPU in float64: {blame(error)}.") from error
    finally:
        torch.set_num_threads(threads)


def _predictions(target: Target, draws: Draws) -> tuple[Draws, list[str]]:
    model = target.model
    chosen = some_coordinates(target.n, DATA)
    rows = {name: field[chosen][None] for name, field in target.data.to(torch.device("cpu")).fields.items()}
    is_classifier = getattr(model, "tells_classes", True)
    per_datum = model.values_per_datum(rows) if isinstance(model, ModuleModel) else 64
    most = _WORK / (len(chosen) * (model.dim + _PER_VALUE * per_datum))
    if most < min(_ENOUGH, draws.shape[0] * draws.shape[1]):
        raise UserError(f"its predictions at {_ENOUGH:,} draws take too long.")
    draws = draws[:, :: -(-draws.shape[0] * draws.shape[1] // int(most))]

    def predicted(theta: Tensor) -> Tensor:
        """(B, P) -> (B, m, ...)."""
        if not isinstance(model, ModuleModel):
            return model.predict(theta, rows).exp()  # type: ignore[attr-defined]
        outputs = model.outputs_at_many(theta, rows)
        return outputs.softmax(-1) if is_classifier else outputs

    flat = draws.reshape(-1, draws.shape[-1])
    shape = predicted(torch.from_numpy(flat[:1].astype(np.float64))).shape[1:]
    places = some_coordinates(int(np.prod(shape)))
    size = max(1, _HELD // (flat.shape[1] + len(chosen) * max(64, per_datum)))
    values = np.concatenate(
        [
            predicted(torch.from_numpy(flat[start : start + size].astype(np.float64)))
            .flatten(1)[:, places]
            .double()
            .numpy()
            for start in range(0, len(flat), size)
        ]
    )
    names = []
    for datum, *which in np.array(np.unravel_index(places, shape)).T:
        what = "".join(f"[{k}]" for k in which) if int(np.prod(shape[1:])) > 1 else ""
        names.append(f"{'probability' if is_classifier else 'output'}{what} at datum {chosen[datum]}")
    return values.reshape(*draws.shape[:2], -1), names
