"""Labels of parameters are refused where they are names of other columns of a table."""

from __future__ import annotations

import pandas as pd
import pytest

from mhrun.data.table import Table
from mhrun.models.function import FunctionModel
from mhrun.target.labels import other_labels


@pytest.fixture
def rows(tmp_path, rng, monkeypatch):
    """Three features, an outcome, and schools that have the names of features."""
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    frame = pd.DataFrame(rng.normal(size=(30, 4)), columns=["age", "bmi", "dose", "y"])
    frame["school"] = ["age", "bmi"] * 15
    frame.to_csv(tmp_path / "rows.csv", index=False)

    def load(**settings):
        return Table(str(tmp_path / "rows.csv"), target="y", **settings).load()

    return load


@pytest.mark.parametrize(
    ("labels", "settings", "refused"),
    [
        (["age", "bmi"], {"features": ["age", "bmi"]}, False),
        (["bmi", "age"], {"features": ["age", "bmi"]}, True),
        (["age", "dose"], {"features": ["age", "bmi"]}, True),  # a column that is left out
        (["bmi", "age"], {"features": ["age", "bmi"], "intercept": True}, True),
        (["intercept", "bmi", "age"], {"features": ["age", "bmi"], "intercept": True}, True),
        (["bmi", "age", "dose"], {"features": ["age", "bmi"]}, False),  # not an axis of x
        (["Age (years)", "age"], {"features": ["age", "bmi"]}, False),  # names of one's own
        (["y", "age"], {"features": ["age", "bmi"]}, False),  # with what is no feature
        (["age", "bmi"], {"features": ["bmi", "age"], "groups": ["school"]}, False),  # the values of a group
    ],
)
def test_axes_of_features_have_the_columns_of_the_table(rows, labels, settings, refused):
    slopes = {"prior": "Normal(0, 1)", "dims": {"one": labels}}
    model = FunctionModel(
        lambda theta, row: -((row.y - row.x @ theta.slopes) ** 2), parameters={"slopes": slopes}
    )
    found = other_labels(model, rows(**settings))
    assert (found is not None) == refused
    if found is not None:
        assert (
            "coefficients would have the names of other columns. Give it these names, in this order: "
            in found
        )
