"""Statlog's small sets: the same bits from every copy of the files, and one-line errors for damaged files."""

from __future__ import annotations

import numpy as np
import pytest
import tables

from mhrun.data import files
from mhrun.data.images import Images
from mhrun.data.statlog import Statlog, standardised
from mhrun.errors import Refusal, UserError

NAMES = {"australian": "australian.dat", "german": "german.data-numeric", "heart": "heart.dat"}


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    tables.install(tmp_path, monkeypatch)
    return tmp_path / "uci"


def test_rows_and_numbers_are_the_same_however_they_are_written(made_up):
    for name, file in NAMES.items():
        before = Statlog(name).load()
        lines = (made_up / file).read_text().splitlines()
        rng = np.random.default_rng(5)
        other = [
            "\t ".join(f"{float(word):.5e}" for word in lines[i].split()) for i in rng.permutation(len(lines))
        ]
        (made_up / file).write_text("\r\n".join([*other, "", ""]))
        assert files.state("uci", made_up.parent) == "here"
        after = Statlog(name).load()
        assert before.description == after.description
        for field in ("x", "y"):
            assert before.fields[field].numpy().tobytes() == after.fields[field].numpy().tobytes()


def test_covariates_are_standardised_and_have_an_intercept(made_up):
    for name, file in NAMES.items():
        fields = {key: value.numpy() for key, value in Statlog(name).load().fields.items()}
        rows = np.array(sorted((made_up / file).read_text().split("\n"))[1:])
        raw = np.array([row.split() for row in rows], float)
        assert fields["x"].shape == (60, tables.COVARIATES[file] + 1)
        assert (fields["x"][:, 0] == 1).all()
        assert abs(fields["x"][:, 1:].mean(axis=0)).max() < 1e-14
        assert abs(fields["x"][:, 1:].std(axis=0) - 1).max() < 1e-14
        positive = tables.CLASSES[file][1]
        assert fields["y"].dtype == np.int8
        assert (fields["y"] > 0).sum() == (raw[:, -1] == positive).sum()
        # Each label is still that of its row.
        where = np.lexsort(np.column_stack([fields["x"][:, 1:], fields["y"]]).T[::-1])
        scaled = (raw[:, :-1] - raw[:, :-1].mean(axis=0)) / raw[:, :-1].std(axis=0)
        sign = np.where(raw[:, -1] == positive, 1, -1)
        expected = np.lexsort(np.column_stack([np.round(scaled, 9), sign]).T[::-1])
        assert fields["x"][where, 1:] == pytest.approx(scaled[expected])
        assert (fields["y"][where] == sign[expected]).all()


def test_covariates_may_be_those_of_the_file(made_up):
    for name, file in NAMES.items():
        raw = np.array([row.split() for row in (made_up / file).read_text().splitlines()], float)[:, :-1]
        x = Statlog(name, standardise=False).load().fields["x"].numpy()
        assert (x[:, 0] == 1).all()
        assert (np.sort(x[:, 1:], axis=0) == np.sort(raw, axis=0)).all()


def test_standardising_is_exact_where_it_can_be():
    assert standardised(np.array([1.0, 3.0, 1.0, 3.0])).tolist() == [-1, 1, -1, 1]
    big = 1e16 + np.array([0.0, 2.0, 4.0])  # a sum that loses the small part would be off here
    assert standardised(big) == pytest.approx(np.array([-1, 0, 1]) * 1.5**0.5)


@pytest.mark.parametrize("wrong", ["1 2 3\n", "1 2 three\n", "", "\xe4\n"])
def test_a_file_that_is_none_is_reported(made_up, wrong):
    (made_up / "heart.dat").write_text(wrong, encoding="latin-1")
    assert files.state("uci", made_up.parent) == "damaged"
    with pytest.raises(UserError, match=r"heart\.dat has unexpected content .* fetch it again"):
        Statlog("heart").load()
    assert Statlog("german").load().n == Statlog("german").n == 60
    (made_up / "heart.dat").unlink()
    with pytest.raises(UserError, match="mhrun fetch uci"):
        Statlog("heart").load()
    with pytest.raises(Refusal, match="Did you mean 'heart'"):
        Statlog("hart")


def test_each_file_has_its_own_folder_at_the_publishers(tmp_path, monkeypatch):
    tables.install(tmp_path / "published", monkeypatch)
    known = files.CATALOGUE["uci"]
    monkeypatch.setitem(files.CATALOGUE, "uci", known._replace(mirrors=("https://somewhere/",)))
    urls = []

    def copy(self, url, output_file, pooch):
        urls.append(url)
        with open(output_file, "wb") as target:
            target.write((tmp_path / "published" / "uci" / url.rpartition("/")[2]).read_bytes())

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", copy)
    files.ensure("uci", tmp_path / "here")
    assert files.state("uci", tmp_path / "here") == "here"
    assert urls == [f"https://somewhere/{name}/{file}" for name, file in NAMES.items()]


def test_the_data_sets_have_their_published_sizes():
    assert {name: Statlog(name).n for name in NAMES} == {"australian": 690, "german": 1000, "heart": 270}


def test_letters_have_no_training_images():
    assert Images("notmnist", "test").n == 10_000
    with pytest.raises(Refusal, match="choose split=test"):
        Images("notmnist", "train")
    with pytest.raises(Refusal, match="there are no images 'uci'"):
        Images("uci", "test")
