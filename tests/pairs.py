"""Every model of conf/model on every data set of conf/data, small."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import digits
import numpy as np
import pytest
import tables
import yaml
from kit import config

from mhrun.data import files
from mhrun.paths import CONF

ROWS = 24
FILLED = {  # settings that a configuration of conf/data leaves open
    "gaussian": {"n": 50},
    "gaussian_sample": {"n": 50, "dim": 3},
    "mixture": {"n": 50, "means": [0.0, 1.0]},
    "regression_sample": {"n": 50, "dim": 3},
    "tied_mixture": {"n": 50},
    "fifty_means": {"n": 50},
    "memmap": {"file": "x.npy"},
    "npz": {"file": "d.npz"},
    "table": {"file": "rows.csv", "target": "y"},
    "mnist_1v7_deformed": {"fields": 2},
}


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def node(group: str, name: str) -> dict[str, Any]:
    """Return a configuration of a group, with the one that it begins from."""
    content: dict[str, Any] = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    for base in content.pop("defaults", []):
        if base != "_self_":
            content = node(group, base) | content
    return content


def write(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Write small files for all data sets into a folder, and return the settings of each."""
    rng = np.random.default_rng(5)
    images = [digits.blobs(rng, 20, 20) for _ in range(2)]
    digits.install(folder, patch, *images)
    tables.install(folder / "data", patch)
    np.save(folder / "x.npy", rng.normal(size=(ROWS, 2)))
    signs = np.where(rng.random(ROWS) < 0.5, -1, 1)
    np.savez(folder / "d.npz", x=rng.normal(size=(ROWS, 2)), y=signs)
    rows = "".join(
        f"{a:.3f},{b:.3f},{y}\n" for (a, b), y in zip(rng.normal(size=(ROWS, 2)), signs, strict=True)
    )
    (folder / "rows.csv").write_text(f"a,b,y\n{rows}")
    (folder / "own.py").write_text("def log_lik(theta, rows):\n    return -(rows.x - theta[0]) ** 2\n")
    count = len(images[0][1])
    _letters(folder / "data" / "notmnist", patch, *images[1])
    sizes = {"mnist": count, "notmnist": count, "mnist_1v7": 40, "mnist_1v7_deformed": 60}
    return {
        name: node("data", name) | FILLED.get(name, {}) | ({"n": sizes[name]} if name in sizes else {})
        for name in names("data")
    }


def _letters(place: Path, patch: pytest.MonkeyPatch, *arrays: digits.Bytes) -> None:
    """Write images under the names and checksums of notMNIST."""
    place.mkdir()
    known = []
    for entry, array in zip(files.CATALOGUE["notmnist"].files, arrays, strict=True):
        content = digits.idx(array)
        (place / entry.name).write_bytes(gzip.compress(content))
        known.append(entry._replace(sha256=hashlib.sha256(content).hexdigest()))
    changed = files.CATALOGUE["notmnist"]._replace(files=tuple(known), mirrors=())
    patch.setitem(files.CATALOGUE, "notmnist", changed)


def paired(
    outputs: Path, model: dict[str, Any], data: dict[str, Any], method: str = "mcmc"
) -> dict[str, Any]:
    """Return the configuration of a short run of a method on a pair."""
    base = config(outputs)
    methods = {method: base["methods"][method] | {"starts": None}}
    small = {"chains": 2, "warmup": 50, "steps": 20, "experiment": "pair", "methods": methods}
    return base | small | {"model": model, "data": data}


def models() -> dict[str, dict[str, Any]]:
    """Return the settings of each model."""
    found = {name: node("model", name) for name in names("model")}
    found["logistic"]["dim"] = 784
    for regression in ("poisson", "binomial", "robust"):
        found[f"{regression}_regression"]["dim"] = 10
    found["softmax_regression"] |= {"features": 10, "classes": 3}
    found["perceptron"]["layers"] = [784, 3, 10]
    found["convolutional"] |= {"widths": [4, 8], "dense": 8}
    found["recurrent"] |= {"hidden": 6, "dense": 5}
    found["residual"] |= {"blocks": [1], "widths": [4]}
    found["user_function"] |= {"log_lik": "own.log_lik", "dim": 1}
    return found
