"""Methods compared at equal cost, and their errors while chains grow."""

from __future__ import annotations

import json

import matplotlib.image
import numpy as np
import pytest
from kit import FEW, compute

from mhrun.cli.main import run
from mhrun.diagnostics.chains import worth
from mhrun.diagnostics.distances import own_error
from mhrun.diagnostics.growth import growth
from mhrun.report.efficiency import costs, valid_draws
from mhrun.report.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of two methods, of which MINT costs twice as much as SGHMC for a step."""
    return compute(tmp_path_factory.mktemp("equal") / "outputs", *FEW, "steps=300", "warmup=50")


def compared(folder, capsys, *arguments):
    assert (
        run(["compare", str(folder.path), *arguments, "--json", f"runtime.outputs={folder.path.parents[1]}"])
        == 0
    )
    captured = capsys.readouterr()
    return json.loads(captured.out)["methods"], captured.err


def test_the_method_with_the_least_evaluations_sets_the_cost(folder, capsys):
    whole = Run(folder)
    totals = {name: costs(whole, name)["evaluations"] for name in whole.methods}
    least = min(totals, key=totals.get)
    other = next(name for name in totals if name != least)
    assert totals[other] == 2 * totals[least]
    rows, err = compared(folder, capsys, "--equal-cost")
    assert {row["evaluations"] for row in rows.values()} == {totals[least]}
    assert rows[other]["draws"] == 150
    assert rows[least]["draws"] == 300
    draws = valid_draws(whole, other)[:, :150]
    assert rows[other]["ess"] == pytest.approx(worth(draws)["ess"])
    assert rows[other]["ess_per_million"] == pytest.approx(1e6 * rows[other]["ess"] / totals[least])
    seconds = costs(whole, other)["seconds"]
    assert rows[other]["seconds"] == pytest.approx(seconds / 2)
    assert rows[other]["ess_per_second"] == pytest.approx(rows[other]["ess"] / (seconds / 2))
    assert "Each method with the first draws that" in err
    assert f"All draws of {least}, which cost no more." in err


@pytest.mark.slow
def test_a_cost_may_be_given_and_the_reference_keeps_its_draws(folder, capsys):
    name, reference = "mint", "sghmc"
    total = costs(Run(folder), name)["evaluations"]
    rows, err = compared(
        folder, capsys, f"--equal-cost={total / 10:g}", "--reference", f"{folder.path}:{reference}"
    )
    assert rows[name]["draws"] == 30
    assert rows[name]["evaluations"] == pytest.approx(total / 10)
    assert rows[reference]["draws"] == 300
    assert "and the reference with all" in err
    _, err = compared(folder, capsys, f"--equal-cost={total / 100:g}")
    assert f"{name}, {reference}: " in err
    assert "evaluations are fewer than 10 draws of each chain" in err
    rows, _ = compared(folder, capsys, "--equal-cost=1e12")
    assert {row["draws"] for row in rows.values()} == {300}


@pytest.mark.parametrize(
    "arguments", [["--equal-cost", "100000"], ["--equal-cost", "1e5"], ["--equal-cost=1e5"]]
)
def test_the_cost_may_follow_a_space(folder, capsys, arguments):
    _, err = compared(folder, capsys, *arguments)
    assert "first draws that 100,000 evaluations" in err


@pytest.mark.slow
def test_errors_against_cost_are_drawn_with_a_reference(folder, capsys):
    outputs = folder.path.parents[1]
    arguments = [str(folder.path), "--reference", f"{folder.path}:sghmc", f"runtime.outputs={outputs}"]
    assert run(["compare", *arguments]) == 0
    place = capsys.readouterr().out.rsplit("page", 1)[1].strip().removesuffix("index.html")
    assert matplotlib.image.imread(f"{place}errors.png").shape[1] > 200


def test_errors_while_chains_grow_are_those_of_their_first_draws(rng):
    """By plain loops: means and standard deviations of the first draws, in the reference's standard deviations."""
    draws = rng.normal([1.0, -2.0, 5.0], [2.0, 0.5, 1.0], size=(3, 400, 3))
    reference = rng.normal([1.2, -2.0, 5.0], [1.0, 0.5, 0.0], size=(2, 5000, 3))
    found = growth(draws, reference)
    assert found.share[-1] == 1
    assert (np.diff(found.share) > 0).all()
    for share, mean, spread in zip(*found, strict=True):
        count = round(share * 400)
        off, wide = [], []
        for d in range(2):  # the third never moves in the reference
            pooled = draws[:, :count, d].ravel()
            sd = reference[..., d].ravel().std(ddof=1)
            off.append((pooled.mean() - reference[..., d].mean()) / sd)
            wide.append(pooled.std(ddof=1) / sd - 1)
        assert mean == pytest.approx(np.sqrt(np.mean(np.square(off))))
        assert spread == pytest.approx(np.sqrt(np.mean(np.square(wide))))
    # What remains is the bias: 0.2 and 1 of the first coordinate's, nothing of the second's.
    assert found.mean[-1] == pytest.approx(0.2 / np.sqrt(2), abs=5 * 2 / np.sqrt(1200))
    assert found.spread[-1] == pytest.approx(1 / np.sqrt(2), abs=5 * 2 / np.sqrt(2400))


def test_the_own_error_of_a_reference_is_that_of_its_draws(rng):
    """Of independent normal draws: 1/sqrt(N) of a mean and 1/sqrt(2N) of a standard deviation."""
    reference = rng.normal(3.0, [1.0, 50.0], size=(4, 2000, 2))
    mean, spread = own_error(reference)
    assert mean == pytest.approx(1 / np.sqrt(8000), rel=0.1)
    assert spread == pytest.approx(1 / np.sqrt(16_000), rel=0.1)
