"""Metrics as one long table, tables in YAML, notes as templates, and the helpers that figures are drawn with."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import jinja2
import jinja2.meta
import jinja2.nodes
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from mhrun import paths
from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError
from mhrun.report import declared, notes, plots, vocabulary
from mhrun.report.claims.judge import judge_all
from mhrun.report.metrics import Address, MetricTable, estimate, long_table, short_address, value
from mhrun.report.run import Run


class FakeRun:
    """Two methods and a configuration; `cached` as a run has it."""

    def __init__(self, **config):
        self.config = config
        self.methods = {"a": {"steps": 10}, "b_x": {"steps": 20}}

    def cached(self, function):
        return function(self)

    def label(self, method):
        return method.upper()


# --- Metrics ------------------------------------------------------------------------------------------------


def test_a_metric_is_addressed_by_columns_and_by_its_short_form():
    found = MetricTable({"law.ratio": 2.0})
    found.add("sgd", {"median": Estimate(1.5, 0.1)}, x=0.01)
    found.series("sgd", "tv", {100000: 0.5, "late": 0.25})
    assert list(found) == ["law.ratio", "sgd.median_0.01", "sgd.tv_100000", "sgd.tv_late"]
    assert found.address("sgd.median_0.01") == Address("sgd", "median", 0.01)
    assert found.address("law.ratio") == Address("law", "ratio", None)
    assert found.number("sgd.median_0.01") == 1.5
    assert np.isnan(found.number("sgd.nothing"))
    assert found.of("sgd")["tv_100000"] == 0.5
    assert found.having("ratio") == [2.0]
    assert short_address({"method": "sgd", "metric": "median", "x": 0.01}) == "sgd.median_0.01"
    assert short_address({"method": "sgd", "metric": "tv", "x": 100000}) == "sgd.tv_100000"
    assert short_address("sgd.tv_late") == "sgd.tv_late"


def test_joined_tables_keep_their_columns_and_leave_the_first_as_it_was():
    one, two = MetricTable(), MetricTable()
    one.add("a", {"m": 1.0}, x=1)
    two.add("b", {"m": 2.0}, x=2)
    both = one | two
    assert both.address("b.m_2") == Address("b", "m", 2)
    assert list(one) == ["a.m_1"]
    one |= two
    assert one.address("b.m_2").x == 2
    assert dict(both) == dict(one)


def test_a_function_of_a_run_is_computed_once_for_each_run():
    class Caching(FakeRun):
        cached = Run.cached

        def __init__(self):
            super().__init__()
            self._cached, self._failed = {}, {}

    calls = []

    @vocabulary.cached
    def computed(run):
        """Count the calls."""
        calls.append(run)
        return len(calls)

    one, two = Caching(), Caching()
    assert [computed(one), computed(one), computed(two), computed(one)] == [1, 1, 2, 1]
    assert computed.__doc__ == "Count the calls."


def test_the_power_of_a_power_law():
    assert vocabulary.log_slope([1, 2, 8], [3.0, 12.0, 192.0]) == pytest.approx(2.0)


def test_the_long_table_has_a_row_for_each_metric():
    found = MetricTable({"a.tv": Estimate(0.5, 0.25), "plain": 1.0})
    found.add("a", {"cost": 3.0}, x=0.1)
    frame = long_table(found)
    expected = [["a", "tv", None, 0.5, 0.25], ["", "plain", None, 1.0, None], ["a", "cost", 0.1, 3.0, None]]
    columns = ["method", "metric", "x", "value", "se"]
    pd.testing.assert_frame_equal(frame, pd.DataFrame(expected, columns=columns), check_dtype=False)


@pytest.mark.parametrize("value", [{"method": "a"}, {"metric": "m", "row": 1}, 3])
def test_an_address_that_is_none_is_refused(value):
    with pytest.raises(UserError, match="claim x: "):
        short_address(value, "claim x")


def test_a_claim_may_name_its_metric_by_columns(tmp_path, monkeypatch):
    text = """
paper: {title: t}
experiments:
  e:
    claims:
      - {id: c, artefact: a, quantity: q, paper: 1, rule: {below: 2}, metric: {method: sgd, metric: median, x: 0.01}}
"""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "claims.yaml").write_text(text)
    monkeypatch.setattr("mhrun.report.claims.judge.EXPERIMENTS", tmp_path)
    monkeypatch.setattr("mhrun.report.claims.judge.CONF", tmp_path)
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "e.yaml").touch()
    config = {"experiment": "e", "report": {"paper": "p"}, "runtime": {"departures": []}}
    (judged,) = judge_all(config, {"sgd.median_0.01": Estimate(1.5, 0.1)})
    assert (judged.ours, judged.holds) == (1.5, True)


def test_estimates_and_their_values():
    assert estimate([1.0, 2.0, 3.0]) == Estimate(2.0, pytest.approx(1 / np.sqrt(3)))
    assert np.isnan(estimate(np.array([2.0])).se)
    assert np.isnan(estimate(np.array([]))).all()  # without a warning: chains may have stopped
    assert estimate([1.0, np.inf]) == Estimate(np.inf, pytest.approx(np.nan, nan_ok=True))
    assert (value(Estimate(2.0, 9.0)), value(3)) == (2.0, 3.0)
    assert np.isnan(value(None))


# --- Declared tables and notes ------------------------------------------------------------------------------

MODULE = '''
"""A module of an experiment."""
from mhrun.report.metrics import MetricTable

LIMIT = 3

def metrics(run):
    """Metrics."""
    found = MetricTable({"a.tv": 0.5, "b_x.tv": 0.25, "b_x.size": 7.0, "law.ratio": 2.0, "b_x.over.a": 0.5})
    found.series("a", "error", {0.5: 3.0, 2.0: 4.0})
    found.series("b_x", "error", {0.125: 5.0})
    return found

def chosen(run):
    """Rows."""
    return ["b_x"]

def records(run):
    """Records."""
    return {(1, 0.5): {"one": 1.0, "two": 2.0}, (1000, 2.0): {"one": 3.0, "two": 4.0}}

def exact(run):
    """A row before all others."""
    return {"exact": {"tv": 0.0}}

def pairs(run):
    """Rows of two methods."""
    return [("b_x", "a"), ("b_x", "c")]

def times(run, factor, of="a"):
    """What is multiplied."""
    return factor * run.methods[of]["steps"]

def steps_of(run, method):
    """A cell."""
    return run.methods[method]["steps"]

def drawn(run):
    """What is drawn."""
    return "nothing"
'''
TABLES = """
tables:
  plain: {caption: All of them., columns: {TV: tv, size: size, ratio: law.ratio}}
  some: {rows: chosen, first: exact, columns: {TV: tv}}
  grid:
    each: {kind: [a, b], data: [x, y]}
    method: "{kind}_{data}"
    columns: {TV: tv, paper: {printed: {b: {x: 4, y: 5}}}, steps: {by: steps_of}}
  printed: {rows: [b_x, a, c], columns: {paper: {printed: {a: [1, 0.5]}}, TV: tv}}
  listed: {of: records, label: "n = {0:,}, c = {1:g}", columns: {first: one, second: two}}
  full: {columns: {size: size, nothing: missing}, empty: drop}
  series: {columns: {"x = {0:g}": {series: error}, TV: tv}}
  pairs: {rows: pairs, label: "{0} over {1}", columns: {TV: tv, lead: "over.{1}"}}
calls:
  doubled: {caption: "Twice the steps.", function: times, with: {factor: 2}}
  elsewhere: {function: somewhere.thing.times, with: {factor: 3, of: b_x}}
printed: {table_1: {a: [1, 2]}}
captions:
  drawn: Nothing is seen.
"""
NOTES = """
{% for method in run.methods %}
{{ method }} has {{ found[method ~ ".tv"] | fmt(".2f") }}{{ "," if loop.last }}
of {{ LIMIT }}.

{% endfor %}
{% if has("a", "c") %}
Not here.
{% elif has_any("a", "c") %}
Here
{% if LIMIT > 2 %}
and there{% endif %}
: {{ found["law.ratio"] | shown }}.
{% endif %}
"""


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Files of an experiment in a folder of their own."""
    (tmp_path / "__init__.py").write_text("")
    paper = tmp_path / "somewhere"
    paper.mkdir()
    (paper / "__init__.py").write_text("")
    for name, text in (("thing.py", MODULE), ("thing.yaml", TABLES), ("thing.notes.md", NOTES)):
        (paper / name).write_text(text)
    for module in (paths, declared, notes):
        monkeypatch.setattr(module, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(paths, "_ALIAS", "mhrun_experiments_of_a_test")
    declared._declarations.cache_clear()
    notes._environment.cache_clear()
    yield paper
    declared._declarations.cache_clear()
    notes._environment.cache_clear()
    for name in [name for name in sys.modules if name.startswith("mhrun_experiments_of_a_test")]:
        del sys.modules[name]


def made(name):
    return declared.experiment_function("somewhere.thing", name)(FakeRun())


def test_tables_are_made_as_they_are_declared(beside):
    assert made("plain").to_dict("index") == {
        "A": {"TV": 0.5, "size": pytest.approx(np.nan, nan_ok=True), "ratio": 2.0},
        "B_X": {"TV": 0.25, "size": 7.0, "ratio": 2.0},
    }
    assert made("some").to_dict("index") == {"exact": {"TV": 0.0}, "B_X": {"TV": 0.25}}
    assert made("grid").to_dict("index") == {"B_X": {"TV": 0.25, "paper": 4, "steps": 20}}
    assert list(made("printed").index) == ["B_X", "A"]
    assert made("printed").loc["A", "paper"] == Estimate(1.0, 0.5)
    assert made("listed").to_dict("index") == {
        "n = 1, c = 0.5": {"first": 1.0, "second": 2.0},
        "n = 1,000, c = 2": {"first": 3.0, "second": 4.0},
    }
    assert made("full").to_dict("index") == {"B_X": {"size": 7.0}}
    nan = pytest.approx(np.nan, nan_ok=True)
    assert made("series").to_dict("index") == {
        "A": {"x = 0.125": nan, "x = 0.5": 3.0, "x = 2": 4.0, "TV": 0.5},
        "B_X": {"x = 0.125": 5.0, "x = 0.5": nan, "x = 2": nan, "TV": 0.25},
    }
    assert made("pairs").to_dict("index") == {"B_X over A": {"TV": 0.25, "lead": 0.5}}
    assert declared.experiment_function("somewhere.thing", "plain").__doc__ == "All of them."


def test_a_call_is_a_function_with_arguments(beside):
    assert made("doubled") == 20
    assert made("elsewhere") == 60
    assert declared.experiment_function("somewhere.thing", "doubled").__doc__ == "Twice the steps."


def test_printed_numbers_are_read_from_the_file(beside):
    assert declared.printed("somewhere.thing") == {"table_1": {"a": [1, 2]}}


def test_a_caption_goes_on_where_the_docstring_ends(beside):
    drawn = declared.experiment_function("somewhere.thing", "drawn")
    assert drawn.__doc__ == "What is drawn.\n\nNothing is seen."
    assert drawn(FakeRun()) == "nothing"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("tables: {plain: {colums: {a: b}}}", r"table somewhere\.thing\.plain: there is no key 'colums'"),
        ("tables: {plain: {caption: c}}", "'columns' is missing"),
        ("tables: {plain: {columns: {a: {paper: 1}}}}", "there is no key 'paper'"),
        ("calls: {plain: {function: drawn, arguments: {}}}", "there is no key 'arguments'"),
        ("calls: {plain: {with: {}}}", "'function' is missing"),
        ("figures: {}", "the groups calls, captions, measure, metrics, printed, tables alone"),
        ("tables: [", "cannot be read"),
    ],
)
def test_a_declaration_that_is_none_is_refused_in_one_line(beside, text, line):
    (beside / "thing.yaml").write_text(text)
    with pytest.raises(UserError, match=line):
        declared.experiment_function("somewhere.thing", "plain")


def test_what_is_neither_declared_nor_written_is_not_there(beside):
    with pytest.raises(AttributeError):
        declared.experiment_function("somewhere.thing", "nothing")
    with pytest.raises(ModuleNotFoundError):
        declared.experiment_function("somewhere.else", "nothing")
    with pytest.raises(ModuleNotFoundError):
        declared.experiment_function("../somewhere.thing", "notes")


def test_notes_are_the_paragraphs_of_a_template(beside):
    assert made("notes") == ["a has 0.50 of 3.", "b_x has 0.25, of 3.", "Here and there : 2."]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{{ nothing }}", jinja2.UndefinedError),
        ("{{ found['no.such'] }}", jinja2.UndefinedError),
        ("{{ run.__class__ }}", jinja2.sandbox.SecurityError),
        ("{{ metrics.__globals__ }}", jinja2.sandbox.SecurityError),
        ("{{ ''.__class__.__mro__ }}", jinja2.sandbox.SecurityError),
        ("{% include '../thing.md' %}", jinja2.TemplateNotFound),
    ],
)
def test_a_template_names_what_is_there_and_no_more(beside, text, error):
    (beside / "thing.notes.md").write_text(text)
    with pytest.raises(error):
        made("notes")


def test_numbers_of_notes():
    assert notes.fmt(Estimate(1234.5, 3.0), ",.0f") == "1,234"
    assert notes.fmt(np.int64(60000), ",") == "60,000"
    assert notes.fmt(None, ".1f") == "nan"
    assert notes.percent(MetricTable({"a.b": 0.125}), "a.b") == "12.5 %"
    assert notes.paragraphs("\n one\n  two\n \n\nthree\n") == ["one two", "three"]


# --- Figures ------------------------------------------------------------------------------------------------


def test_panels_label_the_outer_axes_that_they_share():
    figure, axes = plots.panels(5, columns=3, share="xy", xlabel="x", ylabel="y", xscale="log")
    assert [axis.get_xlabel() for axis in axes] == ["", "", "x", "x", "x"]
    assert [axis.get_ylabel() for axis in axes] == ["y", "", "", "y", ""]
    assert {axis.get_xscale() for axis in axes} == {"log"}
    assert len(figure.axes) == 5
    _, (alone,) = plots.panels(0)
    assert alone.get_xlabel() == ""
    plt.close("all")


def test_a_band_is_about_the_mean_and_points_have_their_errors():
    figure, (axis,) = plots.panels(1)
    by_chain = np.array([[0.0, 2.0], [2.0, 4.0], [4.0, 6.0]])
    plots.band(axis, [1, 2], by_chain, spread="se", color="red", label="one")
    assert axis.get_lines()[0].get_ydata() == pytest.approx([2.0, 4.0])
    edges = axis.collections[0].get_paths()[0].get_extents()
    assert edges.y0 == pytest.approx(2 - by_chain[:, 0].std() / np.sqrt(2))
    plots.points(axis, [0, 1], [Estimate(1.0, 0.5), 3.0], errors=2, upright=False, label="two")
    bars = axis.containers[0].lines[2][0].get_segments()
    assert bars[0][:, 0] == pytest.approx([0.0, 2.0])
    assert bars[1][:, 0] == pytest.approx([3.0, 3.0])
    plots.finished(figure, legend="right")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]
    plt.close("all")


def test_each_label_is_in_the_legend_once():
    figure, axes = plots.panels(2)
    for axis in axes:
        plots.lines(axis, [0, 1], {"a": [1, 2], "b": [2, 3]})
        plots.levels(axis, 0.5)
    plots.finished(figure, legend="right")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]
    assert [line.get_label() for line in axes[0].get_lines()[:2]] == ["a", "b"]
    plt.close("all")


def test_notes_of_a_sweep_see_its_runs(beside):
    (beside / "sweep.py").write_text(
        '"""A sweep."""\ndef sweep_metrics(runs):\n    """Metrics."""\n    return {"all.count": float(len(runs))}\n'
    )
    (beside / "sweep.sweep_notes.md").write_text(
        '{{ found["all.count"] | fmt(".0f") }} runs of {{ config["n"] }}.'
    )
    runs = [SimpleNamespace(config={"n": 5}), SimpleNamespace(config={"n": 6})]
    assert declared.experiment_function("somewhere.sweep", "sweep_notes")(runs) == ["2 runs of 5."]


@pytest.mark.parametrize(
    "path",
    sorted(path.relative_to(paths.EXPERIMENTS).as_posix() for path in paths.EXPERIMENTS.rglob("*.*.md")),
)
def test_templates_of_the_experiments_name_what_their_modules_have(path):
    environment = notes._environment()
    source, _, _ = environment.loader.get_source(environment, path)
    tree = environment.parse(source)
    named = jinja2.meta.find_undeclared_variables(tree)
    named -= {name.name for name in tree.find_all(jinja2.nodes.Name) if name.ctx == "store"}
    module = paths.experiment_module(path.split(".")[0].replace("/", "."))
    there = {
        "config",
        "found",
        "has",
        "has_any",
        "names",
        "temperature_of",
        "values_of",
        "run",
        "runs",
        *notes._public(module),
        *environment.globals,
    }
    assert named - there == set()
    environment.compile(source)  # filters and tests that there are none of are refused here
