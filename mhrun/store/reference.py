"""The mode about which a surrogate expands (`mhrun.target.reference`), stored with each method that uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mhrun.store.blocks import load_block
from mhrun.store.files import write_whole
from mhrun.store.sharing import REFERENCE
from mhrun.target import Target


def prepare_reference(target: Target, folder: Path) -> dict[str, Any]:
    """Use the reference stored in a method's folder, or find it and store it there.

    A resumed run therefore continues with the same bits: what is stored counts even where another method of the
    process, with the same target, has found it. Otherwise methods that share a target share it.

    Returns:
        what the summary states: the per-datum gradients that the search took. Empty without a surrogate.

    Raises:
        UserError: no mode was found, or the file cannot be written.
    """
    surrogate = target.surrogate
    if surrogate is None:
        return {}
    path = folder / REFERENCE
    stored = load_block(path)
    if stored is not None:
        target.use_reference(
            {name: torch.from_numpy(value).to(target.device) for name, value in stored.items()}
        )
    else:
        arrays = {name: value.cpu().numpy() for name, value in surrogate.pack().items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    return {"reference_n_grad": surrogate.n_grad}
