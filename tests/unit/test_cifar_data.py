"""CIFAR's archives and its JPEG copy, augmentation, and permuted labels."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mhrun
from mhrun.data import Dataset, cifar, files
from mhrun.data.cifar import CLASSES, Cifar
from mhrun.data.images import Images
from mhrun.data.transforms import Transforms, moved
from mhrun.engine.assemble import assembled
from mhrun.engine.pilot.chains import WINDOW, PilotChains
from mhrun.errors import Refusal, UserError
from mhrun.models.module import ModuleModel
from mhrun.random import Draws, Streams, derive_key
from mhrun.schedules.fixed import Fixed
from mhrun.target import Target
from mhrun.types import Controls

KEY = derive_key(3, "cifar")
COUNTS = {"train": 100, "test": 20}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "_COUNTS", COUNTS)
    monkeypatch.setenv("MHRUN_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("mhrun.array_cache.cache_dir", lambda: tmp_path / "cache")
    files.look_in(None)
    return tmp_path


def archive(folder, monkeypatch, rng, name="cifar10", cut=0):
    """Write an archive of random images; return its labels and pixels by split."""
    members, labels = cifar._MEMBERS[name]
    content = {}
    for split in members:
        rows = rng.integers(0, 256, (COUNTS[split], labels + 3072)).astype(np.uint8)
        rows[:, :labels] %= 10
        content[split] = rows
    target = folder / name / files.CATALOGUE[name].files[0].name
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "w:gz") as tar:
        for split, places in members.items():
            for place, part in zip(places, np.array_split(content[split], len(places)), strict=True):
                data = part.tobytes()[: part.nbytes - cut]
                info = tarfile.TarInfo(place)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    known = files.CATALOGUE[name]
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    file = known.files[0]._replace(sha256=digest)
    monkeypatch.setitem(files.CATALOGUE, name, known._replace(files=(file,), mirrors=()))
    return {split: (rows[:, labels - 1], rows[:, labels:]) for split, rows in content.items()}


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_images_and_classes_are_those_of_the_binary_version(folder, monkeypatch, rng, name):
    content = archive(folder, monkeypatch, rng, name)
    for split in COUNTS:
        data = Cifar(name, split).load()
        assert np.array_equal(data.fields["y"].numpy(), content[split][0])
        assert np.array_equal(data.fields["x"].numpy().reshape(-1, 3072), content[split][1])
        assert data.fields["x"].shape == (COUNTS[split], 3, 32, 32)
    part = Cifar(name, "train", n=7, skip=5, shuffle=2, side=16).load()
    order = np.random.default_rng(2).permutation(100)[5:12]
    x = content["train"][1][order].reshape(7, 3, 16, 2, 16, 2).astype(float).mean((3, 5))
    assert np.abs(part.fields["x"].numpy() - x).max() <= 0.5
    assert "16 x 16" in part.description
    assert "JPEG" not in part.description


def test_a_damaged_archive_is_reported_in_a_line(folder, monkeypatch, rng):
    with pytest.raises(UserError, match="mhrun fetch cifar10"):
        Cifar().load()
    archive(folder, monkeypatch, rng, cut=1)
    with pytest.raises(UserError, match="does not hold the images of cifar10"):
        Cifar().load()
    path = folder / "cifar10" / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="unexpected content"):
        Cifar().load()


def jpeg(folder, rng, side=32):
    (folder / "cifar10-jpeg").mkdir(exist_ok=True)
    colours = {}
    with zipfile.ZipFile(folder / "cifar10-jpeg" / "images.zip", "w") as out:
        for split, count in COUNTS.items():
            for i in range(count):
                name, colour = CLASSES[i % 10], tuple(int(v) for v in rng.integers(20, 236, 3))
                buffer = io.BytesIO()
                Image.new("RGB", (side, side), colour).save(buffer, "JPEG")
                out.writestr(f"{split}/{name}/{i // 10:04d}.jpg", buffer.getvalue())
                colours[split, i % 10, i // 10] = colour
    return colours


def test_the_jpeg_copy_is_marked(folder, rng):
    colours = jpeg(folder, rng)
    data = Cifar("cifar10-jpeg").load()
    assert "JPEG copy" in data.description
    assert data.facts == {"copy": "JPEG"}
    assert torch.bincount(data.fields["y"]).tolist() == [10] * 10
    assert data.fields["y"].tolist() != sorted(data.fields["y"].tolist())
    means = data.fields["x"].float().mean((2, 3)).numpy()
    for mean, y in zip(means, data.fields["y"].tolist(), strict=True):
        gaps = [np.abs(mean - c).max() for (split, k, _), c in colours.items() if (split, k) == ("train", y)]
        assert min(gaps) < 4
    (folder / "cache").rename(folder / "old")
    jpeg(folder, rng, side=16)
    with pytest.raises(UserError, match="does not hold the 60,000 images"):
        Cifar("cifar10-jpeg").load()


def test_crops_and_mirror_images_are_those_of_plain_loops(rng):
    pad, side = 2, 8
    images = torch.from_numpy(rng.integers(0, 256, (2, 3, 3, side, side)).astype(np.uint8))
    code = torch.from_numpy(rng.integers(0, 2 * (2 * pad + 1) ** 2, (2, 3)))
    found = moved(images, code, pad)
    padded = np.pad(images.numpy(), ((0, 0),) * 3 + ((pad, pad), (pad, pad)))
    for c in range(2):
        for i in range(3):
            k = int(code[c, i])
            a, b = divmod(k // 2, 2 * pad + 1)
            own = padded[c, i, :, a : a + side, b : b + side]
            own = own[:, :, ::-1] if k % 2 else own
            assert np.array_equal(found[c, i].numpy(), own)


@pytest.mark.parametrize(
    ("fields", "settings", "message"),
    [
        ({"x": torch.zeros(5, 3, 4, 4)}, {"n": 4, "pad": 1}, "of n = 4 data, and the data set has 5"),
        ({"x": torch.zeros(5, 3, 4, 6)}, {"n": 5, "pad": 1}, r"a datum has the shape \(3, 4, 6\)"),
        ({"x": torch.zeros(5, 16)}, {"n": 5, "pad": 1}, r"a datum has the shape \(16,\)"),
        ({"x": torch.zeros(5, 16)}, {"n": 5, "permuted": 0.5}, "a field y, which is not there"),
        ({"x": torch.zeros(5, 16)}, {"n": 5, "permuted": 1.5}, "between 0 and 1"),
        ({"x": torch.zeros(5, 16)}, {"n": 5, "pad": -1}, "whole number of pixels"),
    ],
)
def test_transforms_that_are_not_of_the_data_are_refused(fields, settings, message):
    with pytest.raises(UserError, match=message):
        Dataset(fields, transforms=Transforms(**settings))


def images(n=40, augment=1, permuted=0.0):
    x = torch.arange(n * 3 * 64, dtype=torch.int64).reshape(n, 3, 8, 8) % 251
    data = Dataset({"x": x.to(torch.uint8), "y": torch.arange(n)})
    return Dataset(data.fields, transforms=Transforms(n, augment, permuted))


def test_transforms_are_functions_of_step_chain_and_place():
    target = Target(ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 40))), images())

    def batch(step, chains=3, m=5, **settings):
        return target.batches.draw(Draws(Streams(KEY, chains, **settings), step, ahead=1), m)

    index = batch(4)
    assert torch.equal(index, batch(4))
    assert torch.equal(index[:2], batch(4, chains=2))
    rows = target.data.rows(index)
    assert torch.equal(rows["y"], index % 40)  # labels are the row's own
    assert not torch.equal(rows["x"], target.data.rows(index % 40)["x"])
    assert torch.equal(target.data.rows(index % 40)["x"], target.data.fields["x"][index % 40])
    codes = torch.stack([(batch(step, m=20) // 40 - 1) // 40 for step in range(1, 301)])
    counts = torch.bincount(codes.flatten(), minlength=18).double()
    expected = codes.numel() / 18
    # Chi-squared, 17 degrees: 1e-4 above 48.4
    assert float(((counts - expected) ** 2 / expected).sum()) < 49.0
    # A minibatch that grows in pieces has the transforms of one that was drawn at once.
    draws = Draws(Streams(KEY, 3), 7)
    everyone = torch.arange(3)
    pieces = [target.batches.more(draws, a, b, everyone) for a, b in ((0, 3), (3, 4), (4, 10))]
    assert torch.equal(torch.cat(pieces, 1), target.batches.more(Draws(Streams(KEY, 3), 7), 0, 10, everyone))
    some = target.batches.more(Draws(Streams(KEY, 3), 7), 0, 10, torch.tensor([2]))
    assert torch.equal(some[0], torch.cat(pieces, 1)[2])


def test_both_points_of_a_test_see_the_same_images():
    model = ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 40)))
    target = Target(model, images(permuted=0.5))
    pairing = mhrun.Shared(6)
    draws = Draws(Streams(KEY, 2), 3)
    theta = model.init(2, draws)
    origin = pairing.current(target, pairing.start(target, theta, draws), draws)
    _, found = pairing.compare(target, origin, theta.clone(), draws)
    assert torch.equal(found.mean, torch.zeros(2))
    assert torch.equal(found.var, torch.zeros(2))


def test_a_share_of_the_labels_is_permuted_anew_in_each_pass():
    n, m = 40, 8
    target = Target(
        ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 40))), images(augment=0, permuted=0.3)
    )
    kernel = mhrun.Unadjusted(mhrun.SGLD(), m=m, passes=True)
    assert kernel.refuses(target) is None
    draws, tables = Draws(Streams(KEY, 2), 1), []
    for epoch in range(3):
        table = torch.full((2, n), -1)
        for piece in range(n // m):
            draws.step = 1 + epoch * (n // m) + piece
            index = target.batches.piece(draws, m)
            table.scatter_(1, index % n, target.data.rows(index)["y"])
        assert torch.equal(table[0], table[1])
        assert sorted(table[0].tolist()) == list(range(n))  # a permutation of the labels
        assert int((table[0] != torch.arange(n)).sum()) == 12
        tables.append(table[0])
    assert not torch.equal(tables[0], tables[1])
    again = Draws(Streams(KEY, 2), 1 + n // m)
    assert torch.equal(
        target.data.rows(target.batches.piece(again, m))["y"][0], tables[1][again.piece(n, m)[0]]
    )


def test_an_exchange_sees_the_labels_of_the_pass_that_gradients_see():
    """Luo et al. (2020) permute labels at the beginning of an epoch: so do minibatches of any size."""
    n, m = 40, 8
    data = images(augment=0, permuted=0.5)
    model = ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 40)))
    ladder = mhrun.ReplicaExchange(
        mhrun.Unadjusted(mhrun.SGLD(), m=m), mhrun.Growing(), mhrun.MHMinibatch(10), 2, every=3
    )
    method = assembled(
        "ladder",
        ladder,
        Target(model, data),
        {"temperature": Fixed(temperature=[1.0, 2.0]), "step_size": Fixed(step_size=1e-3)},
        {"chains": 2, "warmup": 0, "steps": 12, "thin": 1, "thin_stats": None, "seed": 1},
        dtype=torch.float64,
        starts=None,
        monitor=None,
    )
    target, everyone, tables = method.target, torch.arange(2), []
    for step in range(1, 16):  # three passes
        draws, table = Draws(Streams(KEY, 2), step, ahead=1), torch.full((2, n), -1)
        for index in (
            target.batches.draw(draws, m),
            target.batches.draw(Draws(Streams(KEY, 2), step, ahead=1), n),
            target.batches.more(Draws(Streams(KEY, 2), step), 0, 10, everyone),
            target.batches.more(Draws(Streams(KEY, 2), step), 10, n, everyone),
        ):
            labels = target.data.rows(index)["y"]
            known = table.gather(1, index % n)
            assert ((known == labels) | (known == -1)).all()
            table.scatter_(1, index % n, labels)
        tables.append(table[0])
    assert all(torch.equal(tables[k], tables[k // 5 * 5]) for k in range(15))
    assert not torch.equal(tables[0], tables[5])
    assert not torch.equal(tables[5], tables[10])
    assert Target(model, images()).with_passes_of(m).transforms.pass_size is None  # nothing is permuted


def test_the_exchanges_of_a_ladder_have_the_labels_of_its_gradients(monkeypatch):
    n, m = 40, 8
    model = ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 40)))
    ladder = mhrun.ReplicaExchange(
        mhrun.Unadjusted(mhrun.SGLD(), m=m), mhrun.Growing(), mhrun.MHMinibatch(10), 2
    )
    target = Target(model, images(augment=0, permuted=0.5)).with_passes_of(m)
    ones, seen = torch.ones(2), []
    rows = Transforms.rows
    monkeypatch.setattr(
        Transforms, "rows", lambda self, fields, index: seen.append(index) or rows(self, fields, index)
    )
    draws = Draws(Streams(KEY, 2), 0)
    state = ladder.start(target, model.init(2, draws), draws)
    for step in range(1, 11):
        draws.step = step
        seen.clear()
        state, info = ladder.step(target, state, Controls(1e-3 * ones, torch.tensor([1.0, 2.0]), ones), draws)
        index = torch.cat([found.flatten() for found in seen])
        labels, row = rows(target.transforms, target.data.fields, index[None])["y"][0], index % n
        table = torch.full((n,), -1).scatter(0, row, labels)
        assert len(row) > 2 * m  # the exchange's data too
        assert (info.exchange != 0).all()
        assert torch.equal(table[row], labels)  # one label for each datum


def test_a_pilot_permutes_labels_in_the_passes_of_the_minibatch_that_it_tries(monkeypatch):
    """Of an open minibatch size the passes are unknown until it is chosen: they were those of m = 2."""
    n, m = 40, 8
    method = assembled(
        "walk",
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared("auto"), mhrun.Metropolis()),
        Target(ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 40))), images(augment=0, permuted=0.5)),
        {"temperature": Fixed(temperature=1.0), "step_size": Fixed(step_size=1e-3)},
        {"chains": 2, "warmup": 0, "steps": 12, "thin": 1, "thin_stats": None, "seed": 1},
        dtype=torch.float64,
        starts=None,
        monitor=None,
    )
    assert method.target.transforms.pass_size is None
    tables, rows = [], Transforms.rows

    def seen(self, fields, index):
        found = rows(self, fields, index)
        tables.append(torch.full((n,), -1).scatter(0, index.flatten() % n, found["y"].flatten()))
        return found

    monkeypatch.setattr(Transforms, "rows", seen)
    kernel = method.kernel.with_m(m)
    chains = PilotChains(method, kernel, method.first_points(), torch.ones(2), KEY, None)
    tables.clear()
    chains.window(torch.full((2,), 1e-3))
    passes = [torch.stack(tables[k : k + n // m]) for k in range(0, WINDOW, n // m)]
    labels = [seen_in.amax(0) for seen_in in passes]  # -1: of data that the pass did not draw
    assert all(((t == of_pass) | (t == -1)).all() for t, of_pass in zip(passes, labels, strict=True))
    assert all(((one != two) & (one >= 0) & (two >= 0)).any() for one, two in pairwise(labels))


@pytest.mark.parametrize("derived", ["part", "trial", "again"])
def test_the_numbers_of_a_part_have_the_labels_of_the_whole_step(derived):
    draws, everyone = Draws(Streams(KEY, 2), 7), torch.arange(2)
    part = {
        "part": lambda: draws.part("part", everyone, 3),
        "trial": lambda: draws.trial("trial", everyone, 4, 9),
        "again": draws.again,
    }[derived]()
    expected = draws.shuffled_share(40, 0.5, 8)
    assert torch.equal(part.shuffled_share(40, 0.5, 8), expected)
    assert torch.equal(part.part("part of it", everyone).shuffled_share(40, 0.5, 8), expected)


def test_labels_are_one_permutation_while_a_minibatch_grows_if_the_size_of_a_step_is_unknown():
    n, everyone = 40, torch.arange(2)
    target = Target(
        ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 40))), images(augment=0, permuted=0.5)
    )
    draws, tables = Draws(Streams(KEY, 2), 20), []
    for step in (20, 21):
        draws.step = step
        sizes = (0, 4, 12, n)
        parts = [target.batches.more(draws, start, stop, everyone) for start, stop in pairwise(sizes)]
        index = torch.cat(parts, 1)
        table = torch.full((2, n), -1).scatter(1, index % n, target.data.rows(index)["y"])
        assert sorted(table[0].tolist()) == list(range(n))
        assert torch.equal(table[0], table[1])
        tables.append(table[0])
    assert not torch.equal(*tables)  # a step reads up to all data: a pass


def test_a_dynamics_on_augmented_images_is_that_on_the_same_images_by_hand():
    data = images()
    model = ModuleModel(nn.Sequential(nn.Flatten(), nn.Linear(192, 40)))
    target = Target(model, data)
    kernel = mhrun.Unadjusted(mhrun.Momentum(), m=6)
    draws = Draws(Streams(KEY, 2), 0)
    state = kernel.start(target, model.init(2, draws), draws)
    sizes = torch.full((2,), 1e-3)
    with torch.no_grad():
        after, _ = kernel.step(target, state, Controls(sizes, sizes, sizes), Draws(Streams(KEY, 2), 1))
    rows = target.data.rows(target.batches.draw(Draws(Streams(KEY, 2), 1), 6))
    grad = model.log_lik_and_grad(state.evaluation.theta, rows)[1]
    assert torch.allclose(after.evaluation.theta, state.evaluation.theta + 1e-3 * 40 * grad)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cifar("cifar"), "no images 'cifar'"),
        (lambda: Cifar(side=20), "must be 32, 16 or 8"),
        (lambda: Cifar(augment="flip"), "choose none or code"),
        (lambda: Cifar(n=60_000), "more than the 50,000"),
        (lambda: Images("fashion-mnist", permuted=1.5), "between 0 and 1"),
    ],
)
def test_settings_without_a_meaning_are_refused(make, message):
    with pytest.raises(Refusal, match=message):
        make()
