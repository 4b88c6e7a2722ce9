"""The report: claims judged by their rules, tables in four kinds, figures that show something."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import filelock
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from kit import EVERY_FORMAT, FEW, compute

from mhrun.cli.main import run
from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError
from mhrun.paths import EXPERIMENTS, experiment_module
from mhrun.report.build import build_report
from mhrun.report.build import reported as is_reported
from mhrun.report.claims.judge import judge_all
from mhrun.report.fresh import source
from mhrun.report.page import write_page
from mhrun.report.run import Run
from mhrun.report.sections import FIGURES
from mhrun.report.tables import markdown, rendered, shown, shown_column, write_table
from mhrun.store.folder import RunFolder, runs


def own_figures(page: str) -> int:
    """Return how many figures of its own an experiment has on a page, without those that every run has."""
    sections = re.split(r'<h2 id="', page)
    return sum(
        "<figure>" in text and not text.startswith(tuple(f"figure-{n}" for n in FIGURES)) for text in sections
    )


# Figures of every run take seconds, and have tests of their own; here they are drawn where the page as a whole counts.
WITH_GENERAL_FIGURES = {
    "test_the_report_has_everything",
    "test_the_page_is_whole_by_itself",
    "test_unusual_runs_have_their_reports[thinned]",
    "test_unusual_runs_have_their_reports[one step]",
    "test_unusual_runs_have_their_reports[one chain]",
    "test_a_report_made_again_is_the_same",
    "test_a_page_without_a_figure_of_the_experiment_begins_with_the_marginals",
}


# Tests that look at figures, or at what rendering them warns of; the others read text and files.
RENDERED = {
    "test_a_report_made_again_is_the_same",
    *(
        f"test_unusual_runs_have_their_reports[{name}]"
        for name in ("thinned", "one step", "one chain", "two chains", "not tempered", "all data", "lambda 0")
    ),
    "test_a_part_that_fails_leaves_a_line[figures-half-This figure could not be drawn: -0-ours: This figure]",
}


@pytest.fixture(autouse=True)
def _few_figures(request, monkeypatch):
    if request.node.name not in WITH_GENERAL_FIGURES:
        monkeypatch.setattr("mhrun.report.build.FIGURES", {})
    if request.node.name not in RENDERED:
        request.getfixturevalue("unrendered")


def test_values_for_people():
    assert shown(Estimate(1.02345, 0.0512)) == "1.023 ± 0.051"
    assert shown(Estimate(1.0, float("nan"))) == "1"
    assert shown(Estimate(0.96, 1e-17)) == "0.960"  # all rows alike, but for rounding
    assert shown(0.01234) == "0.0123"
    assert shown(1.0004) == "1.000"
    assert shown(2.1e12) == "2.1e12"
    assert shown(None) == "–"
    assert shown(float("nan")) == "–"
    assert shown(True) == "yes"
    assert shown(12345) == "12,345"
    assert shown(999.7) == "1,000"
    assert shown(Estimate(3e-8, 1e-9)) == "(3.00 ± 0.10)e-8"
    assert shown(Estimate(0.5, 2e-7)) == "0.500"  # the CSV has the error
    assert shown(Estimate(0.32814, 3.6e-5)) == "0.32814 ± 0.00004"
    assert shown(Estimate(13540.6, 1521.4)) == "13,541 ± 1,521"
    assert shown(Estimate(5e-324, 5e-324)) == "4.94e-324"


def test_the_numbers_of_a_column_are_alike():
    assert shown_column("ESS", [83.21, 64.0, 5.742, 1234.5, None]) == ["83.2", "64.0", "5.74", "1,234", "–"]
    assert shown_column("ESS ratio", [0.5, 2.0, float("nan")]) == ["0.500", "2", "–"]
    assert shown_column("R-hat", [1.0049, 12.3]) == ["1.005", "12.3"]  # judged in its third decimal
    assert shown_column("evaluations", [160_000.0, 1.6e7]) == ["160,000", "16,000,000"]
    assert shown_column("evaluations", [160_000.0, 1.6e9]) == ["160,000", "1.6e9"]
    assert shown_column("error", [20.0, 0.0123, 0.0]) == ["20.0", "0.0123", "0"]
    assert shown_column("method", ["MINT", "SGLD"]) == ["MINT", "SGLD"]


def test_tables_in_every_kind(tmp_path):
    frame = pd.DataFrame({"a|b": [Estimate(1.5, 0.1), None], "c": [0.25, 1e6]}, index=["x_1", "y & z"])
    write_table(rendered(frame), tmp_path / "t")
    csv = pd.read_csv(tmp_path / "t.csv", index_col=0)
    assert csv.loc["x_1", "a|b"] == 1.5
    assert csv.loc["x_1", "a|b (se)"] == 0.1
    lines = (tmp_path / "t.md").read_text().splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    latex = (tmp_path / "t.tex").read_text()
    assert r"x\_1" in latex
    assert r"y \& z" in latex
    assert r"$\pm$" in latex
    assert markdown(pd.DataFrame({"a": ["1"]}, index=["i"])).startswith("|")

    nested = pd.DataFrame({"a": ["1", "two\nlines"]}, index=pd.MultiIndex.from_tuples([("p", 1), ("q", 2)]))
    of_two = rendered(nested)
    assert r"\begin{tabular}{llr}" in of_two["tex"]
    assert [line.count("|") for line in of_two["md"].splitlines()] == 4 * [4]
    assert "| q | 2 | two lines |" in of_two["md"]
    with_names = rendered(pd.DataFrame({"a": [1.0]}, index=pd.Index([0.2], name="lam")), "a note")
    head = with_names["tex"].splitlines()[2:5]
    assert head == [r"lam & a \\", r"\midrule", r"0.2 & 1 \\"]  # one row of headings
    assert with_names["tex"].endswith("% a note\n")
    assert with_names["md"].endswith("\n\na note\n")
    assert "note" not in with_names["csv"] + with_names["html"]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A run with its report, in every format; tests change copies of it alone."""
    folder = compute(tmp_path_factory.mktemp("reported"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mhrun.report.on_page.FORMATS", EVERY_FORMAT)
        build_report(folder)
    return folder


@pytest.fixture
def copied(reported, tmp_path):
    return RunFolder(shutil.copytree(reported.path, tmp_path / reported.path.name))


def test_the_report_has_everything(reported):
    for name in ("density", "mode_ratio", "one_mode"):
        pixels = matplotlib.image.imread(reported.report / f"{name}.png")
        assert pixels.shape[0] > 200
        assert len(set(map(tuple, pixels[::4, ::4].reshape(-1, pixels.shape[2]).tolist()))) > 50  # colours
        assert (reported.report / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    for name in ("methods", "claims", "distances", "modes"):
        for kind in ("csv", "md", "tex"):
            assert (reported.report / f"{name}.{kind}").stat().st_size > 50
    results = {kind: (reported.report / f"results.{kind}").read_text() for kind in ("csv", "md", "tex")}
    assert ["†" in results[kind] for kind in ("csv", "md", "tex")] == [False, True, True]
    assert "too short to judge" in results["tex"]
    page = (reported.report / "index.html").read_text()
    assert page.count("<figure>") == 7  # three of its own, four that every run has
    assert "http://" not in page
    assert "https://" not in page
    for claim in judge_all(reported.config(), {}):
        assert claim.id in page
    claims = page[page.index('id="claims"') :]
    assert claims.index("± one standard error") < claims.index("<table") < claims.index("\u00a0±\u00a0")


def test_the_page_is_whole_by_itself(reported):
    """It may be mailed: what it shows and what can be saved from it is in it, and it fits a phone."""
    page = (reported.report / "index.html").read_text()
    assert len(page) < 1e6
    assert page.count("<script") == 1  # ours; see test_page_parts.py
    assert "<link" not in page
    assert "@import" not in page
    assert "url(" not in page.replace("url(#", "")
    sources = re.findall(r'src="([^"]*)"', page)
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    anchors = set(re.findall(r'id="([^"]*)"', page))
    assert len(anchors) == len(re.findall(r' id="', page))
    for address in re.findall(r'href="([^"]*)"', page):
        assert address.startswith(("data:text/", "data:application/")) or address[1:] in anchors
    assert {"claims", "figure-density", "table-results", "table-methods", "notes", "settings"} <= anchors
    saved = dict(re.findall(r'href="data:[\w/-]+;base64,([^"]*)" download="([^"]*)"', page))
    assert len(saved) == 15  # five tables, in three forms
    for content, name in saved.items():
        assert base64.b64decode(content) == (reported.report / name).read_bytes()
    assert 'name="viewport" content="width=device-width' in page
    assert "prefers-color-scheme: dark" in page
    assert all(re.findall(r'<img [^>]*alt="([^"]*)"', page))
    for table in re.finditer("<table", page):  # each in a box of its own that scrolls
        assert page.rfind('<div class="wide"', 0, table.start()) > page.rfind("</table>", 0, table.start())


def test_numbers_and_verdicts_go_into_the_summary(reported):
    summary = json.loads((reported.path / "summary.json").read_text())
    assert {"id", "paper", "ours", "verdict"} <= set(summary["claims"][0])
    assert summary["metrics"]["mint.accept_rate"] == summary["methods"]["mint"]["accept_rate"]
    assert summary["metrics"]["sgld.modes_visited_most"] == 1
    assert set(summary["metrics"]["mint.chi2"]) == {"value", "se"}
    without = {"not run at paper scale", "self-check not run", "not judged"}
    assert {claim["verdict"] for claim in summary["claims"]} <= without
    # A metric that a claim misspells would not be there.
    assert summary["claims"]
    assert {claim["id"]: claim["holds"] is not None for claim in summary["claims"]} == {
        claim["id"]: True for claim in summary["claims"]
    }


@pytest.mark.slow
def test_a_report_made_again_is_the_same(copied):
    before = {p.name: p.read_bytes() for p in copied.report.iterdir() if p.suffix in (".csv", ".md", ".png")}
    build_report(copied)
    assert {name: (copied.report / name).read_bytes() for name in before} == before


def test_an_incomplete_run_has_no_report(tmp_path):
    with pytest.raises(UserError, match="not complete"):
        build_report(RunFolder(tmp_path))


# --- Unusual runs -------------------------------------------------------------------------------------------

SHORT = ("steps=60", "warmup=50")
SLOW = ("~methods.sgld", "~methods.sghmc")  # a gradient at each step
TEMPERED = ("~methods.mint", "~methods.mint_stored", "~methods.tempered_mcmc")
TWO = (*SLOW, "~methods.mint_stored", "~methods.tempered_mcmc")  # one of each temperature


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "figures"),
    [
        pytest.param((*SHORT, *SLOW), 3, id="short", marks=pytest.mark.slow),
        pytest.param(("thin=20", "steps=400", "warmup=60", *TWO), 3, id="thinned", marks=pytest.mark.slow),
        pytest.param((*SHORT, "steps=1", *TWO), 3, id="one step", marks=pytest.mark.slow),
        pytest.param((*SHORT, "chains=1", *TWO), 3, id="one chain", marks=pytest.mark.slow),
        pytest.param((*SHORT, "chains=2", *TWO), 3, id="two chains", marks=pytest.mark.slow),
        pytest.param((*SHORT, "temperature=1", *SLOW), 1, id="not tempered", marks=pytest.mark.slow),
        pytest.param((*SHORT, *TEMPERED, *SLOW), 1, id="without tempered methods"),
        pytest.param(
            (*SHORT, *SLOW, "~methods.mcmc"), 2, id="tempered methods alone", marks=pytest.mark.slow
        ),
        pytest.param(
            (*SHORT, *SLOW, "chains=4", "tau=0.7", "lam=0.65", "data.n=1000000", "~methods.mint"),
            3,
            id="all data",
            marks=pytest.mark.slow,
        ),
        pytest.param((*SHORT, *SLOW, "lam=0"), 3, id="lambda 0", marks=pytest.mark.slow),
    ],
)
def test_unusual_runs_have_their_reports(outputs, overrides, figures):
    folder = compute(outputs, *overrides)
    with warnings.catch_warnings():
        for kind in (RuntimeWarning, UserWarning):
            warnings.simplefilter("error", kind)
        built = build_report(folder)
    assert built.failures == []
    page = built.page.read_text()
    assert own_figures(page) == figures
    assert page.count("No method of this run samples") == 3 - figures
    assert "nan" not in "".join((folder.report / f"{name}.md").read_text() for name in ("distances", "modes"))


@pytest.mark.slow
def test_text_from_a_configuration_is_escaped(outputs):
    folder = compute(outputs, *SHORT, *FEW, *SLOW[1:], "title='<script>alert(1)</script>'")
    page = build_report(folder).page.read_text()
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert") == 2  # the window's title and the page's


@pytest.mark.slow
def test_diagnostics_that_need_several_chains_are_a_dash_for_one(outputs):
    folder = compute(outputs, *SHORT, "chains=1", *FEW, *SLOW[1:])
    build_report(folder)
    lines = [line.split("|") for line in (folder.report / "distances.md").read_text().splitlines()]
    row = dict(zip(map(str.strip, lines[0]), map(str.strip, lines[2]), strict=True))
    assert {row[name] for name in ("TV by chance", "chi-squared")} == {"–"}
    assert {row["TV"], row["R-hat"]} & {"–"} == set()  # R-hat is that of the chain's halves


@pytest.mark.slow
def test_methods_with_one_label_are_distinguished(outputs):
    overrides = ["+method@methods.mint_barker=mint", "rule@methods.mint_barker.kernel.rule=barker"]
    folder = compute(outputs, *SHORT, *FEW, *SLOW[1:], *overrides)
    build_report(folder)
    for name in ("methods", "distances", "modes"):
        rows = pd.read_csv(folder.report / f"{name}.csv", index_col=0).index
        assert list(rows) == ["MINT (mint)", "MINT (mint_barker)"]


@pytest.mark.slow
def test_a_method_that_diverges_is_in_no_mode(outputs):
    """A frozen chain visits one mode too; that is not a finding."""
    folder = compute(outputs, *SHORT, "~methods.sghmc", *TEMPERED, "~methods.mcmc")
    summary = folder.summary()
    summary["methods"]["sgld"]["diverging"] = 3
    folder.write_summary(summary)
    build_report(folder)
    found = {claim["id"]: claim for claim in folder.summary()["claims"]}["f1r-sgld"]
    assert found["ours"] is None
    assert found["holds"] is False
    assert folder.summary()["metrics"]["sgld.modes_visited_most"] is None


# --- Parts that fail ----------------------------------------------------------------------------------------

PARTS = '''
"""An author's functions."""
from matplotlib import pyplot as plt
import pandas as pd

def metrics(run):
    """Numbers."""
    return {"mint.tv": 0.5}

def table(run):
    """A table of ours."""
    return pd.DataFrame({"a": [1.0]}, index=["x"])

def figure(run):
    """A figure of ours."""
    figure, axis = plt.subplots()
    axis.plot([1, 2])
    return figure

def notes(run):
    """Notes."""
    return ["A note of ours."]

def broken(run):
    """A part of ours."""
    return {}["absent"]

def half(run):
    """A figure that cannot be saved."""
    figure, axis = plt.subplots()
    axis.set_title("$\\\\frac{$")
    return figure
'''
SMALLEST = ["experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1", *SHORT, *FEW, *SLOW[1:]]


@pytest.fixture
def author(tmp_path, monkeypatch):
    """A trusted module of functions; its name is new each time, for it stays imported."""
    name = f"author_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MHRUN_TRUST", name)
    monkeypatch.chdir(tmp_path)
    return name


def of(author, **parts):
    """Words for a report of an author's functions."""
    named = {"metrics": "metrics", "tables": "table", "figures": "figure", "notes": "notes"} | parts
    paths = {"metrics": "report.metrics", "notes": "report.notes"}
    overrides = [
        f"{paths.get(part, f'+report.{part}.ours')}={author}.{function}" for part, function in named.items()
    ]
    return [*overrides, "~report.figures.density", "~report.figures.mode_ratio", "~report.figures.one_mode",
            "~report.tables.distances", "~report.tables.modes"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "function", "line", "images", "message"),
    [
        ("figures", "broken", "This figure could not be drawn: KeyError", 0, "ours: This figure"),
        ("figures", "half", "This figure could not be drawn: ", 0, "ours: This figure"),
        ("tables", "broken", "This table could not be made: KeyError", 1, "ours: This table"),
        ("notes", "broken", "The notes could not be made: KeyError", 1, "notes: The notes"),
        ("metrics", "broken", "The metrics could not be computed: KeyError", 1, "metrics: The metrics"),
    ],
)
def test_a_part_that_fails_leaves_a_line(author, capsys, part, function, line, images, message):
    overrides = [*SMALLEST, *of(author, **{part: function})]
    assert run(overrides) == 1
    err = capsys.readouterr().err
    assert err.count(f"mhrun: {message}") == 1
    folder = runs(Path("outputs"))[0]
    assert folder.is_complete()
    page = (folder.report / "index.html").read_text()
    assert line in html.unescape(page)
    assert own_figures(page) == images
    assert ("A note of ours." in page) == (part != "notes")
    assert (folder.report / "ours.csv").exists() == (part != "tables")
    log = folder.log.read_text()
    assert "Traceback" in log
    assert f"in {function}" in log or function == "half"
    # The page is made again at each try, and says so each time.
    assert run(overrides) == 1
    assert message in capsys.readouterr().err
    assert run(["report"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["figures", "metrics", "tables", "notes"])
@pytest.mark.parametrize("form", [(), ("--dry-run",), ("-m", "seed=1,2")])
def test_a_function_that_is_not_there_is_a_mistake_before_anything_is_computed(author, capsys, wrong, form):
    assert run([*form, *SMALLEST, *of(author, **{wrong: "fgure"})]) == 2
    err = capsys.readouterr().err
    assert f"there is no '{author}.fgure'. Did you mean 'figure'?" in err
    assert err.count("\n") == 1
    assert not Path("outputs").exists()


@pytest.mark.parametrize("gone", ["figure", "table", "notes", "metrics"])
def test_a_function_that_has_gone_leaves_a_line_when_the_report_is_made_again(
    author, capsys, monkeypatch, gone
):
    assert run([*SMALLEST, *of(author)]) == 0
    monkeypatch.delattr(sys.modules[author], gone)
    assert run(["report"]) == 1
    assert f"there is no '{author}.{gone}'" in capsys.readouterr().err
    folder = runs(Path("outputs"))[0]
    page = html.unescape((folder.report / "index.html").read_text())
    assert f"report: there is no '{author}.{gone}'" in page
    assert own_figures(page) == (gone != "figure")
    assert (folder.report / "ours.csv").exists() == (gone != "table")
    assert ("A note of ours." in page) == (gone != "notes")


def test_names_of_parts_are_names_of_files(outputs):
    folder = compute(outputs, *SHORT, *FEW, *SLOW[1:])
    config = folder.config()
    config["report"]["figures"] = {"../../x": "mint.figure1.density"}
    folder.create(config)
    with pytest.raises(UserError, match=r"'\.\./\.\./x' is not a name"):
        build_report(folder)


# --- Fresh pages --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_page_is_made_again_when_what_it_depends_on_changes(author, tmp_path, capsys, monkeypatch):
    overrides = [*SMALLEST, *of(author)]
    assert run(overrides) == 0
    folder = runs(Path("outputs"))[0]
    traces = {p: p.stat().st_mtime_ns for p in folder.path.glob("methods/*/trace.nc")}

    def made_again(*more):
        capsys.readouterr()
        assert run([*overrides, *more]) == 0
        assert {p: p.stat().st_mtime_ns for p in traces} == traces
        return "report: metrics" in capsys.readouterr().err

    assert is_reported(folder)
    assert not made_again()
    assert made_again("title=Another")
    assert "Another" in (folder.report / "index.html").read_text()
    assert made_again()

    # An author edits a figure function.
    path = tmp_path / f"{author}.py"
    path.write_text(path.read_text().replace("A note of ours", "Another note"))
    source.cache_clear()  # as in a new process
    assert not is_reported(folder)
    assert made_again()
    assert not made_again()

    # And the claims.
    shutil.copytree(EXPERIMENTS / "mint", tmp_path / "papers" / "mint")
    monkeypatch.setattr("mhrun.paths.EXPERIMENTS", tmp_path / "papers")
    assert is_reported(folder)
    claims = tmp_path / "papers" / "mint" / "claims.yaml"
    claims.write_text(claims.read_text().replace("below: 0.02", "below: 0.9"))
    assert made_again()
    assert {c["id"]: c["holds"] for c in folder.summary()["claims"]}["f1l-close"]

    (folder.report / "index.html").unlink()
    assert made_again()


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(4))
def test_a_kill_leaves_a_page_that_is_fresh_or_made_again(author, monkeypatch, moment):
    """Killed between any two of the steps that put a page of another title in the place of an old one."""
    assert run([*SMALLEST, *of(author)]) == 0
    folder = runs(Path("outputs"))[0]
    folder.create(folder.config() | {"title": "Another"})
    steps = []

    def killing(real):
        def step(*arguments, **named):
            if len(steps) == moment:
                raise Killed
            steps.append(real)
            return real(*arguments, **named)

        return step

    with monkeypatch.context() as patch:
        for owner, name in ((RunFolder, "write_summary"), (shutil, "rmtree"), (Path, "rename")):
            patch.setattr(owner, name, killing(getattr(owner, name)))
        with pytest.raises(Killed):
            build_report(folder)
    assert not is_reported(folder)
    assert folder.is_complete()
    assert "Another" in build_report(folder, again=False).page.read_text()
    assert is_reported(folder)


@pytest.mark.slow
def test_the_folder_is_held_while_its_report_is_made(copied, monkeypatch):
    held = []

    def watched(*arguments):
        try:
            filelock.FileLock(copied.path / ".lock").acquire(timeout=0).lock.release()
            held.append(False)
        except filelock.Timeout:
            held.append(True)
        return write_page(*arguments)

    monkeypatch.setattr("mhrun.report.build.write_page", watched)
    build_report(copied)
    assert held == [True]
    build_report(copied, again=False)
    assert held == [True]


# --- What a report sees of a trace --------------------------------------------------------------------------


class Known(Run):
    """A run of one method whose minibatch sizes are known, kept as a trace would keep them."""

    def __init__(self, warmup, thin, often):
        super().__init__(RunFolder(Path()))
        summary = {"warmup": warmup, "steps": 24, "thin": thin, "thin_stats": often}
        self.summary = {"methods": {"a": summary}}
        self.size = np.random.default_rng(warmup).integers(1, 99, (2, warmup + 24))
        self.kept = [step for step in range(warmup + 1, warmup + 25) if step % thin == 0]
        self.looked_at = [step for step in range(warmup + 1, warmup + 25) if step % often == 0]

    def trace(self, method):
        rows = {"posterior": self.kept, "sample_stats": self.looked_at}
        groups = {
            name: xr.Dataset(coords={"chain": [0, 1], "draw": range(len(steps))})
            for name, steps in rows.items()
        }
        about = {key: self.methods["a"][key] for key in ("warmup", "thin", "thin_stats")}
        return xr.DataTree.from_dict({"/": xr.Dataset(attrs=about), **groups})

    def stat(self, method, name):
        values = self.size if name == "batch_size" else self.size.cumsum(axis=1)
        values = values[0] if name == "wall_s" else values
        return values[..., np.array(self.looked_at) - 1]


@pytest.mark.parametrize(
    ("warmup", "thin", "often"),
    [(0, 1, 1), (0, 7, 1), (10, 1, 1), (10, 7, 1), (7, 7, 7), (10, 6, 3), (11, 8, 4)],
)
def test_statistics_are_reported_at_the_draws(warmup, thin, often):
    run = Known(warmup, thin, often)
    assert run.draw_steps("a").tolist() == [step - warmup for step in run.kept]
    for c in range(2):
        sums = [int(run.size[c, :step].sum()) for step in run.kept]  # of counts, with the burn-in
        assert run.at_draws("a", "n_lik")[c].tolist() == sums
        if c == 0:
            assert run.at_draws("a", "wall_s").tolist() == sums
        if often == 1:
            sums = [int(run.size[c, warmup:step].sum()) for step in run.kept]
            spent = experiment_module("mhminibatch.mnist").data_spent(run, "a")
            assert run.at_draws("a", "batch_size")[c].tolist() == spent[c].tolist() == sums
            run.target = SimpleNamespace(n=100)
            passes = [run.size[:, warmup:step].sum() / 200 for step in run.kept]
            assert experiment_module("mint.logistic").passes(run, "a") == pytest.approx(np.array(passes))


@pytest.mark.parametrize(
    ("name", "thin", "often", "message"),
    [("batch_size", 6, 3, "set thin_stats=1"), ("n_lik", 4, 3, "multiple of thin_stats = 3")],
)
def test_statistics_that_were_not_kept_are_missed_in_one_line(name, thin, often, message):
    with pytest.raises(UserError, match=message):
        Known(0, thin, often).at_draws("a", name)


@pytest.mark.slow
def test_a_page_without_a_figure_of_the_experiment_begins_with_the_marginals(outputs):
    folder = compute(outputs, *FEW, "~report.figures", "steps=60", "warmup=50")
    build_report(folder)
    page = (folder.report / "index.html").read_text()
    assert 0 < page.index('id="figure-marginals"') < page.index('id="table-results"')
    assert page.count('id="figure-marginals"') == 1
