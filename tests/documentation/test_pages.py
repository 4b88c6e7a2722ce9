"""What the documentation shows runs as it stands."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from kit import short_run
from scipy import stats

import mhrun
from mhrun import Fixed
from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.overrides import sweep_jobs
from mhrun.cli.main import run
from mhrun.cli.parsing import parse_command_line
from mhrun.data import Dataset
from mhrun.engine.execution.executors import choose_executor
from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.pairing.shared import Shared
from mhrun.paths import PACKAGE
from mhrun.schedules import Plan
from mhrun.store.checksums import write_sealed
from mhrun.store.identity import FORMAT, RESULTS_VERSION
from mhrun.store.netcdf import Shape
from mhrun.target import Target

DOCS = PACKAGE.parent / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


@cache
def blocks(page: str, language: str) -> list[tuple[str, str]]:
    """Return the title and the text of each block of a page; ``py`` is Python that is shown and not run."""
    return [
        (title, text) for kind, title, text in BLOCK.findall((DOCS / page).read_text()) if kind == language
    ]


@short_run
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page == "python.md" else ())
        for page in PAGES
        if any(not title for title, _ in blocks(page, "python"))
    ],
)
def test_python_runs(page, tmp_path, monkeypatch, capsys):
    """With 100 steps at most, where no setting but the length of the run depends on their number."""
    sample = mhrun.sample

    def short(*parts, **settings):
        if not {"thin", "monitor", "folder"} & set(settings):
            settings |= {key: min(settings[key], 100) for key in ("steps", "warmup") if key in settings}
        return sample(*parts, **settings)

    monkeypatch.setattr(mhrun, "sample", short)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {}
    for title, code in blocks(page, "python"):
        if not title:  # a block goes on from those before it
            exec(compile(code, page, "exec"), names)


def commands() -> list[tuple[str, str]]:
    found = [
        (page, " ".join(line.partition(" #")[0].split()))
        for page in PAGES
        for _, text in blocks(page, "bash")
        for line in text.replace("\\\n", " ").splitlines()
        if line.startswith("mhrun ")
    ]
    # A page of a paper has its commands made; a folder of the reader's own is tested below.
    return [
        (page, line)
        for page, line in dict.fromkeys(found)
        if "--config-dir" not in line and "--project" not in line
    ]


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_mean_something(page, line):
    parsed = parse_command_line([text for text in shlex.split(line)[1:] if text != "--help"] or ["list"])
    if parsed.command == "run":
        # Where a job is done is no matter of what it is; the first job of a sweep stands for all.
        overrides = [text for text in parsed.rest if not text.startswith(("device=", "hydra"))]
        job = sweep_jobs(overrides)[0][0] if parsed.multirun else overrides
        assert compose_config(job, compare=False)["methods"] is not None


@pytest.mark.slow
def test_the_worked_example(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MHRUN_TRUST", "")  # put back afterwards
    monkeypatch.setattr("mhrun.report.build.FIGURES", {})  # the page's own figure is drawn
    monkeypatch.chdir(tmp_path)
    page = "extending.md"
    for title, text in [*blocks(page, "python"), *blocks(page, "yaml")]:
        if title:
            Path(title).parent.mkdir(parents=True, exist_ok=True)
            Path(title).write_text(text)
    lines = [line for _, text in blocks(page, "bash") for line in text.splitlines() if "scale=smoke" in line]
    assert len(lines) == 3
    for line in lines:
        assert run([*shlex.split(line)[1:], "runtime.threads=1"]) == 0, capsys.readouterr().err
    assert "could not be" not in capsys.readouterr().err
    runs = [path.parent / "summary.json" for path in Path("outputs/waiting").glob("*/report")]
    metrics: dict = {}
    for path in runs:
        metrics |= json.loads(path.read_text())["metrics"]

    for words in (
        ["rule=confident", "checks=[costs,balance]"],
        ["ours.svrg.SVRG", "checks=[costs,resuming]"],
        ["ours.horowitz.GHMC", "checks=[invariance,costs,resuming,absurd]"],
        ["method=cycle", "checks=[invariance,costs,resuming]", "chains=2000"],
    ):
        assert run(["check", "--project", "mine", *words]) == 0
    assert "no check fails" in capsys.readouterr().out

    from ours.waits import Waits

    x = Waits(1000, 2.0).load().fields["x"]
    posterior = stats.gamma(1001, scale=1 / (float(x.sum()) + 1))
    # Its draws are worth a hundred independent ones or more: five standard errors. Laws are tested elsewhere.
    for method in ("lazy_walk", "scaled_sgld", "ghmc"):
        assert abs(metrics[f"{method}.mean"] - posterior.mean()) < posterior.std() / 2


def test_the_reference_has_all_that_a_kernel_declares():
    """Attributes with their defaults, properties and methods, of which those that must be written are marked."""
    text = (DOCS / "reference/python.md").read_text()
    section = text[text.index("<!-- made: members parts.Kernel -->") :].partition("<!-- /made -->")[0]
    rows = dict(re.findall(r"^\| `(\w+)[^`]*` \| (.*) \|$", section, re.MULTILINE))
    assert set(rows) == {name for name in vars(mhrun.Kernel) if not name.startswith("_")}
    required = {name for name, words in rows.items() if words.startswith("Required. ")}
    assert required == mhrun.Kernel.__abstractmethods__
    assert "`reversible = False`" in section


def test_the_reference_has_what_steps_and_loops_draw_by():
    """Periods, streams and loops of any length, which kernels need beside the numbers of a step."""
    section = (DOCS / "reference/python.md").read_text().partition("<!-- made: members random.Draws ")[2]
    rows = re.findall(r"^\| `(\w+)", section.partition("<!-- /made -->")[0], re.MULTILINE)
    assert {"normal", "uniform", "index", "due", "part", "trial", "rewind"} <= set(rows)


def test_the_pieces_of_the_worked_example_do_what_its_steps_do(tmp_path, monkeypatch, interpreted):
    """Run without the compiler: the same records, to rounding."""
    for title, text in blocks("extending.md", "python"):
        if title:
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "mine")
    for name in [name for name in sys.modules if name.split(".")[0] == "ours"]:
        monkeypatch.delitem(sys.modules, name)
    parts = {name: importlib.import_module(f"ours.{name}") for name in ("multiplicative", "lazy", "scaled")}
    target = Target(GaussianMean(2.0, start=1.0), Dataset.of(np.random.default_rng(1).normal(1.0, 1.0, 30)))
    for kernel in (
        MetropolisHastings(parts["multiplicative"].Multiplicative(), Shared(10), parts["lazy"].Lazy(0.3)),
        Unadjusted(parts["scaled"].Scaled(0.2), 10),
    ):
        plan = Plan({"all": Fixed(step_size=0.1, temperature=1.0)}, 3, 0, 20)
        method = Method(
            "one", kernel, target, plan, Shape(3, target.model.names, 0, 20, 1, 1), 3, torch.float64
        )
        controls = plan.controls(plan.start(), 1, 20)
        with np.errstate(over="ignore"):
            executors = [choose_executor(method, wish, None, 1) for wish in ("torch", "compiled")]
            records = [executor.advance(method.first_state(), 1, controls)[1] for executor in executors]
        assert 0.2 < records[0]["accepted"].mean() <= 1
        for field, value in records[0].items():
            assert np.allclose(value, records[1][field], rtol=1e-6, equal_nan=True), field


def test_claims_without_their_run_are_judged_again_by_its_metrics(tmp_path, monkeypatch):
    """A rule may change where there is no run; a verdict whose rule stands is left with all its digits."""
    monkeypatch.syspath_prepend(DOCS / "_made")
    import collect

    def claim(name, ours, rule, verdict):
        return {"id": name, "ours": ours, "se": None, "rule": rule, "verdict": verdict, "why": ""}

    claims = [
        claim("f5-100", 75.123456789, "between 50 and 60", "not reproduced"),
        claim("gone", 1.0, "below 2", "reproduced"),
    ]
    run = {"run": "x", "claims": claims}
    metrics = {"mcmc.seconds95_ratio": 75.1235, "absent": None}
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "mint_logistic.json").write_text(json.dumps({"run": "x", "metrics": metrics}))
    monkeypatch.setattr(collect, "RESULTS", tmp_path)

    def judged_again(run):
        return {each["id"]: each for each in collect._judged_again("mint", "mint_logistic", run)["claims"]}

    again = judged_again(run)
    assert (again["f5-100"]["verdict"], again["f5-100"]["ours"]) == ("reproduced", 75.1235)
    assert again["f5-100"]["rule"] == "between 20 and 1000"
    assert "gone" not in again
    stands = {"run": "x", "claims": [claim("f5-100", 75.123456789, "between 20 and 1000", "reproduced")]}
    assert judged_again(stands)["f5-100"]["ours"] == 75.123456789
    # Six figures of 999.9999 are 1000, which a rule may exclude: a verdict by all digits stands.
    stands["claims"] = [claim("f5-100", 75.123456789, "between 20 and 1000", "not reproduced")]
    assert judged_again(stands)["f5-100"] == stands["claims"][0]
    stands["claims"] = [claim("f5-100", 30.0, "between 20 and 1000", "reproduced")]  # of another metric
    assert judged_again(stands)["f5-100"]["ours"] == 75.1235
    stands["claims"] = [claim("f5-100", None, "between 20 and 1000", "not judged")]
    assert judged_again(stands)["f5-100"]["verdict"] == "reproduced"
    assert collect._judged_again("mint", "mint_logistic", run | {"run": "y"}) == run | {"run": "y"}


def test_results_are_of_the_last_run_with_the_papers_settings(tmp_path, monkeypatch):
    """Whatever it found: a run that reproduces does not stand in for a later one that does not."""
    monkeypatch.syspath_prepend(DOCS / "_made")
    import claims
    import collect

    def left_by(name, finished, tv, departures=(), version=RESULTS_VERSION):
        folder = tmp_path / "outputs" / "gmm_tied_means" / name
        folder.mkdir(parents=True)
        config = {"experiment": "gmm_tied_means", "seed": 0, "scale": "paper", "report": {"paper": "mint"}}
        config |= {
            "runtime": {"departures": list(departures)},
            "methods": {},
            "model": {},
            "data": {},
            "target": {},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        summary = {"status": "complete", "format": FORMAT, "finished": finished, "versions": {}}
        summary |= {"results_version": version}
        metrics = {"mint.tv": tv, "mint.mode_ratio": {"value": None, "se": None}}
        write_sealed(folder / "summary.json", summary | {"metrics": metrics})

    left_by("a", "2026-01-01T10", 0.01)
    left_by("b", "2026-01-03T10", 0.03)
    left_by("c", "2026-01-02T10", 0.01)
    left_by("d", "2026-01-04T10", 0.01, ["scale = quick"])
    left_by("e", "2026-01-05T10", 0.01, version=RESULTS_VERSION - 1)
    monkeypatch.setattr(collect, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(collect.gallery, "IMAGES", tmp_path)
    monkeypatch.setattr(collect, "ROOT", tmp_path)
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "gmm_tied_means.yaml").touch()
    (tmp_path / "conf" / "durations.yaml").write_text("other: 12\ngmm_tied_means: 3\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mint.json").write_text(
        f'{{"experiments": {{"other": {{"results_version": {RESULTS_VERSION}, "claims": []}},'
        '"old": {"results_version": 1, "claims": []}}, "sweeps": {}}'
    )
    collect.main(tmp_path / "outputs")
    found = json.loads((tmp_path / "results" / "mint.json").read_text())["experiments"]
    assert set(found) == {"gmm_tied_means", "other"}
    assert found["gmm_tied_means"]["run"] == "b"
    by_id = {claim["id"]: claim for claim in found["gmm_tied_means"]["claims"]}
    assert by_id["f1l-close"]["verdict"] == "not reproduced"
    # A metric that is not a number satisfies no rule
    assert by_id["f1r-ratio"]["verdict"] == "not reproduced"
    assert by_id["f1l-modes"]["verdict"] == "no number"

    measured = json.loads((tmp_path / "results" / "metrics" / "gmm_tied_means.json").read_text())
    assert (measured["run"], measured["metrics"]["mint.mode_ratio"]) == ("b", [None, None])
    assert found["gmm_tied_means"]["results_version"] == RESULTS_VERSION
    by_id["f1l-close"]["rule"] = "below 0.04"
    monkeypatch.setattr(
        claims, "results", lambda paper: {"experiments": {"gmm_tied_means": found["gmm_tied_means"]}}
    )
    assert [line.split("'")[1] for line in claims.stale("mint")] == ["f1l-close"]
    assert claims.verdicts("mint")["not reproduced"] == 2
    assert "<span class='bad'>not reproduced</span>" in claims.tables("mint")

    by_id["f1l-close-stored"]["verdict"] = "self-check passed"
    assert any("does not allow" in line for line in claims.stale("mint"))

    found["gmm_tied_means"]["results_version"] -= 1
    assert any("are of version" in line for line in claims.stale("mint"))


def test_committed_results_are_of_one_version():
    """Numbers made with other random numbers or distributions do not stand beside those of the code."""
    metrics, claims_of_papers = (
        sorted(place.glob("*.json")) for place in (DOCS / "results" / "metrics", DOCS / "results")
    )
    assert metrics
    assert claims_of_papers
    for path in metrics:
        assert json.loads(path.read_text())["results_version"] == RESULTS_VERSION, path.name
    for path in claims_of_papers:
        for kind, experiments in json.loads(path.read_text()).items():
            for name, result in experiments.items():
                assert result["results_version"] == RESULTS_VERSION, f"{path.name}, {kind}, {name}"


def test_numbers_and_tables_in_pages_are_current(monkeypatch):
    """What README and pages quote is what the result files and the code have; `make docs-refresh` rewrites it."""
    monkeypatch.syspath_prepend(DOCS / "_made")
    import refresh

    assert [path.name for path in refresh.outdated()] == [], "run `make docs-refresh`"


def test_values_are_quoted_from_results(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_made")
    import claims
    import refresh
    import values

    rule = claims.rows("mint", "experiments", "gmm_tied_means")["f1l-close"]["rule"]
    found = {"results_version": RESULTS_VERSION, "run": "abc"}
    found["claims"] = [{"id": "f1l-close", "ours": 0.5, "se": 0.01, "rule": rule, "holds": False}]
    found["claims"][0] |= {"verdict": "not reproduced", "why": ""}
    monkeypatch.setattr(claims, "results", lambda paper: {"experiments": {"gmm_tied_means": found}})
    monkeypatch.setattr(
        values,
        "measured",
        lambda name: {"metrics": {"mint.tv": [0.5, 0.01]}, "methods": {"mint": {"steps": 1000}}},
    )
    passages = "distance is {claim mint gmm_tied_means f1l-close},\nor {metric gmm_tied_means mint.tv .1f}.\n"
    text = f"Its distance\nis 0.1 ±\n0.2, or 0.31. Or 0.7.\n\n<!-- values:\n{passages}-->\n"
    new = refresh.with_values(text)
    assert refresh.without_values(new) == "Its distance\nis 0.500 ± 0.010, or 0.5. Or 0.7.\n\n"
    assert refresh.with_values(new) == new
    broken = new.replace("0.500 ± 0.010", "0.500 ±\n0.010")  # lines broken otherwise are kept
    assert refresh.with_values(broken) == broken
    for lost in ("distance of {total reproduced}, or", "{total reproduced}, or", "distance is 0.1"):
        with pytest.raises(values.UnknownValue):
            refresh.with_values(text.replace(passages, lost + "\n"))
    swapped = "\n".join(reversed(passages.splitlines())) + "\n"
    with pytest.raises(values.UnknownValue, match="after those before it"):
        refresh.with_values(text.replace(passages, swapped))
    for spec, shown in {
        "claim mint gmm_tied_means f1l-close verdict": "not reproduced",
        "claim mint gmm_tied_means f1l-close run": "abc",
        "claim mint gmm_tied_means f1l-modes": values.MISSING,
        "metric gmm_tied_means mint.tv .1f": "0.5",
        "metric gmm_tied_means mint.nothing": values.MISSING,
        "method gmm_tied_means mint steps": "1,000",
        "metric gmm_tied_means mint.tv percent": "50 %",
        "ratio metric gmm_tied_means mint.tv method gmm_tied_means mint steps": "0.0005",
        "ratio metric gmm_tied_means mint.tv metric gmm_tied_means mint.nothing": values.MISSING,
        "total reproduced": "0",
        "total not_reproduced": "1",
        "count gmm_tied_means": "0 of 6",
    }.items():
        assert values.quoted(spec) == shown, spec
    for spec in (
        "claim mint gmm_tied_means nothing",
        "total sum",
        "sum",
        "metric gmm_tied_means mint.tv nice",
    ):
        with pytest.raises(values.UnknownValue):
            values.quoted(spec)


def test_made_blocks_with_an_end_are_rewritten_and_others_stay(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_made")
    import refresh

    text = "<!-- made: a b -->\n\nmiddle\n\n<!-- made: c -->\nold\n<!-- /made -->\n\nend <!-- made: d -->\n"
    new = refresh.with_tables(text, lambda word, arguments: f"new {word}")
    assert new == text.replace("old", "\nnew c\n")
    assert refresh.with_tables(new, lambda word, arguments: f"new {word}") == new


def test_generated_parts_are_in_the_repository(monkeypatch):
    """Pages can be read without building the site: nothing is in them that only mkdocstrings or a browser shows."""
    monkeypatch.syspath_prepend(DOCS / "_made")
    import refresh

    for path in refresh.pages():
        text = path.read_text()
        assert [found[0] for found in refresh.MADE.finditer(text) if found[3] is None] == [], path.name
        assert not re.search(r"^(::: |<table|<div class)", text, re.MULTILINE), path.name
    assert sum(path.stat().st_size for path in refresh.pages()) < 1_500_000
    assert re.search(r"^sample\(\n    model: ", (DOCS / "reference/python.md").read_text(), re.MULTILINE)


def test_figures_of_paper_scale_runs_keep_their_colours(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_made")
    import gallery
    from PIL import Image

    monkeypatch.setattr(gallery, "IMAGES", tmp_path)
    report = tmp_path / "runs" / "gmm_tied_means" / "abc" / "report"
    report.mkdir(parents=True)
    (report.parent / "config.yaml").write_text("report: {figures: {density: a.b, one_mode: c.d}}")
    colours = [(0, 114, 178), (213, 94, 0), (230, 159, 0), (86, 180, 233)]
    picture = Image.new("RGB", (1200, 600))
    for k, colour in enumerate(colours):
        picture.paste(colour, (300 * k, 0, 300 * (k + 1), 600))
    picture.save(report / "density.png")
    written = gallery.take({"gmm_tied_means": report})
    assert [path.name for path in written] == ["density.png", "gmm_tied_means.jpg"]
    with Image.open(tmp_path / "density.png") as copied, Image.open(written[1]) as small:
        assert [copied.getpixel((300 * k + 150, 300)) for k in range(4)] == colours
        assert small.size == (480, 240)


@pytest.mark.long
def test_the_regression_tutorial(tmp_path, monkeypatch, capsys, unrendered):
    """With fewer rows and steps than on the page."""
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.chdir(tmp_path)
    page = "tutorials/regression.md"
    (rows,) = [text for title, text in blocks(page, "python") if title]
    exec(rows.replace("20_000", "1_000"), {})
    first, second, third = [line for _, text in blocks(page, "bash") for line in text.splitlines()]
    assert run(shlex.split(first)[1:]) == 0
    printed = capsys.readouterr().out.replace(" 1,000 rows", " 20,000 rows")
    means = r"\(mean \S+, sd \S+\)"  # of all rows
    assert re.sub(means, "", printed) in [re.sub(means, "", text) for _, text in blocks(page, "text")]
    for title, text in blocks(page, "yaml"):
        assert Path(title).read_text() == text
    few = ["executor=torch", "steps=200", "warmup=100", "runtime.threads=1", "~methods.mhminibatch"]
    assert run([*shlex.split(second)[1:], *few]) == 0, capsys.readouterr().err
    err = capsys.readouterr().err
    assert err.count(": pilot: step size") == 4
    assert run(shlex.split(third)[1:]) == 0
    assert "mean off by (sd)" in capsys.readouterr().out
    text = next(Path("outputs/rows").glob("*/report/index.html")).read_text()
    for section in ("posterior", "pilots"):
        assert f'id="table-{section}"' in text
    assert "Settings that pilot runs found" in text
    predicts, fits, odds = [text for _, text in blocks(page, "py")]
    scope: dict[str, object] = {}
    exec(predicts, scope)
    mean, low, high = map(float, re.findall(r"0\.\d+", capsys.readouterr().out))
    assert low < mean < high
    exec(fits, scope)
    fit = np.r_[scope["fit"].intercept_, scope["fit"].coef_[0]]
    means = scope["draws"].mean(("chain", "draw")).to_numpy()
    assert np.allclose(means, fit, atol=0.1)  # the standard deviations are about 0.08
    exec(odds, scope)
    assert scope["odds"].mean() == pytest.approx(np.exp(-1), rel=0.4)  # the weight of x0 is -1, its sd 1


@pytest.mark.slow
def test_the_tutorial_on_cold_posteriors(tmp_path, monkeypatch, capsys, unrendered):
    """With fewer steps than on the page."""
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.chdir(tmp_path)
    page = "tutorials/cold-posterior.md"
    init, first, second = [line for _, text in blocks(page, "bash") for line in text.splitlines()]
    assert run(shlex.split(init)[1:]) == 0
    for title, text in [*blocks(page, "python"), *blocks(page, "yaml")]:
        assert Path(title).read_text() == text, title
    test, train = (np.load(f"cold/{name}.npz") for name in ("test", "train"))
    assert (test["x"].shape, train["x"].shape, test["y"].dtype) == ((797, 1, 8, 8), (1000, 1, 8, 8), "int64")
    few = ["steps=80", "monitor.every=40", "thin=1", "runtime.threads=1"]
    assert run([*shlex.split(first)[1:], *few]) == 0, capsys.readouterr().err
    assert re.search(r"(?m)^method .* nll_of_group", capsys.readouterr().out)
    assert run([*shlex.split(second)[1:], *few]) == 0, capsys.readouterr().err
    captured = capsys.readouterr()
    heading = blocks(page, "text")[0][1].splitlines()[0]
    assert " ".join(heading.split()) in [" ".join(line.split()) for line in captured.out.splitlines()]
    assert captured.err.count("ensemble: taken from run") == 2
    ((_, scores),) = blocks(page, "py")
    scope: dict[str, object] = {}
    exec(scores, scope)
    assert re.search(r"accuracy 0\.\d+, NLL \d", capsys.readouterr().out)
    metrics = json.loads(Path("outputs/digits/latest/summary.json").read_text())["metrics"]
    assert 0 < metrics["csghmc.nll_of_group"]["value"] < 5


@pytest.mark.long
def test_the_tutorial_on_a_million_rows(tmp_path, monkeypatch, capsys):
    """With fewer rows and steps than on the page."""
    monkeypatch.chdir(tmp_path)
    page = "tutorials/million-rows.md"
    (rows,) = [text for title, text in blocks(page, "python") if title]
    exec(rows.replace("1_000_000", "500"), {})
    table, *_ = [text for _, text in blocks(page, "bash")]
    few = ["executor=torch", "steps=100", "warmup=50", "runtime.threads=1", "runtime.report=false"]
    assert run([*shlex.split(table)[1:], *few]) == 0, capsys.readouterr().err
    methods = json.loads(Path("outputs/own/latest/summary.json").read_text())["methods"]
    assert methods["mh_ss"]["reference_n_grad"] > 500
    assert methods["mcmc"]["likelihood_evals"] > 4 * 150 * 500


@pytest.mark.slow
def test_the_tutorial_on_ten_million_rows(tmp_path, monkeypatch, capsys):
    """With fewer rows and steps than on the page."""
    monkeypatch.chdir(tmp_path)
    _, arrays, comparison, subsample = [text for _, text in blocks("tutorials/million-rows.md", "bash")]
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(400), rng.standard_normal((400, 30))]).astype("float32")
    y = np.where(rng.random(400) < 1 / (1 + np.exp(-x[:, 1])), 1, -1).astype("int8")
    for name, array in (("x", x), ("y", y), ("xs", x), ("ys", y)):
        np.save(f"{name}.npy", array)
    few = ["steps=60", "warmup=60", "runtime.threads=1", "runtime.report=false"]
    run_of_subsample, comparison_with_hmc = subsample.splitlines()
    for command, other, compared in (
        (arrays, ["methods.smh2.steps=60"], comparison),
        (run_of_subsample, ["methods.hmc.steps=60", "methods.hmc.warmup=60"], comparison_with_hmc),
    ):
        assert run([*shlex.split(command)[1:], *few, *other]) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert run(shlex.split(compared)[1:]) == 0
        assert "cannot tell" in capsys.readouterr().out  # so few draws
