"""Tables of the user: the roles of columns, and one-line errors for files that are no tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mhrun.data import Dataset, outcome, table
from mhrun.data.table import Table
from mhrun.data.table_file import read_table
from mhrun.errors import Refusal, UserError
from mhrun.models.poisson_regression import PoissonRegression
from mhrun.models.robust_regression import RobustRegression
from mhrun.target.fields import unfit


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def frame(rng):
    n = 60
    return pd.DataFrame(
        {
            "a": rng.normal(3, 2, n),
            "b": rng.integers(0, 9, n),
            "kind": rng.choice(["red", "blue", "green"], n),
            "grade": rng.choice([1, 2], n),
            "y": rng.normal(size=n),
            "sick": rng.choice(["no", "yes"], n),
        }
    )


def needs_pyarrow(frame, name):
    pytest.importorskip("pyarrow")
    frame.to_parquet(name)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            {4: "1.5.0"},
            "'1.5.0' in data row 5 is not a number (299 others are); if they stand for missing values",
        ),
        (
            {4: "n/a?", 7: "n/a?", 8: "unknown"},
            "if they stand for missing values, 'missing_values.b=[\"n/a?\",unknown]' missing=drop leaves",
        ),
        (
            {4: "1,5", 7: "?"},
            "column 'b': '1,5' in data row 5 and 1 more are not numbers (298 others are)",
        ),
    ],
)
def test_a_cell_that_is_no_number_is_named_with_its_row(tmp_path, cells, words):
    values = [cells.get(i, f"{i / 7:.4f}") for i in range(300)]
    lines = ["a,b,y", *(f'{i},"{value}",{i % 2}' for i, value in enumerate(values))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError) as error:
        Table(str(tmp_path / "t.csv"), target="y").load()
    assert words in str(error.value)
    assert "categorical" not in str(error.value)


def _with_codes(frame, name):
    """Write a table in which 9 cells of a and grade stand for missing values, and return it with these cells empty."""
    codes = frame.assign(a=frame["a"].map("{:.3f}".format), grade=frame["grade"].astype(int))
    codes.loc[[3, 7, 8], "a"] = "unknown"
    codes.loc[[1, 3, 5, 9, 30, 31], "grade"] = -999
    codes.to_parquet(name) if name.endswith("parquet") else codes.to_csv(name, index=False)
    empty = codes.assign(
        a=codes["a"].replace("unknown", None), grade=codes["grade"].astype(object).replace(-999, None)
    )
    empty.to_csv("empty.csv", index=False)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_missing_values_can_be_named(frame, name):
    """As if their cells were empty: in columns of numbers and of categories, and in new rows."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    _with_codes(frame, name)
    settings = {"target": "y", "features": ["a", "b"], "categorical": ["grade"], "missing": "drop"}
    part = Table(name, **settings, missing_values=["unknown", -999])
    data, expected = part.load(), Table("empty.csv", **settings).load()
    assert data.facts == expected.facts | {"dropped_texts": {}}
    assert data.facts["dropped"] == 8
    assert torch.equal(data.fields["x"], expected.fields["x"])
    for row in ({"a": "unknown", "b": 1, "grade": 1}, {"a": 1.0, "b": -999, "grade": 1}):
        with pytest.raises(UserError, match="lacks a value in 1 row, first in data row 1"):
            part.prepared(row)
    assert part.prepared({"a": 1.5, "b": 2, "grade": 1}).n == 1
    with pytest.raises(UserError, match="8 of 60 rows lack a value"):
        Table(name, **(settings | {"missing": "refuse"}), missing_values=["unknown", -999]).load()


def test_missing_values_of_a_column_are_values_of_others(tmp_path, monkeypatch):
    """Advice on one column takes nothing from the others, and large identifiers stay whole numbers."""
    monkeypatch.chdir(tmp_path)
    rows = np.arange(60)
    table = pd.DataFrame(
        {
            "a": np.where(rows % 20 == 3, "no", rows.astype(str)),
            "b": np.where(rows % 3 == 0, "no", "yes"),
            "id": np.where(rows % 30 == 4, -9, 2**53 + rows % 10),
            "y": rows % 7,
        }
    )
    table.to_csv("t.csv", index=False)
    settings = {"target": "y", "features": ["a"], "categorical": ["b"], "groups": ["id"], "missing": "drop"}
    with pytest.raises(UserError, match=r"missing_values\.a=\[\"no\"\]' missing=drop leaves their rows out"):
        Table("t.csv", **settings).load()
    found = Table("t.csv", **settings, missing_values={"a": ["no"], "id": [-9.0]}).load()
    assert found.n == 60 - 3 - 2
    assert len(found.facts["groups"]["id"]) == 10
    for values, message in (
        ({"c": ["no"]}, "missing_values: there is no column 'c'"),
        ({"a": ["yes"]}, "no cell of 'a' is 'yes', which missing_values names"),
    ):
        with pytest.raises(UserError, match=message):
            Table("t.csv", **settings, missing_values=values).load()


def test_missing_values_are_in_the_table(frame):
    _with_codes(frame, "t.csv")
    settings = {"target": "y", "features": ["b"], "categorical": ["kind"], "missing": "drop"}
    for absent in ("unknow", 17, "NA"):
        with pytest.raises(UserError, match=f"no cell is {absent!r}, which missing_values names"):
            Table("t.csv", **settings, missing_values=["unknown", absent]).load()
    for wrong in (None, False, [1], ""):
        with pytest.raises(Refusal, match="neither a text nor a number"):
            Table("t.csv", **settings, missing_values=[wrong])
    chosen = Table("t.csv", **settings, missing_values=["red"]).load()
    assert chosen.facts["columns"] == ["b", "kind=green"]
    assert chosen.facts["dropped_texts"] == {}  # which are read as missing without being named


@pytest.mark.parametrize(
    "rows",
    ["0,25;1\n1,5;2\n", "2;1\n1,5;2\n", "-1,5e3;1\n;2\n", "1,234,567.5;1\n2.5;2\n"],
    ids=["all", "some", "with a missing value", "thousands"],
)
def test_decimal_commas_are_named(rows):
    """As a feature and as an outcome, which would have few classes."""
    Path("t.csv").write_text(f"dose;y\n{rows}")
    for read in (
        lambda: Table("t.csv", target="y").load(),
        lambda: Table("t.csv", target="dose").load(),
        lambda: outcome.outcome_of(Path("t.csv"), "dose"),
    ):
        with pytest.raises(
            UserError,
            match=r"column 'dose' holds '.*,.*', .* with a comma; .* decimal points .*thousands=','",
        ):
            read()


@pytest.mark.parametrize(("encoding", "name"), [("latin-1", "LATIN1"), ("utf-16", "UTF-16")])
@pytest.mark.parametrize("place", ["first", "later"])
def test_a_file_that_is_not_utf_8_is_named(encoding, name, place):
    rows = "1;2\n" * (100_000 if place == "later" and encoding == "latin-1" else 1)
    Path("t.csv").write_text(f"{'größe' if place == 'first' else 'a'};y\n{rows}2;ö\n", encoding=encoding)
    with pytest.raises(
        UserError, match=rf"t.csv is not UTF-8 text \(a byte 0x..\); .* iconv -f {name} -t UTF-8\."
    ):
        Table("t.csv", target="y").load()


@pytest.mark.parametrize("name", ["${seed}", "a${b", "???"])
def test_a_column_that_a_configuration_cannot_name_is_refused(name):
    """Where it is used; a name that ${seed} became is that of no column."""
    pd.DataFrame({name: [1.0, 2.0, 4.0], "b": [1.0, 3.0, 2.0], "y": [0, 1, 0]}).to_csv("t.csv", index=False)
    for settings in ({}, {"features": [name]}, {"features": ["0"]}, {"features": ["b"], "exposure": name}):
        with pytest.raises(UserError) as error:
            Table("t.csv", target="y", **settings).load()
        assert f"t.csv: column '{name}' cannot be named in a configuration" in str(error.value)
    assert Table("t.csv", target="y", features=["b"]).n == 3


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_columns_have_roles(frame, name):
    if "parquet" in name:
        needs_pyarrow(frame, name)
    else:
        frame.to_csv(name, index=False, sep="\t" if "tsv" in name else ",")
    source = Table(name, target="y", features=["b", "a"], categorical=["kind", "grade"], intercept=True)
    data = source.load()
    assert source.n == data.n == 60
    assert data.facts["columns"] == ["1", "b", "a", "kind=green", "kind=red", "grade=2"]
    x = data.fields["x"].numpy()
    assert (x[:, 0] == 1).all()
    assert x[:, 2] == pytest.approx((frame.a - frame.a.mean()) / frame.a.std(ddof=0))
    assert x[:, 3] == pytest.approx((frame.kind == "green").astype(float))
    assert x[:, 5] == pytest.approx((frame.grade == 2).astype(float))
    assert data.fields["y"].numpy() == pytest.approx(frame.y)
    both = Table(name, target="y", features=["kind", "b"], categorical=["kind"]).load()
    assert both.facts["columns"] == ["b", "kind=green", "kind=red"]
    bare = Table(name, target="y", features=["b"], standardise=False).load().fields["x"]
    assert bare[:, 0].tolist() == frame.b.tolist()


def test_the_baseline_of_a_category_can_be_chosen(frame):
    """A word of the command line names a number too; new rows have the same indicators."""
    frame.to_csv("t.csv", index=False)
    rest = {"target": "y", "features": ["a"], "categorical": ["kind", "grade"]}
    chosen = Table("t.csv", **rest, baselines={"kind": "green", "grade": "2"})
    data = chosen.load()
    assert data.facts["columns"] == ["a", "kind=blue", "kind=red", "grade=1"]
    assert data.facts["baselines"] == {"kind": "green", "grade": "2"}
    assert data.fields["x"][:, 2].numpy() == pytest.approx((frame.kind == "red").astype(float))
    new = chosen.prepared(frame.iloc[:9])
    assert torch.equal(new.fields["x"], data.fields["x"][:9])
    with pytest.raises(
        UserError, match="column 'kind' has no value 'gren', its baseline; it has 'blue', 'green'"
    ):
        Table("t.csv", **rest, baselines={"kind": "gren"}).load()
    with pytest.raises(Refusal, match=r"baselines: 'b' is not in categorical = \[kind, grade\]; add it\."):
        Table("t.csv", **rest, baselines={"b": 2})


def test_the_baseline_of_the_outcome_can_be_chosen(frame):
    """It is -1, or class 0; other classes stay in sorted order."""
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a"]}
    for settings in ({}, {"baselines": {"sick": "no"}}, {"baselines": {"sick": "yes"}}):
        data = Table("t.csv", target="sick", outcome="sign", **rest, **settings).load()
        positive = "no" if settings.get("baselines") == {"sick": "yes"} else "yes"
        assert data.facts["positive"] == positive
        assert data.fields["y"].tolist() == [1 if value == positive else -1 for value in frame["sick"]]
    data = Table("t.csv", target="kind", outcome="class", **rest, baselines={"kind": "red"}).load()
    assert data.facts["classes"] == ["red", "blue", "green"]
    assert data.fields["y"].tolist() == [["red", "blue", "green"].index(kind) for kind in frame["kind"]]
    data = Table("t.csv", target="grade", outcome="sign", **rest, baselines={"grade": "2"}).load()
    assert data.facts["positive"] == 1
    assert data.facts["baselines"] == {}
    with pytest.raises(UserError, match="column 'sick' has no value 'ye', its baseline; it has 'no', 'yes'"):
        Table("t.csv", target="sick", outcome="sign", **rest, baselines={"sick": "ye"}).load()
    with pytest.raises(Refusal, match="'y' is a target of numbers, which has no baseline"):
        Table("t.csv", target="y", **rest, baselines={"y": 1})
    with pytest.raises(Refusal, match="positive and baselines both order the values of 'sick'"):
        Table("t.csv", target="sick", outcome="sign", positive="no", baselines={"sick": "yes"})


@pytest.mark.parametrize(("word", "columns"), [("1", ["k=0", "k=2"]), ("2.0", ["k=0", "k=1"])])
def test_a_baseline_is_a_number_where_the_column_has_numbers(frame, word, columns):
    """A missing value makes whole numbers float; they have the names of a column without one."""
    frame.assign(k=[0, 1, None] + [2] * (len(frame) - 3)).to_csv("t.csv", index=False)
    rest = {"target": "y", "features": ["a"], "categorical": ["k"], "missing": "drop"}
    assert Table("t.csv", **rest, baselines={"k": word}).load().facts["columns"] == ["a", *columns]


@pytest.mark.parametrize("word", ["true", "True", True])
def test_a_baseline_of_true_and_false(frame, word):
    frame.assign(k=[True, False] * (len(frame) // 2)).to_csv("t.csv", index=False)
    table = Table("t.csv", target="y", features=["a"], categorical=["k"], baselines={"k": word})
    assert table.load().facts["columns"] == ["a", "k=False"]


def test_the_case_of_letters_does_not_change_which_of_two_values_is_positive(frame):
    frame.assign(sick=frame.sick.str.replace("yes", "Yes")).to_csv("t.csv", index=False)
    y = Table("t.csv", outcome="sign", features=["a"], target="sick").load().fields["y"]
    assert y.tolist() == [1 if v == "yes" else -1 for v in frame.sick]


def test_outcomes(frame):
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a"], "target": "sick"}
    assert Table("t.csv", outcome="sign", **rest).load().fields["y"].tolist() == [
        1 if v == "yes" else -1 for v in frame.sick
    ]
    assert Table("t.csv", outcome="sign", positive="no", **rest).load().fields["y"][0] == (
        1 if frame.sick[0] == "no" else -1
    )
    found = Table("t.csv", outcome="class", features=["a"], target="kind").load()
    assert found.facts["classes"] == ["blue", "green", "red"]
    assert found.fields["y"].tolist() == [["blue", "green", "red"].index(v) for v in frame.kind]
    scaled = Table("t.csv", features=["a"], target="y", standardise_target=True).load()
    back = scaled.fields["y"].numpy() * scaled.facts["target_sd"] + scaled.facts["target_mean"]
    assert back == pytest.approx(frame.y)


def test_rows_are_split_by_a_seed_and_scaled_as_those_for_training(frame):
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a"], "target": "y", "test_share": 0.25}
    train, test = (Table("t.csv", part=part, **rest).load() for part in ("train", "test"))
    assert (train.n, test.n) == (45, 15)
    assert sorted([*train.fields["y"].tolist(), *test.fields["y"].tolist()]) == pytest.approx(sorted(frame.y))
    assert float(train.fields["x"].mean()) == pytest.approx(0, abs=1e-12)
    mean, sd = train.facts["scales"]["a"]
    again = test.fields["x"][:, 0].numpy() * sd + mean
    assert set(np.round(again, 9)) <= set(np.round(frame.a, 9))
    other = Table("t.csv", seed=1, **rest).load()
    assert other.fields["y"].tolist() != train.fields["y"].tolist()


def test_types_that_parquet_has_and_csv_has_not(frame):
    """The same numbers as from a text file; values that are neither numbers nor categories are named."""
    n = len(frame)
    frame = frame.astype({"b": "Int64", "kind": "category"}).assign(
        single=frame.a.astype(np.float32), flag=pd.array(frame.b > 4, dtype="boolean")
    )
    needs_pyarrow(frame, "t.parquet")
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a", "b", "single", "flag"], "categorical": ["kind"], "target": "y"}
    one, two = (Table(name, **rest).load() for name in ("t.parquet", "t.csv"))
    assert one.facts["columns"] == two.facts["columns"]
    torch.testing.assert_close(one.fields["x"], two.fields["x"], rtol=0, atol=1e-6)
    frame.loc[3, "b"] = pd.NA
    frame.loc[4, "kind"] = None
    frame.assign(many=[np.arange(2)] * n, day=pd.date_range("2020", periods=n)).to_parquet("m.parquet")
    assert Table("m.parquet", missing="drop", **rest).load().n == n - 2
    for columns, message in (
        ({"features": ["b"]}, r"1 of 60 rows lack a value \(b: 1\)"),
        ({"features": ["day"]}, "no numbers"),
        ({"features": ["many"]}, "no numbers"),
        ({"features": ["a"], "categorical": ["many"]}, "holds ndarray values, which are no categories"),
    ):
        with pytest.raises(UserError, match=message):
            Table("m.parquet", target="y", **columns).load()
    whole = Path("t.parquet").read_bytes()
    Path("t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"t\.parquet cannot be read as a table"):
        Table("t.parquet", target="y").load()


def test_a_column_has_one_type_in_a_table_of_several_megabytes(rng):
    """pandas would infer a type for each of its pieces: 1 and "1" would be two groups."""
    n = 80_000
    codes = rng.integers(1, 9, n).astype(str)
    codes[-1] = "unknown"
    noise = {f"x{k}": rng.normal(size=n) for k in range(6)}
    pd.DataFrame({**noise, "k": codes, "y": rng.normal(size=n)}).to_csv("t.csv", index=False)
    data = Table("t.csv", target="y", features=["x0"], groups=["k"]).load()
    assert int(data.fields["k"].max()) == 8


@pytest.mark.parametrize("name", ["x", "height", "weight_kg", '"value"'])
def test_a_table_of_one_column(name):
    """A search for its separator finds a letter of its name."""
    Path("one.csv").write_text(f"{name}\n1.5\n2.5\n")
    data = Table("one.csv", standardise=False).load()
    assert data.facts["columns"] == [name.strip('"')]
    assert data.fields["x"].tolist() == [[1.5], [2.5]]


@pytest.mark.parametrize("separator", [None, ","])
def test_rows_longer_than_the_first_line_shift_no_column(separator):
    def read(rows):
        Path("long.csv").write_text(f"a,b,y\n{rows}")
        return (
            Table("long.csv", target="y", standardise=False, separator=separator).load().fields["y"].tolist()
        )

    with pytest.raises(UserError, match="more values than its first line has names"):
        read("0,2,3,9\n1,5,6,8\n")
    assert read("0,2,3,\n1,5,6,\n") == [3, 6]


@pytest.mark.parametrize(
    ("column", "message"), [(["0.1"] * 3, "is 0.1 in every row"), (["1e200", "2e200", "3e200"], "too large")]
)
def test_columns_that_cannot_be_standardised(column, message):
    """The mean of three times 0.1 is not 0.1."""
    rows = "".join(f"{a},{b}\n" for b, a in enumerate(column))
    Path("c.csv").write_text(f"a,b\n{rows}")
    with pytest.raises(UserError, match=message):
        Table("c.csv").load()


def test_columns_that_have_numbers_for_names():
    pytest.importorskip("pyarrow")
    pd.DataFrame({0: [1.0, 2.0], 1: [5.0, 7.0]}).to_parquet("n.parquet")
    data = Table("n.parquet", target="1", standardise=False).load()
    assert data.fields["y"].tolist() == [5.0, 7.0]


def test_what_is_no_table_at_all_is_reported():
    for text in (b"", b"\n", b"\x1f\x8b\x08\x00garbage"):
        for name in ("a.csv", "a.csv.gz"):
            Path(name).write_bytes(text)
            with pytest.raises(UserError, match=name):
                Table(name).load()


def test_missing_values_are_refused_or_dropped(frame):
    frame.loc[[3, 7], "a"] = np.nan
    frame.loc[7, "kind"] = None
    frame.to_csv("t.csv", index=False)
    rest = {"features": ["a"], "categorical": ["kind"], "target": "y"}
    with pytest.raises(
        UserError, match=r"2 of 60 rows lack a value \(a: 2, kind: 1\), first in data rows 4, 8; missing"
    ):
        Table("t.csv", **rest).load()
    data = Table("t.csv", missing="drop", **rest).load()
    assert data.n == 58
    assert data.facts["dropped"] == 2
    assert Table("t.csv", features=["b"], target="y").load().n == 60  # of columns that are used


def test_an_invalid_table_gets_one_line(frame, tmp_path):
    frame.assign(same=1.0).to_csv("t.csv", index=False)
    (tmp_path / "t.parquet").write_bytes(b"no")
    (tmp_path / "t.doc").write_text("no")
    for make, message in (
        (lambda: Table("tt.csv", target="y"), r"There is no data file 'tt.csv'.*Did you mean 't.csv'"),
        (lambda: Table("t.csv", target="yy"), r"no column 'yy'. (Did you mean 'y'|There are: a, b)"),
        (lambda: Table("t.csv", target="y"), r"'kind' holds 'blue', 'green', 'red', no numbers"),
        (
            lambda: Table("t.csv", target="kind", features=["a"]),
            r"'kind', the outcome, holds 'blue', 'green', 'red', no numbers; set outcome=class\.",
        ),
        (
            lambda: Table("t.csv", target="y", features=["a"], outcome="class"),
            "outcome=class: 'y' has 60 values in 60 rows, which are no classes; set outcome=number",
        ),
        (lambda: Table("t.csv", target="y", features=["same"]), "which cannot be standardised"),
        (lambda: Table("t.csv", target="a", features=["a"]), "'a' is feature and target; give it one role"),
        (lambda: Table("t.csv", target="y", features=["a", "a"]), "'a' is in features twice; name it once"),
        (
            lambda: Table("t.csv", target="y", categorical=["kind", "kind"]),
            "'kind' is in categorical twice; name it once",
        ),
        (lambda: Table("t.csv", target="kind", features=["a"], outcome="sign"), "wants two values"),
        (lambda: Table("t.parquet", target="y"), "pyarrow|cannot be read"),
        (lambda: Table("t.doc", target="y"), "is not a supported table"),
    ):
        with pytest.raises(UserError, match=message) as raised:
            make().load()
        assert "\n" not in str(raised.value)
    for name in ("features", "categorical", "exclude", "groups"):
        with pytest.raises(Refusal, match=rf"{name} = 'kind' must be a list of columns: {name}=\[kind\]"):
            Table("t.csv", **{name: "kind"})
    for settings in ({"outcome": "x"}, {"missing": "x"}, {"part": "test"}, {"test_share": 1.0}):
        with pytest.raises(Refusal):
            Table("t.csv", **settings)


def test_a_text_as_the_outcome_of_a_new_row_gets_one_line(frame):
    frame.to_csv("t.csv", index=False)
    table = Table("t.csv", target="b", features=["a"])
    with pytest.raises(
        UserError, match="the new rows: column 'b', the outcome, holds 'high', and those of the table"
    ):
        table.prepared({"a": 1.0, "b": "high"}, outcome=True)


def test_an_exposure_is_a_field_of_its_own(frame):
    frame.assign(days=np.arange(60) + 0.5, none=0.0).to_csv("t.csv", index=False)
    rows = Table("t.csv", target="y", features=["a"], exposure="days")
    assert rows.load().fields["exposure"].tolist() == (np.arange(60) + 0.5).tolist()
    assert rows.load().fields["x"].shape == (60, 1)
    assert rows.prepared({"a": 0.0, "days": 7.0}).fields["exposure"].tolist() == [7.0]
    with pytest.raises(UserError, match="there is no column 'days', the exposure"):
        rows.prepared({"a": 0.0})
    data = {"x": np.ones((3, 1)), "y": np.ones(3)}
    for name in ("expsure", "offset", "log_exposure"):
        assert f"does not read the field {name}; call it exposure" in unfit(
            PoissonRegression(1), Dataset.of(data | {name: np.ones(3)})
        )
    assert unfit(PoissonRegression(1), Dataset.of(data | {"site": np.ones(3)})) is None
    with pytest.raises(UserError, match="the exposure 'none' is 0 in data row 1; it must be positive"):
        Table("t.csv", target="y", features=["a"], exposure="none").load()
    for first, words in ((-2.0, "is -2 in data row 8;"), (np.inf, "holds an infinite number in data row 8")):
        days = [None, *[1.0] * 6, first, *[0.0] * 52]
        frame.assign(days=days).to_csv("b.csv", index=False)
        with pytest.raises(UserError, match=f"'days' {words}"):
            Table("b.csv", target="y", features=["a"], exposure="days", missing="drop").load()
        with pytest.raises(UserError, match=r"days: 1\), first in data rows 1;"):
            Table("b.csv", target="y", features=["a"], exposure="days").load()
        with pytest.raises(UserError, match=f"'days' {words}"):
            rows.prepared(
                pd.DataFrame({"a": 0.0, "days": [2.0, *days[1:]]}, index=[f"r{k}" for k in range(60)])
            )
    with pytest.raises(UserError, match="'days' lacks a value in 1 row, first in data row 2"):
        rows.prepared({"a": [0.0, 1.0], "days": [7.0, np.nan]})
    counts = Dataset.of({"x": np.ones((3, 1)), "y": np.ones(3), "exposure": np.array([1.0, 2.0, 0.0])})
    assert "exposure to be positive; the data have 0 in row 2 (counted from 0)." in unfit(
        PoissonRegression(1), counts
    )
    with pytest.raises(UserError, match="'a' is feature and exposure; give it one role"):
        Table("t.csv", target="y", features=["a"], exposure="a").load()
    for model, message in ((RobustRegression(1), "has no exposure"), (PoissonRegression(1), None)):
        found = unfit(model, Dataset.of({**rows.load().fields, "y": np.ones(60)}))
        assert (found is None) if message is None else (message in found)


def test_a_table_is_read_once_for_all_parts_with_its_settings(frame, monkeypatch):
    read = []
    monkeypatch.setattr(table, "read_table", lambda *given: read.append(given) or read_table(*given))
    frame.to_csv("t.csv", index=False)
    settings = {"target": "y", "features": ["a"]}
    first = Table("t.csv", **settings).load()
    assert Table("t.csv", **settings).load() is first
    assert Table("t.csv", **settings, standardise=False).load() is not first
    assert len(read) == 2
    frame.iloc[:40].to_csv("t.csv", index=False)
    assert Table("t.csv", **settings).n == 40


def test_numbers_are_the_nearest_that_float64_has(rng):
    x = np.concatenate([rng.normal(size=2000), rng.normal(size=1000) * 10.0 ** rng.integers(-30, 30, 1000)])
    Path("t.csv").write_text("a;b\n" + "".join(f"{v!r};1\n" for v in x.tolist()))
    assert (Table("t.csv", features=["a"], standardise=False).load().fields["x"][:, 0].numpy() == x).all()


def test_groups_are_codes_of_their_values_in_sorted_order(frame):
    frame.to_csv("t.csv", index=False)
    part = Table("t.csv", target="y", features=["a"], groups=["kind", "grade"], test_share=0.2, seed=1)
    data = part.load()
    assert data.facts["groups"] == {"kind": ["blue", "green", "red"], "grade": ["1", "2"]}
    # Training and test rows have the same codes, and together they are all rows.
    held_out = Table(
        "t.csv", target="y", features=["a"], groups=["kind", "grade"], test_share=0.2, part="test", seed=1
    ).load()
    rows = {float(y): i for i, y in enumerate(frame["y"])}
    for part_of in (data, held_out):
        at = [rows[float(y)] for y in part_of.fields["y"]]
        for name in ("kind", "grade"):
            codes = part_of.fields[name]
            assert codes.dtype == torch.int64
            values = [data.facts["groups"][name][code] for code in codes]
            assert values == [str(value) for value in frame[name].iloc[at]]
    new = part.prepared({"a": [1.0, 2.0], "kind": ["red", "blue"], "grade": [2, 1]})
    objects = pd.Series({"a": 1.0, "kind": "red", "grade": 2}).to_frame().T  # as of one row of a frame
    assert torch.equal(part.prepared(objects).fields["x"], new.fields["x"][:1])
    assert new.fields["kind"].tolist() == [2, 0]
    assert new.fields["grade"].tolist() == [1, 0]
    with pytest.raises(UserError, match=r"column 'kind' has 'pink', which the table does not have: 'blue'"):
        part.prepared({"a": 1.0, "kind": "pink", "grade": 2})
    with pytest.raises(UserError, match=r"the new rows: column 'a' holds the text '1'; give numbers"):
        part.prepared({"a": "1", "kind": "red", "grade": 2})
    assert "PoissonRegression has no effects of groups (kind, grade)" in str(
        unfit(PoissonRegression(1), data)
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"groups": ["kin"]}, "has no column 'kin'. Did you mean 'kind'?"),
        ({"groups": ["kind", "kind"]}, "'kind' is in groups twice"),
        ({"groups": ["kind"], "categorical": ["kind"]}, "'kind' is category and group; give it one role"),
        ({"groups": ["one"]}, "column 'one' has one value, 'a'; leave it out of groups"),
        ({"groups": ["x"]}, "'x' is the name of another field of the data; rename the column"),
    ],
)
def test_columns_that_are_no_groups(frame, settings, words):
    frame.assign(one="a", x="b").to_csv("t.csv", index=False)
    with pytest.raises(UserError) as error:
        Table("t.csv", target="y", features=["a"], **settings).load()
    assert words in str(error.value)


def test_a_table_without_features_has_no_new_rows(frame):
    frame.to_csv("t.csv", index=False)
    part = Table("t.csv", target="y", features=[])
    assert list(part.load().fields) == ["y"]
    with pytest.raises(UserError, match=r"t\.csv is read without features"):
        part.prepared({"a": 1.0})


def test_new_rows_given_as_text_have_the_indicators_of_numbers_and_booleans(frame):
    frame.assign(old=frame["b"] > 4, grade=frame["b"] % 3)[["a", "grade", "old", "y"]].to_csv(
        "t.csv", index=False
    )
    part = Table("t.csv", target="y", categorical=["grade", "old"])
    assert part.load().facts["columns"] == ["a", "grade=1", "grade=2", "old=True"]
    numbers = part.prepared({"a": [0.0, 1.0, 2.0], "grade": [1, 2, 0], "old": [True, False, True]})
    words = part.prepared({"a": [0.0, 1.0, 2.0], "grade": ["1", "2", "0"], "old": ["True", "False", "True"]})
    assert numbers.fields["x"][:, 1:].tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert torch.equal(words.fields["x"], numbers.fields["x"])


def test_outcomes_of_new_rows_are_a_copy_of_the_frame(frame):
    """A column of a frame is not to be written to, and torch warns of a tensor that shares its memory."""
    frame = frame.assign(y=frame["y"] + 0.5)
    frame.to_csv("t.csv", index=False)
    new = frame.copy()
    rows = Table("t.csv", features=["a"], target="y").prepared(new, outcome=True)
    rows.fields["y"].fill_(-1.0)
    assert new.equals(frame)
