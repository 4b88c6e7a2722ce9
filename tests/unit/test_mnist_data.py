"""MNIST's pairs of digits, and the deformed ones."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
import yaml
from digits import idx, install
from scipy.ndimage import map_coordinates

import mhrun.data.deformed as deformation
import mhrun.data.mnist_pairs as pairs
from mhrun.build import build
from mhrun.cli.fetching import fetch
from mhrun.data import files
from mhrun.data.deformed import DeformedPair, deformed
from mhrun.data.idx import parse_idx
from mhrun.data.mnist_pairs import MnistPair
from mhrun.errors import Refusal, UserError
from mhrun.paths import CONF, cache_dir

COUNTS = (0, 31, 0, 3, 0, 0, 0, 26, 0, 0)


@pytest.fixture
def digits(tmp_path, monkeypatch, rng):
    """Write a small MNIST, of smooth blobs, and tell the catalogue and the counts of it."""
    labels = rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), COUNTS))
    rows, columns = np.mgrid[:28, :28]
    places = rng.uniform(9, 19, (2, len(labels), 1, 1))
    squares = (rows - places[0]) ** 2 + (columns - places[1]) ** 2
    images = (255 * np.exp(-squares / 18)).astype(np.uint8)
    install(tmp_path, monkeypatch, (images, labels), (images, labels))
    monkeypatch.setenv("MHRUN_CACHE_DIR", str(tmp_path / "cache"))
    return images, labels


def test_the_images_and_labels_are_those_of_the_files(digits):
    images, labels = digits
    source = MnistPair()
    data = source.load()
    chosen = (labels == 1) | (labels == 7)
    assert source.n == data.n == 57
    assert data.fields["x"].dtype == torch.uint8
    assert np.array_equal(data.fields["x"].numpy(), images[chosen].reshape(57, 784))
    assert np.array_equal(data.fields["y"].numpy(), np.where(labels[chosen] == 1, 1, -1))
    assert torch.equal(MnistPair((7, 1)).load().fields["y"], -data.fields["y"])


@pytest.mark.parametrize("split", ["train", "test"])
def test_principal_components_are_those_of_the_training_images(digits, split):
    """Against a singular value decomposition; a sign is no part of a component but is always the same here."""
    images, labels = digits
    chosen = images[(labels == 1) | (labels == 7)].reshape(57, 784) / 255
    data = MnistPair(split=split, components=5).load()
    found = data.fields["x"]
    assert found.dtype == torch.float32
    assert "5 principal components" in data.description
    u, s, vh = np.linalg.svd(chosen - chosen.mean(axis=0), full_matrices=False)
    expected = (u * s)[:, :5] * np.sign(vh[np.arange(5), np.abs(vh[:5]).argmax(axis=1)])
    assert found.numpy() == pytest.approx(expected, abs=1e-4)
    assert torch.equal(data.fields["y"], MnistPair(split=split).load().fields["y"])


@pytest.mark.parametrize("components", [0, 785])
def test_a_number_of_components_that_there_cannot_be(components):
    with pytest.raises(Refusal, match=f"components = {components} must lie within 1 and 784"):
        MnistPair(components=components)


def test_mnist_itself(monkeypatch):
    try:
        data, test = MnistPair().load(), MnistPair(split="test").load()
    except UserError as error:
        pytest.skip(str(error))
    for found, first, second in ((data, 6742, 6265), (test, 1135, 1028)):
        assert int((found.fields["y"] == 1).sum()) == first
        assert int((found.fields["y"] == -1).sum()) == second
        assert found.n == first + second
    assert int((data.fields["x"].amax(0) == 0).sum()) == 132  # pixels that are always 0
    assert "6,742 of digit 1 (y = +1) and 6,265 of digit 7" in data.description
    assert data.fields["x"].amax() == 255


@pytest.mark.parametrize("name", ["mnist_1v7", "mnist_1v7_deformed"])
def test_the_configuration_has_the_number_of_data(name):
    node = yaml.safe_load((CONF / "data" / f"{name}.yaml").read_text())
    assert build(node).n == node["n"]


def test_counts_other_than_those_of_mnist_are_reported(digits, monkeypatch):
    monkeypatch.setattr(pairs, "_COUNTS", {"train": (1,) * 10})
    with pytest.raises(UserError, match=r"hold \(31, 26\)"):
        MnistPair().load()


def test_absent_and_damaged_files_are_reported_in_one_line(digits, tmp_path, monkeypatch):
    path = tmp_path / "data" / "mnist" / "train-labels-idx1-ubyte.gz"
    content = path.read_bytes()
    for broken in (content[:-12], gzip.compress(b"other"), b"no gzip"):
        path.write_bytes(broken)
        with pytest.raises(UserError, match="has unexpected content"):
            MnistPair().load()
    path.unlink()
    with pytest.raises(UserError, match="'mhrun fetch mnist'") as caught:
        MnistPair().load()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_folder_of_the_data_sets_can_be_set(digits, tmp_path, monkeypatch):
    monkeypatch.delenv("MHRUN_DATA_DIR")
    assert files.data_dir() == cache_dir() / "data"
    files.look_in(str(tmp_path / "data"))
    try:
        assert MnistPair().load().n == 57
        assert files.data_dir("elsewhere").name == "elsewhere"
    finally:
        files.look_in(None)
    assert fetch(["mnist", f"runtime.data_dir={tmp_path / 'data'}"]) == 0


def test_what_is_no_idx_file_is_reported():
    assert parse_idx(idx(np.arange(6, dtype=np.uint8).reshape(2, 3)), "a").tolist() == [[0, 1, 2], [3, 4, 5]]
    for content in (b"", b"\0\0\x08", b"\0\0\x0d\1" + b"\0" * 8, b"\0\0\x08\3\0\0"):
        with pytest.raises(UserError, match="a "):
            parse_idx(content, "a")
    with pytest.raises(UserError, match="as many values"):
        parse_idx(idx(np.zeros(5, np.uint8))[:-1], "a")


def test_deformed_images_are_made_once_and_the_same(digits):
    few, many = DeformedPair(700, fields=5), DeformedPair(1300, fields=5)
    data = few.load()
    (path,) = (cache_dir() / "generated").iterdir()
    assert path.stat().st_size == 700 * 785
    changed = path.stat().st_mtime_ns
    again = few.load()
    assert path.stat().st_mtime_ns == changed
    originals = MnistPair().load()
    more, other = many.load(), DeformedPair(700, fields=5, seed=1).load()
    for name in ("x", "y"):
        assert torch.equal(data.fields[name], again.fields[name])
        assert torch.equal(data.fields[name][:57], originals.fields[name])
        assert torch.equal(more.fields[name][:700], data.fields[name])  # no matter of n
    assert not torch.equal(data.fields["x"], other.fields["x"])
    assert set(data.fields["y"].tolist()) == {-1, 1}
    assert "surrogate" in data.description


def test_a_deformation_that_is_interrupted_leaves_nothing(digits, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(deformation, "deformed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        DeformedPair(200).load()
    assert list((cache_dir() / "generated").iterdir()) == []


def test_no_displacement_is_no_deformation(digits):
    data = DeformedPair(200, displacement=0.0).load()
    originals = {bytes(row) for row in data.fields["x"][:57].numpy()}
    assert {bytes(row) for row in data.fields["x"].numpy()} == originals


def test_fields_are_smooth_and_have_the_requested_size():
    pool = DeformedPair(displacement=0.8, fields=50)._pool(np.random.default_rng(0)).reshape(50, 28, 28) / 256
    assert np.sqrt((pool**2).mean((1, 2))) == pytest.approx(np.full(50, 0.8), abs=1e-3)
    steps = np.diff(pool, axis=1)
    assert np.sqrt((steps**2).mean()) < 0.2  # 0.8 / (sqrt(2) 4) = 0.14 within a smooth field


def test_images_are_read_where_the_fields_say(rng):
    images = rng.integers(0, 256, (4, 28, 28)).astype(np.uint8)
    down, across = rng.integers(-900, 900, (2, 4, 784)).astype(np.int32)
    rows, columns = (place.ravel() for place in np.mgrid[:28, :28])
    for image, d, a, found in zip(images, down, across, deformed(images, down, across), strict=True):
        places = np.stack([rows + d / 256, columns + a / 256])
        expected = map_coordinates(image.astype(float), places, order=1, mode="grid-constant")
        assert np.abs(found - expected).max() <= 0.5 + 1e-9


def test_meaningless_settings_are_refused():
    for settings, word in (
        ({"split": "valid"}, "train or test"),
        ({"digits": (1, 1)}, "two different"),
        ({"digits": (1, 2, 3)}, "two different"),
        ({"digits": (1, 10)}, "two different"),
        ({"n": 13000}, "13007"),
    ):
        with pytest.raises(Refusal, match=word):
            MnistPair(**settings)
    for settings in ({"n": 5000}, {"displacement": -1.0}, {"smoothness": 0.0}, {"fields": 1}, {"seed": -1}):
        with pytest.raises(Refusal):
            DeformedPair(**settings)
