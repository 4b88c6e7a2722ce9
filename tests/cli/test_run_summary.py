"""What a run found: one sentence, a status, warnings, a table of methods; the same on the page and on the terminal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from kit import FEW, compute
from kit import unrendered as without_rendering

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.main import run as main
from mhrun.cli.result import show_result
from mhrun.diagnostics.grid import Estimate
from mhrun.engine.diagnosis.faults import fault_of
from mhrun.errors import UserError
from mhrun.kernels.stationary import Samples
from mhrun.paths import EXPERIMENTS, ROOT
from mhrun.report import declared, on_page, summary, summary_of
from mhrun.report.build import build_report
from mhrun.report.claims import evidence, recorded
from mhrun.report.claims.evidence import evidence_of
from mhrun.report.claims.judge import Judged
from mhrun.report.claims.verdicts import NOT_AT_SCALE, NOT_REPRODUCED, REPRODUCED
from mhrun.report.efficiency import costs, diagnosed, efficiency, named, unconverged, valid_draws
from mhrun.report.marks import SHORT
from mhrun.report.report_warnings import report_warnings
from mhrun.report.run import Run
from mhrun.report.summary import approximate_methods, default_finding, methods_table
from mhrun.store.folder import RunFolder


class FakeRun:
    """A run of methods that are named, and of nothing else."""

    def __init__(self, *names, config=None, **about):
        shared = {"diverging": 0, "chains": 4, "rungs": 1}
        self.methods = {name: shared | {"label": name.upper()} | about.get(name, {}) for name in names}
        self.config = {"experiment": "somewhere", "scale": "smoke"} | (config or {})

    def label(self, name):
        return str(self.methods[name]["label"])

    def samples(self, name):
        m = self.methods[name].get("m")
        return Samples("tempered", m, 1.0, False, declared=self.methods[name].get("declared", False))

    expected_error = Run.expected_error
    describe_kind = Run.describe_kind

    def kind(self, name):
        return self.samples(name).kind


def test_the_sentence_prefers_exact_methods_and_names_the_others():
    run = FakeRun("a", "b", "c", b={"m": 100}, c={"m": 5})
    found = default_finding(
        run, {name: about(900, rate=rate) for name, rate in (("a", 3), ("b", 7), ("c", 1))}
    )
    assert found == (
        "A has 3 effective draws per million evaluations. Approximate, and to be compared with it: B, C."
    )


def test_a_method_whose_draws_are_too_wide_is_not_the_best():
    run = FakeRun("a", "b", a={"m": 5, "fault": "variances up to 55 times as large"}, b={"m": 5})
    diagnostics = {"a": about(900, rate=2800), "b": about(900, rate=300)}
    assert default_finding(run, diagnostics) == (
        "B has 900 effective draws and an R-hat of 1. Draws of a wrong distribution: A (variances up to 55 times as "
        "large)."
    )
    assert default_finding(FakeRun("a", a={"fault": "off"}), {"a": about(900)}) == (
        "Draws of a wrong distribution: A (off)."
    )


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({}, ""),
        ({"excess_variance": 0.2, "mean_bias": {"size": 0.29, "name": "a"}}, ""),
        ({"excess_variance": 3.0}, "variances up to 4 times as large"),
        ({"excess_variance": 3.0, "unsettled_rhat": 1.4}, ""),  # chains have yet to get there
        ({"excess_variance": 3.0, "variance_ratio": 8.0}, "variances up to 8 times as large"),
        ({"variance_ratio": 8.0, "outside": 0.123}, "12 % where the density is 0"),
        ({"narrow_ratio": 0.3}, "variances as low as 0.3 times the right ones"),
        ({"mean_bias": {"size": -0.5, "name": "a"}}, "a mean off by about 0.5 standard deviations"),
        ({"mean_bias": {"size": 9e4, "name": "a"}}, "a mean off by more than 2 standard deviations"),
    ],
)
def test_faults_are_what_a_run_found(results, words):
    assert fault_of(results) == words


def test_a_method_with_a_fault_has_no_efficiency():
    run = FakeRun("a", "b", a={"m": 5, "fault": "off"}, b={"m": 5, "fault": ""})
    table, _ = methods_table(run, {}, {name: about(900, rate=7) for name in "ab"})
    assert table["ESS per 10^6"].notna().tolist() == [False, True]


@pytest.mark.slow
def test_a_run_marks_a_method_whose_draws_are_too_wide(tmp_path, monkeypatch, capsys):
    """From what the engine finds to the tables of a run and of a sweep."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "ours.yaml").write_text(
        "# @package _global_\ndefaults: [/data: gaussian, /model: gaussian_mean, /method@methods.sgld: sgld, _self_]\n"
        "m: 5\ndata: {n: 1000}\nsteps: 3000\nwarmup: 300\nchains: 4\n"
        "methods: {sgld: {schedules: {step_size: {start: 3.0e-4, end: 2.0e-4}}}}\n"
    )
    assert main(["--project", "mine", "ours"]) == 0
    out = capsys.readouterr().out
    assert "§ draws follow a wrong distribution, see the warnings" in out
    assert "SGLD §" in out or "SGLD † §" in out
    assert "Draws of a wrong distribution: SGLD (variances up to " in out
    assert main(["--project", "mine", "-m", "ours", "m=5,1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["§" in line for line in lines if line.startswith(("5 ", "1000 "))] == [True, False]
    assert any(line.startswith("§ draws follow") for line in lines)


def test_a_method_that_is_exact_by_declaration_is_called_so():
    run = FakeRun("a", "b", "c", "d", b={"declared": True}, c={"m": 5}, d={"m": 5, "declared": True})
    diagnostics = {name: about(1000 + 100 * k, rate=k) for k, name in enumerate("abcd")}
    table, _ = methods_table(run, {}, diagnostics)
    assert dict(table["target"]) == {
        "A": "exact",
        "B": "exact (declared)",
        "C": "approximate",
        "D": "approximate",
    }
    assert ", most of the 2 exact or exact (declared) methods that converged" in default_finding(
        run, diagnostics
    )
    # The reference that is advised is one that nobody needs to take at its word.
    assert approximate_methods(run, diagnostics).endswith("mhrun compare somewhere --reference somewhere:a")


def test_the_sentence_has_the_set_up_where_it_is_most_of_the_cost():
    run = FakeRun("a", "b")
    found = default_finding(run, {"a": about(900, rate=900) | {"setup": 2e6}, "b": about(500)})
    assert found.startswith(
        "A has 900 effective draws per million evaluations after its set-up (300 with it), most of"
    )


def about(ess, rhat=1.0, rate=1.0, draws=100):
    return {"ess": ess, "rhat": rhat, "ess_per_million": rate, "draws": draws, "evaluations": 1e6}


# --- Parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("diagnostics", "sentence"),
    [
        ({}, ""),
        ({"a": about(None, None, None, None)}, ""),
        ({"a": about(123.4, 1.02)}, "A has 123 effective draws and an R-hat of 1.020."),
        (
            {"a": about(500.0, rate=3.0), "b": about(900.0, rate=2.0), "c": about(9e3, rhat=1.2, rate=9.0)},
            "A has 3 effective draws per million evaluations, most of the 2 methods that converged; not converged, but "
            "with more: C has 9 (R-hat 1.200).",
        ),
        (
            {"a": about(500.0, rate=3.0), "b": about(900.0, 1.3, 8.0), "c": about(9e3, 1.011, 9.0)}
            | {"d": about(9e3, 1.5, 90.0), "e": about(9e3, 1.02, 1.0)},
            "A has 3 effective draws per million evaluations, and no other method has converged; not converged, but "
            "with more: C has 9 (R-hat 1.011), "
            "B has 8 (R-hat 1.300) and 1 more.",
        ),
        (
            {"a": about(9.0, 1.5), "b": about(7.0, 3.0)},
            "No method has converged: R-hat is from 1.500 (A) to 3 (B).",
        ),
        (
            {"a": about(9.0, math.nan), "b": about(8.0, math.nan, rate=None)},
            "A has 1 effective draws per million evaluations.",
        ),
    ],
)
def test_the_sentence_of_an_experiment_that_has_none_of_its_own(diagnostics, sentence):
    assert default_finding(FakeRun(*diagnostics), diagnostics) == sentence


def test_an_experiment_of_the_user_is_no_preview_of_a_paper():
    scales = {"scales": {"smoke": {}, "paper": {}}, "scale": "smoke"}
    assert evidence_of({"experiment": "rows"} | scales, []).text == ""
    assert evidence_of({"experiment": "arena_logistic"} | scales, []).kind == "preview"


def test_warnings_name_the_worst_methods_first_and_count_the_rest():
    diagnostics = {name: about(10.0 * (i + 1), 1.1 + i) for i, name in enumerate("abcdef")}
    diagnostics |= {"g": about(math.nan, math.nan), "h": about(401.0, 1.009)}
    run = FakeRun(*diagnostics, h={"diverging": 7, "warnings": ["h: 7 steps left the numbers."]})
    lines = report_warnings(run, diagnostics)
    assert lines[0].startswith("R-hat above 1.01: F (6.100), E (5.100), D (4.100), C (3.100) and 2 more.")
    assert lines[1].startswith("ESS below 400: A (10), B (20), C (30), D (40) and 2 more.")
    assert lines[2].startswith("ESS and R-hat are undefined: G.")
    assert lines[3].startswith("Divergent steps: H (7).")
    assert lines[4] == "h: 7 steps left the numbers."
    assert report_warnings(FakeRun("a"), {"a": about(500.0)}) == []
    (line,) = report_warnings(FakeRun("a"), {"a": about(500.0) | {"ess_tail": 90.0}})
    assert line.startswith("Tail ESS below 400: A (90). Standard deviations and the 5 % and 95 % quantiles")
    (line,) = report_warnings(FakeRun("a"), {"a": about(50.0) | {"ess_tail": 90.0}})
    assert line.startswith("ESS below 400: A (50).")
    diagnostics = {m: about(500.0) | {"heavy_tail": ("v", 1.1)} for m in "ab"}
    (line,) = report_warnings(FakeRun("a", "b"), diagnostics)
    assert line.startswith(
        "The tail of v is heavy: A (1.100), B (1.100), with its index in brackets; from 0.5 on there"
    )
    for method in ({"chains": 1}, {"chains": 3, "rungs": 3}):  # one ladder is one chain
        (line,) = report_warnings(FakeRun("a", a=method), {"a": about(500.0)})
        assert line.startswith("One chain: A. R-hat compares its halves")


def test_the_table_has_the_measure_that_the_experiment_declares(tmp_path, monkeypatch):
    monkeypatch.setattr(declared, "EXPERIMENTS", tmp_path)
    declared._declarations.cache_clear()
    (tmp_path / "there").mkdir()
    spec = "measure: {metric: tv, floor: tv_noise, heading: distance, caption: From the target}"
    (tmp_path / "there" / "a.yaml").write_text(spec)
    run = FakeRun("a", "b", config={"report": {"metrics": "there.a.metrics"}})
    frame, explained = methods_table(
        run, {"a.tv": Estimate(0.1, 0.02), "a.tv_noise": 0.03}, {"a": about(500.0), "b": about(6.0)}
    )
    assert list(frame.columns) == [
        *("target", "ESS", "R-hat", "evaluations", "ESS per 10^6", "distance", "noise floor")
    ]
    assert list(frame.index) == ["A", "B"]
    assert frame["distance"]["A"] == Estimate(0.1, 0.02)
    assert explained["distance"] == "From the target"
    assert "wall time" in summary.COLUMNS["ess_per_second"][1]  # other work on the machine lengthens it
    (tmp_path / "there" / "a.yaml").write_text("measure: {metric: tv, floors: x}")
    declared._declarations.cache_clear()
    with pytest.raises(UserError, match=r"there is no key 'floors'. Did you mean 'floor'"):
        declared.measure_of(run.config)
    declared._declarations.cache_clear()


def test_a_method_that_is_too_short_to_judge_is_marked_and_has_no_efficiency():
    diagnostics = {
        "a": about(500.0),
        "b": about(399.0),
        "c": about(500.0, 1.011),
        "d": about(math.nan, math.nan),
    }
    diagnostics |= {"e": about(None, None, None, None), "f": about(500.0, math.nan)}
    counts = {"chains": 4, "steps": 10}
    found = summary.summarised(
        FakeRun(*diagnostics, **dict.fromkeys(diagnostics, counts)), {}, [], diagnostics
    )
    assert found.flags == {"A": [], "B": [SHORT], "C": [SHORT], "D": [SHORT], "E": [], "F": []}
    assert list(summary.marked_methods(found).index) == ["A", "B †", "C †", "D †", "E", "F"]
    assert list(found.methods["ESS per 10^6"].notna()) == [True, False, False, False, False, True]
    assert found.footnotes == ["† too short to judge: R-hat above 1.01 or ESS below 400"]
    assert summary.summarised(FakeRun("a", a=counts), {}, [], {"a": about(500.0)}).footnotes == []


def test_r_hat_is_judged_in_the_decimals_that_are_shown():
    """No table says 1.010 of an R-hat that it calls above 1.01."""
    assert not unconverged(about(500.0, 1.0104))
    assert unconverged(about(500.0, 1.0106))


def test_approximate_methods_that_converged_are_named_with_the_error_of_their_settings():
    counts = {"chains": 4, "steps": 10, "m": 100}
    run = FakeRun(
        "a",
        "b",
        "c",
        "d",
        a={**counts, "m": None},
        b=counts,
        d={**counts, "pilot": {"variance_error": 0.1, "variance_bias": -0.0528}},
        c={**counts, "pilot": {"variance_error": 0.1}},
    )
    diagnostics = {"a": about(500.0), "b": about(500.0, 1.2), "c": about(500.0), "d": about(900.0)}
    found = summary.summarised(run, {}, [], diagnostics)
    assert list(found.methods["target"]) == ["exact", "approximate", "approximate", "approximate"]
    assert found.footnotes[1] == (
        "approximate: R-hat and ESS do not show how far off C (sd up to 5% too large by its settings if the "
        "posterior is normal), D (sd 3% too small to 5% too large by its settings if the posterior is normal) are; "
        "compare with A: mhrun compare somewhere --reference somewhere:a"
    )
    del diagnostics["a"]
    assert summary.summarised(run, {}, [], diagnostics).approximate.endswith("compare with an exact method")


def test_a_likelihood_and_its_gradient_from_one_pass_are_one_evaluation_in_the_set_up_too():
    """HMC of 10 leapfrog steps on 100 data: 7 steps of burn-in, 5 of draws, a pilot of 3 with a search before it."""
    burn_in, draws, search = 7, 5, 40
    pilot = {"n_lik": 3 * 100, "n_grad": (3 * 10 + search) * 100}
    about = {
        "likelihood_evals": (burn_in + draws) * 100 + pilot["n_lik"],
        "gradient_evals": (burn_in + draws) * 1000 + pilot["n_grad"],
        "after_burn_in": {"n_lik": draws * 100, "n_grad": draws * 1000, "wall_s": 1.0},
        "separate_gradients": 0.9,
        "pilot": pilot,
    }
    found = costs(FakeRun("hmc", hmc=about), "hmc")
    assert found["evaluations"] == draws * 1000
    assert found["setup"] == burn_in * 1000 + (3 * 10 + search) * 100
    metropolis = about | {"separate_gradients": 1.0, "gradient_evals": pilot["n_grad"]}
    metropolis["after_burn_in"] = {"n_lik": draws * 100, "n_grad": 0, "wall_s": 1.0}
    assert costs(FakeRun("a", a=metropolis), "a")["setup"] == burn_in * 100 + pilot["n_lik"] + pilot["n_grad"]


def test_an_optimiser_has_no_effective_draws(tmp_path):
    """Its steps are no draws of a distribution; the sampler beside it has an ESS."""
    steps = (
        "steps=60",
        "schedule@methods.sgd.schedules.step_size=fixed",
        "methods.sgd.schedules.step_size.step_size=1e-9",
    )
    samplers = ("~methods.tempered_mcmc", "~methods.mcmc", "~methods.mint", "~methods.mint_stored")
    run = Run(compute(tmp_path, *samplers, "~methods.sghmc", "+method@methods.sgd=sgd", *steps))
    found = diagnosed(run)
    assert found["sgld"]["ess"] > 0
    assert found["sgd"]["why"] == "an optimiser has no draws."
    assert found["sgd"]["ess"] is None
    assert found["sgd"]["rhat"] is None
    assert [label for label, flags in summary_of(run).flags.items() if SHORT in flags] == ["SGLD"]


def test_an_optimiser_has_no_temperature():
    run = FakeRun("a", "b", "c")
    run.samples = lambda name: Samples(None, 9, 2.0 if name == "c" else 1.0, name == "c", name == "b")
    frame, explained = methods_table(run, {}, {name: about(500.0) for name in "abc"})
    assert list(frame["target"]) == ["approximate", "optimiser", "approximate"]
    assert frame["T"]["A"] == 1.0
    assert math.isnan(frame["T"]["B"])
    assert frame["T"]["C"] == 2.0
    assert "T" in explained


def claim(verdict, holds, name="c"):
    return Judged(name, "Figure 1", "a distance", 1.0, 1.0, None, "below 2", holds, verdict, "", "")


def test_a_status_is_a_preview_a_verdict_or_neither(tmp_path, monkeypatch):
    config = {"experiment": "e", "scale": "smoke", "report": {"paper": "p"}, "scales": {"paper": {}}}
    some = [claim(NOT_AT_SCALE, True), claim(NOT_AT_SCALE, False), claim(NOT_AT_SCALE, None)]
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    smoke = config | {"runtime": {"departures": ["scale = smoke", "n = 5 (paper: 50)"]}}
    found = evidence.evidence_of(smoke, some)
    assert (found.kind, found.recorded) == ("preview", "")
    assert found.text == "Preview: 1 of 2 checks hold; no verdict at smoke scale."
    assert found.command == "mhrun --project DIR experiment=e scale=paper"
    assert found.departures == ["scale = smoke", "n = 5 (paper: 50)"]

    verdicts = [{"id": "a", "verdict": REPRODUCED}, {"id": "b", "verdict": "not judged"}]
    record = {"results_version": 2, "claims": verdicts}
    (tmp_path / "p.json").write_text(json.dumps({"experiments": {"e": record}}))
    assert evidence.evidence_of(smoke, some).recorded == "At paper scale: 1 of 1 reproduced."
    record["results_version"] = 1
    (tmp_path / "p.json").write_text(json.dumps({"experiments": {"e": record}}))
    assert evidence.evidence_of(smoke, some).recorded == ""  # of other random numbers

    other = config | {"scale": "paper", "runtime": {"departures": ["n = 5 (paper: 50)"]}}
    assert evidence.evidence_of(other, some).kind == "changed"
    judged = [claim(REPRODUCED, True), claim(NOT_REPRODUCED, False, "worse")]
    found = evidence.evidence_of(config | {"scale": "paper", "runtime": {"departures": []}}, judged)
    assert (found.kind, found.text, found.command) == ("verdict", "1 of 2 claims reproduced.", "")
    assert found.failed == ["a distance (worse)"]
    assert evidence.evidence_of(config | {"scale": "paper"}, []).text == ""


def test_a_check_that_cannot_fail_and_one_without_a_number_do_not_hold():
    config = {"experiment": "e", "scale": "smoke", "scales": {"paper": {}}, "runtime": {"departures": ["x"]}}
    some = [
        claim(NOT_AT_SCALE, True),
        claim(NOT_AT_SCALE, True)._replace(noisy=True),
        claim(NOT_AT_SCALE, None),
    ]
    assert evidence.evidence_of(config, some).text == (
        "Preview: 1 of 2 checks hold, 1 is too noisy to tell; no verdict at smoke scale."
    )
    assert evidence.evidence_of(config, some[2:]).text == (
        "Preview: no claim can be judged: this run lacks the methods or numbers that they need."
    )


def test_a_label_with_a_comma_is_quoted_in_a_list(tmp_path):
    run = FakeRun("a", "b", a={"m": 100, "label": "MINT, stored"}, b={"m": 5, "label": "MINT"})
    line = approximate_methods(run, {"a": about(900), "b": about(900)})
    assert "how far off “MINT, stored”, MINT are" in line
    assert named(["a, b", "c"]) == "“a, b”, c"


# --- Findings -------------------------------------------------------------------------------------------------

RESULTS = sorted((ROOT / "docs" / "results" / "metrics").glob("*.json"))


class Measured(FakeRun):
    """A run of which only the metrics are known."""

    def __init__(self, config, methods, found):
        super().__init__(*methods, **methods)
        self.config, self.found = config, found
        self.target = SimpleNamespace(dim=50)

    def label(self, name):
        return str(self.methods[name].get("label") or name)

    def cached(self, function):
        return self.found


def metrics_of(experiment):
    """Return the name of the function that computes the metrics of an experiment, or nothing."""
    path = ROOT / "conf" / "experiment" / f"{experiment}.yaml"
    if not path.exists():
        return ""
    config = yaml.safe_load(path.read_text())
    if name := (config.get("report") or {}).get("metrics"):
        return name
    others = [entry for entry in config.get("defaults", []) if isinstance(entry, str) and entry != "_self_"]
    beside = [(path.parent / other).relative_to(ROOT / "conf" / "experiment").as_posix() for other in others]
    return next(filter(None, map(metrics_of, beside)), "")


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_a_finding_is_one_sentence_with_the_numbers_of_the_paper_scale_run(path):
    known = json.loads(path.read_text())
    if not (name := metrics_of(path.stem)):
        pytest.skip("results of an experiment that has another name now")
    own = yaml.safe_load((ROOT / "conf" / "experiment" / f"{path.stem}.yaml").read_text())
    monitor = own.get("monitor")
    if "${" in str(monitor):
        monitor = compose_config([f"experiment={path.stem}", "scale=paper"], compare=False)["monitor"]
    config = {"experiment": path.stem, "report": {"metrics": name}, "monitor": monitor}
    number = lambda x: math.nan if x is None else x  # noqa: E731
    found = {
        name: Estimate(*map(number, value)) if isinstance(value, list) else number(value)
        for name, value in known["metrics"].items()
    }
    template = declared.finding_of(config)
    assert template is not None
    (sentence,) = template(Measured(config, known["methods"], found))
    assert sentence.endswith(".")
    assert "nan" not in sentence
    assert len(sentence.split()) <= 50
    assert "  " not in sentence


OWN = sorted(EXPERIMENTS.rglob("*.finding.md"))


@pytest.mark.parametrize("path", OWN, ids=["/".join(path.parts[-2:]) for path in OWN])
def test_a_finding_is_left_out_where_its_numbers_are_missing(path, monkeypatch):
    """A method may be left out, or a metric undefined: the default sentence takes the place of the experiment's."""
    module = ".".join(path.relative_to(EXPERIMENTS).with_name(path.name.split(".")[0]).parts)
    config = {"experiment": "e", "report": {"metrics": f"{module}.metrics"}, "monitor": {}}
    run = Measured(config, {}, {})
    template = declared.finding_of(config)
    if "sizes(run)" in path.read_text():
        monkeypatch.setattr(declared.experiment_module(module), "sizes", lambda run: [1])
    assert template(run) == []


def test_every_experiment_has_a_finding_of_its_own():
    without = []
    for path in sorted((ROOT / "conf" / "experiment").glob("*.yaml")):
        config = {"report": {"metrics": metrics_of(path.stem)}}
        if declared.finding_of(config) is None:
            without.append(path.stem)
    assert without == []


# --- A whole run ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = compute(tmp_path_factory.mktemp("found"), *FEW, "steps=300", "warmup=100")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_page, "draw", without_rendering)
        build_report(folder)
    return folder


def test_the_page_and_the_summary_say_the_same(reported):
    found, run = summary_of(reported), Run(reported)
    page = (reported.report / "index.html").read_text()
    assert found.title == "Mixture of Gaussians with tied means"
    assert found.scale == "smoke scale · 4 chains × 300 steps · 2 methods"
    for text in (found.finding, found.scale, found.status.text, found.status.command):
        assert f">{text}" in page or text in page
    assert found.warnings
    assert all(line.partition(":")[0] in page for line in found.warnings)
    draws = valid_draws(run, "mint")
    exact = efficiency(run, "mint", draws)
    assert found.methods["ESS"]["MINT"] == pytest.approx(exact["ess"])
    metrics = json.loads((reported.path / "summary.json").read_text())["metrics"]
    assert found.methods["distance"]["MINT"] == metrics["mint.tv"]
    assert run.methods["mint"]["warnings"] is not None
    hit = metrics["mint.hit_share"]  # the sentence agrees with the table: crossing is not hitting
    if metrics["mint.modes_visited_most"] == 2:
        assert ("none has been within 0.01 of both" if hit == 0 else f"{hit:.0%}") in found.finding
    order = [page.index(text) for text in ('class="finding"', 'class="status preview"', "figure-density",
             "table-results", "figure-mode_ratio", '<details id="claims">', 'id="settings"')]  # fmt: skip
    assert order == sorted(order)
    assert page.count("scale = smoke") == 1  # departures are stated once


@pytest.mark.slow
def test_diagnostics_are_kept_with_the_run(reported, unrendered, monkeypatch):
    """Effective sample sizes of millions of draws take a while: another report of the same draws has them."""
    monkeypatch.setattr(summary, "diagnosed", lambda run: pytest.fail("computed again"))
    before = summary_of(reported)
    assert build_report(RunFolder(reported.path)).failures == []
    assert summary_of(RunFolder(reported.path)).methods.equals(before.methods)


def test_a_run_without_a_report_has_a_summary(tmp_path):
    folder = compute(tmp_path, *FEW, "steps=60", "warmup=50")
    found = summary_of(folder)
    # Too short for an efficiency
    assert list(found.methods.columns) == ["target", "T", "ESS", "R-hat", "evaluations", "set-up"]
    burn_in = 4 * 50 * 200
    assert found.methods["set-up"]["MINT"] == burn_in
    assert found.finding
    assert Path(folder.report).exists() is False


def test_a_run_ends_with_its_result(reported, capsys):
    """The sentence, the status, a table with acceptance rates, and the warnings, within the width."""
    show_result(reported, width=80)
    out = capsys.readouterr().out
    found = summary_of(Run(reported))
    words = " ".join(out.split())
    assert found.finding in words
    assert found.status.text in words
    assert f"For verdicts: {found.status.command}" in words
    (head,) = (line for line in out.splitlines() if line.startswith("method "))
    assert head.split()[1:5] == ["target", "T", "ESS", "R-hat"]
    assert "10^6" not in head  # left out where it is narrow
    (mint,) = (line for line in out.partition(head)[2].splitlines() if line.startswith("MINT "))
    assert mint.split()[2] == "approximate"  # behind the mark of a run that is too short
    assert "† too short to judge" in out
    assert found.warnings
    assert all(f"warning: {warning[:40]}" in out for warning in found.warnings)
    assert max(map(len, out.splitlines())) <= 80
    show_result(reported, width=120)
    assert "set-up" in capsys.readouterr().out


def test_a_narrow_terminal_cuts_no_number(reported, capsys):
    """It folds the lines of the table; a cut number would be another number."""
    show_result(reported, width=80)
    wide = capsys.readouterr().out
    show_result(reported, width=40)
    narrow = capsys.readouterr().out
    rows = [
        [line.split("approximate")[1].split() for line in out.splitlines() if " approximate " in line]
        for out in (wide, narrow)
    ]
    assert rows[0]
    assert rows[0] == rows[1]


def test_costs_do_not_depend_on_which_statistics_are_kept(tmp_path):
    """Evaluations after burn-in, with statistics of each step, of each tenth, and of fewer than burn-in has steps."""
    words = (
        "~methods.sgld",
        "~methods.sghmc",
        "~methods.mcmc",
        "~methods.tempered_mcmc",
        "~methods.mint_stored",
    )
    found = []
    for every in (1, 10, 60):
        folder = compute(tmp_path / str(every), *words, "steps=61", "warmup=50", f"+thin_stats={every}")
        found.append(costs(Run(folder), "mint"))
        found[-1].pop("seconds")
    assert found[0]["evaluations"] > 0
    assert found[0]["setup"] > 0
    assert found[1] == found[2] == found[0]


def test_a_metric_that_no_method_of_a_run_has_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("d.npz", x=rng.normal(size=(60, 2)), y=rng.choice([0, 1], 60))
    model = ["model=softmax_regression", "model.features=2", "model.classes=2", "+method@methods.mcmc=mcmc"]
    monitor = [
        "+monitor=calibration",
        "monitor.every=30",
        "+data@monitor.data=npz",
        "monitor.data.file=d.npz",
    ]
    settings = ["data=npz", "data.file=d.npz", *model, *monitor, "steps=60", "warmup=60"]
    assert main([*settings, "+report.sweep=[errr,brier,ess]"]) == 0
    captured = capsys.readouterr()
    line = "report.sweep names errr, a metric that no method of this run has. Did you mean 'error'?"
    assert line in captured.err
    assert "brier" in captured.out
    (page,) = {path.resolve() for path in tmp_path.glob("outputs/own/*/report/index.html")}
    assert line.replace("'", "&#39;") in page.read_text()
