"""Every experiment from its configuration to its page, with few data and few steps, on made-up images."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace

import digits
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import tables
import yaml

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.places import experiments
from mhrun.diagnostics.grid import Estimate
from mhrun.engine.experiment import run_experiment
from mhrun.engine.watcher import Silent
from mhrun.paths import CONF, experiment_module
from mhrun.report import build, on_page, style
from mhrun.report.build import build_report
from mhrun.report.claims.judge import judge_all
from mhrun.report.run import Run

FEW = ("steps=24", "chains=2")
COOL = "temperature=3"  # so that the images are distinguished within these steps
NEVER = "(x9.*|steps90|seconds95|length)"  # what a curve may not come to


def without(*methods):
    return tuple(f"~methods.{method}" for method in methods)


IN_FIGURES_ALONE = without("mhminibatch_printed", "mhsublhd_printed", "austere_c_same", "mhsublhd_same")
PEAKS = r"\w+\.(evenness|visits|chi2|p|per_visit|height_ratio\w*|(upper|lower)_peak|mass_ratio|jump\d)"
SOME_DECAYS = without("sgd_1", "sgd_4", "sgd_5", "sgd_momentum_1", "sgd_momentum_4", "sgd_momentum_5")
FEW_SAMPLES = ("scales.smoke.samples=100", "scales.smoke.cyclical=130", "scales.smoke.warmup=20")
ARENA = (
    "chains=2",
    "warmup=50",
    *(f"scales.smoke.{length}=24" for length in ("full", "part", "tuna", "gradient")),
)

FEW_TESTS = (
    *("scales.smoke.few=24", "data.n=100"),
    *without("mint", "penalty", "mhminibatch", "austere", "tunamh", "sgld", "sghmc"),
    *without("mala", "penalty_cv", "smh1", "mh_ss"),
)

FEW_LETTERS = (
    "data.n=200",
    "m=20",
    "scales.smoke.part=4",
    "scales.smoke.apart=1",
    "scales.smoke.hidden=8",
    "scales.smoke.test=50",
    "monitor.outside.name=mnist",
)


UNREACHED = r"\w+\.((cost|total|seconds)0\.\d+|accept_rate|ess|per_draw)"  # few steps; no test; biased


@dataclass
class Case:
    """How an experiment is made small, and which of its metrics may be no number then.

    One that is not named has few steps and chains.
    """

    overrides: tuple[str, ...]
    empty: str = ""  # a regular expression
    like: tuple[str, ...] = field(default=())  # experiments with other settings and the same report


CASES = {
    "arena_growth": Case(
        (
            *(
                "scales.smoke.n=[60,80,100,110,120]",
                "scales.smoke.full=[30,30,30,30,30]",
                "scales.smoke.few=40",
            ),
            *without(*(f"{test}_n{k}" for test in ("smh1", "mh_ss", "zig_zag") for k in range(1, 6))),
            *without("tunamh_n1", "tunamh_n2", "tunamh_n3"),
            *without(*(f"{test}_n{k}" for test in ("metropolis", "smh2") for k in (2, 3, 4))),
        )
    ),
    "arena_logistic": Case(
        (
            *(*ARENA, "scales.smoke.few=24", "data.n=100", "model.dim=2"),
            *without("mint", "penalty", "mhminibatch", "austere", "sghmc", "penalty_cv", "smh1", "mh_ss"),
        ),
        UNREACHED,
    ),
    "arena_logistic_million": Case(
        (
            *(f"scales.smoke.{length}=20" for length in ("full", "part", "few", "gradient", "zig_zag")),
            *("chains=2", "warmup=50", "thin=4", "scales.smoke.n=100", "model.dim=2"),
            *without("penalty", "sghmc", "penalty_cv", "smh1", "mh_ss"),
        ),
        UNREACHED,
    ),
    "arena_mixture": Case(
        (
            *ARENA,
            "data.n=200",
            "temperature=2",
            *without("mint", "penalty", "austere", "sghmc", "poisson_mh"),
        ),
        UNREACHED,
    ),
    "arena_poisson": Case((*ARENA, *FEW_TESTS, "model.dim=2"), UNREACHED),
    "arena_robust": Case((*ARENA, *FEW_TESTS, "model.dim=2"), UNREACHED),
    "arena_softmax": Case((*ARENA, *FEW_TESTS, "model.features=2"), UNREACHED),
    "cifar_cycles": Case(
        (
            "data.n=120",
            "m=20",
            "scales.smoke.length.part=2",
            "explore=0.6",
            "monitor.data.n=40",
            *(
                f"methods.{name}.schedules.noise.samples=3"
                for name in ("sgld", "sghmc", "sgld_half", "sghmc_half")
            ),
        ),
        r"\w+\.sigmas_under\.\w+",  # where all seeds are alike
        like=("cifar100_cycles",),
    ),
    "bnn_truth": Case(
        (
            "data.name=mnist",
            "test.name=mnist",
            "test.n=40",
            "scales.smoke.hmc.steps=12",
            "scales.smoke.hmc.warmup=20",
            "scales.smoke.hmc.leapfrog=2",
            "scales.smoke.length.of_member=20",
            "scales.smoke.length.apart_in_cycle=2",
            *without("mala", "sghmc", "sgnht", "mint", "cmint"),
        ),
        r"hmc\.(rhat|ess)",
    ),
    "bnn_truth_cnn": Case(
        (
            "data.name=mnist",
            "test.name=mnist",
            "data.n=40",
            "test.n=40",
            "scales.smoke.hmc.steps=6",
            "scales.smoke.hmc.warmup=10",
            "scales.smoke.hmc.leapfrog=2",
            "scales.smoke.length.of_member=20",
            "scales.smoke.length.steps=100",
            "scales.smoke.length.apart_in_cycle=2",
            *without("mala", "csgld", "sghmc", "sgnht", "renhd", "mint", "cmint"),
        ),
        r"hmc\.(rhat|ess)",
    ),
    "cifar_residual": Case(
        ("scales.smoke.length.part=1", "scales.smoke.length.apart=1"), r"\w+\.sigmas_over\.\w+"
    ),
    "cifar_rsgld": Case(
        (
            "data.n=100",
            "m=20",
            "monitor.data.n=40",
            *without("rmsprop", "adam", "sgd_half"),
        ),
        r"\w+\.sd_rises",
    ),
    "backward_moves": Case(("draws=60", "dims=[10,100]")),
    "compensation": Case(("draws=2000", "timed=2000", "variances=[0.2]", "dims=[50,500]", "half_width=300")),
    "corrections": Case(("half_widths=[2000,4000]",)),
    "exchange_rates": Case(
        (
            "data.n=200",
            "m=20",
            "data.name=mnist",
            "monitor.data.name=mnist",
            "monitor.data.n=50",
            "every=10",
            "ratio=1.01",
            "step_size=1e-5",
        ),
        r"(\w+\.dimension|reld\.(swing|thermostat|c_over_b))",  # too few exchanges; no thermostat
    ),
    "exchange_step_sizes": Case(
        (
            "rungs=4",
            "data.n=200",
            "m=20",
            "data.name=mnist",
            "monitor.data.name=mnist",
            "monitor.data.n=50",
            "monitor.repeats=5",
            "every=10",
            "ratio=1.01",
            "step_size=1e-5",
        ),
        r"\w+\.dimension",
    ),
    "flymc_mnist": Case(
        (
            "data.n=240",
            "data.digits=[1,7]",
            "data.components=5",
            "model.dim=5",
            "chains=2",
            "warmup=20",
            "scales.smoke.full=24",
            "scales.smoke.fly=60",
            "start=0.01",
            *(
                f"methods.{method}.schedules.step_size.window=10"
                for method in ("regular", "untuned", "tuned")
            ),
        )
    ),
    "fashion_lstm": Case(
        (
            "every=5",
            "scales.smoke.length.part=2",
            "scales.smoke.length.apart=2",
            *(
                f"{place}.name=mnist"
                for place in ("data", "monitor.data", *(f"sets.p{k}.data" for k in (0, 20, 30)))
            ),
        ),
        r"\w+\.sigmas_over\.\w+",  # where runs are alike,
    ),
    "five_modes": Case(
        ("scales.smoke.rounds=40", "scales.smoke.trains=10", "scales.smoke.draws=20", "every=5"),
        r"\w+\.(ess|ess_share|variance)",
    ),
    "five_modes_variants": Case(
        ("scales.smoke.rounds=40", "scales.smoke.tact=60", "every=5", "loud_every=5"),
        r"\w+\.(ess|ess_share|ess_ratio|variance|outside|draws)",
    ),
    "gaussian_grid": Case(("chains=8", "steps=1200", "cycles=4", "held=300")),
    "gradient_noise": Case(
        (
            "data.n=220",
            "m=20",
            "data.name=mnist",
            "monitor.data.name=mnist",
            "monitor.data.n=50",
            "monitor.sizes=[16,128]",
            "monitor.repeats=20",
            "methods.sghmc.schedules.step_size.step_size=5e-6",
        )
    ),
    "gradient_noise_recurrent": Case(
        (
            "scales.smoke.sizes=[16,32,64,128]",
            "scales.smoke.repeats=5",
            "scales.smoke.every=2",
            *(f"{place}.name=mnist" for place in ("data", "monitor.data")),
        )
    ),
    "gradient_noise_residual": Case(
        ("scales.smoke.sizes=[16,32,64,128]", "scales.smoke.repeats=5", "scales.smoke.every=2")
    ),
    "lemmas": Case(
        ("simulated=4000", "decisions=300", "sizes=[16,64,128]", "exact_sizes=[50,200]", "firsts=[4,64]"),
        r"skewed\.slope",  # all distances are chance
    ),
    "logistic_ess": Case(
        ("scales.smoke.samples=120",),
        like=("logistic_ess_full", "logistic_ess_equal"),
    ),
    # Bounds within which some step size will do.
    "logistic_ess_grid": Case((*FEW_SAMPLES, "within.mean=1e9", "within.variance=1e9")),
    "logistic_ess_readings": Case(
        (
            *FEW_SAMPLES,
            "within.mean=1e9",
            "within.variance=1e9",
            *(f"readings.each_step.batch.{data}=60" for data in ("australian", "german", "heart")),
        ),
        like=("logistic_ess_priors",),
    ),
    "mh_ss_subsamples": Case(
        (
            *("data.n=100", "data.dim=2", "model.dim=2", "chains=2", "warmup=50"),
            *("scales.smoke.full=40", "scales.smoke.few=40"),
        )
    ),
    "mhbt_gaussian": Case(
        (
            "data.n=1000",
            "m=100",
            "chains=60",
            "scales.smoke.few=60",
            "model.start=2.0",  # so that it is converged from the first
            "methods.mhbt_2_m5000.kernel.pairing.m=900",
        ),
        r"(mhbt|full)_\w+\.steps_to_close|(d[25]|near|far)\.slower",
    ),
    "mhbt_gaussian_5": Case(
        (
            "data.n=1000",
            "m=100",
            "chains=60",
            "model.start=2.0",
            "methods.mhbt_5_m500.kernel.pairing.m=50",
            "methods.mhbt_5_m5000.kernel.pairing.m=900",
        ),
        r"mhbt_\w+\.steps_to_close",
    ),
    "mhbt_mixture": Case(("chains=2", "steps=60", "long=60", "warmup=50", "data.n=2000", "m=200")),
    "mint_logistic": Case(
        ("data.n=240", "steps=60", "full=30", "tests=20", COOL, "hot=10"),
        rf"(mhminibatch|austere_n?c|mhsublhd)\.{NEVER}",
        like=("mint_logistic_flat",),
    ),
    "mint_logistic_accuracy": Case(
        (
            "data.n=240",
            "methods.fixed_components.data.n=240",
            "methods.tuned_components.data.n=240",
            "total=150",
            "tuning=100",
            COOL,
        )
    ),
    "mint_network": Case(("data.n=200", "m=20", "monitor.data.n=50")),
    "mint_network_moving": Case(("data.n=200", "m=20", "monitor.data.n=50")),
    "mint_network_optimisers": Case(("data.n=200", "m=20", "monitor.data.n=50")),
    "mintee": Case(
        (
            "data.n=1300",
            "smallest=60",
            "points=40",
            "clusters=6",
            "restarts=1",
            "apart=40",
            "burn=20",
            "warmup=60",
            "methods.mintee.warmup=260",
            "thin=10",
            "methods.mintee.schedules.step_size.window=20",
            "methods.mintee.kernel.capacity=50",
            "steps=60",
            "executor=torch",
        ),
        PEAKS,
        like=("mintee_minibatches",),
    ),
    "mintee_works": Case(
        (
            "data.n=500",
            "steps=60",
            "warmup=60",
            "pt_ladders=2",
            "points=40",
            "clusters=6",
            "restarts=1",
            "scales.smoke.pt=120",
            "scales.smoke.pt_warmup=120",
            "scales.smoke.batches=60",
            "scales.smoke.batches_warmup=60",
            "scales.smoke.close=60",
            "methods.mintee_batches.kernel.sizes=[500,500,500,500,500,500,100,50]",
            "~methods.pt_random_walk",
            "methods.mintee.schedules.step_size.window=20",
            "methods.closeup.schedules.step_size.window=20",
            "methods.mintee_batches.schedules.step_size.window=20",
        ),
        PEAKS,
    ),
    "mint_rates": Case(
        (
            "data.n=200",
            "m=50",
            "monitor.data.skip=200",
            "monitor.data.n=40",
            "trainings=2",
            *SOME_DECAYS,
        )
    ),
    "mixture_moments": Case((*FEW, "scales.smoke.few=2", "warmup=0", "data.n=2000", "temperature=20")),
    "mixture_tests": Case((*FEW, "chains=5", "data.n=2000", "design.n=2000", "temperature=20")),
    "mnist_tests": Case(
        (*FEW, COOL, "data.n=240", "design.n=240", "thin=3", *IN_FIGURES_ALONE),
        rf"(austere_n?c|austere_nc_released|mhsublhd|mhminibatch_far)\.{NEVER}",  # those that begin far off
        like=("mnist_tests_100k",),
    ),
    "sgnht_stationary": Case(
        (
            "steps_dt=[0.1,0.05]",
            "rung.steps_dt=[0.05]",
            "trajectories=20",
            "snapshots=2",
            "uneven.ratios=[1.0,10.0]",
            "uneven.chains=5",
            "uneven.snapshots=2",
        )
    ),
    "out_of_distribution": Case(FEW_LETTERS),
    "out_of_distribution_t1": Case(FEW_LETTERS),
    "out_of_distribution_noise": Case(FEW_LETTERS),
    "preserved_optima": Case(("batches=60", "n=1200", "m=200", "sizes=[50,200]", "temperatures=[5.0,20.0]")),
    "rsgld_acceptance": Case(
        ("dim=3", "data.n=300", "m=50", "chains=7", "steps=24"),
        r"\w+\.(eps_(half|tenth)|gain)",  # which no learning rate may have
    ),
    "rsgld_mnist": Case(
        ("data.n=200", "data.skip=0", "m=20", "monitor.data.n=50"),
        r"\w+\.sd_rises",  # where all trainings are alike
        like=("rsgld_mnist_softmax",),
    ),
    "smh_sizes": Case(
        (
            "scales.smoke.n=[60,80,100,120,140]",
            *(
                "warmup=50",
                "scales.smoke.full=[24,24,24,24,24]",
                "scales.smoke.few=200",  # in which every chain moves
                "scales.smoke.fly=24",
            ),
            *without(*(f"{test}_n{k}" for test in ("metropolis", "smh1", "smh2") for k in (1, 2, 4))),
        )
    ),
    "step_sizes": Case((*FEW, COOL, "data.n=300")),
    "step_size_sums": Case(()),
    "tempered_bounds": Case(("points=9", "sizes=[20,100]", "n=1000")),
    "tunamh_mixture": Case(
        ("chains=2", "warmup=20", "data.n=1000", "temperature=50", "scales.smoke.few=100")
    ),
    "tunamh_mnist": Case(
        (
            "data.n=240",
            "data.digits=[1,7]",
            "data.components=5",
            "model.dim=5",
            "level=0.5",
            *(f"scales.smoke.{length}=40" for length in ("tuna", "full", "factorised", "fly")),
        )
    ),
    "temperature_drop": Case(
        ("chains=2", "data.n=240"), like=("temperature_drop_100k", "temperature_drop_small")
    ),
    "worst_case": Case((*FEW, "warmup=0", "data.n=1100"), r"\w+\.sd"),  # it has no standard error
}
ELSEWHERE = {"gmm_tied_means"}  # see test_report
NAMED = {name for first, case in CASES.items() for name in (first, *case.like)}
CASES |= {name: Case(FEW) for name in experiments() if name not in NAMED | ELSEWHERE}
# Figures that every run has take half of the time: drawn for runs of each kind, and of the others its own alone.
WITH_GENERAL_FIGURES = {"five_modes", "mhbt_gaussian", "mint_network", "worst_case"}
# Experiments whose report has the functions of another one's that is tested, or of which other tests make the report,
# and some that take long.
AS_OTHERS = {
    *("arena_poisson", "arena_robust", "arena_softmax", "arena_logistic", "mh_ss_subsamples"),
    *("mintee", "five_modes", "mhbt_gaussian_5"),
    *("cifar_residual", "cifar_rsgld", "fashion_lstm", "gradient_noise_recurrent", "gradient_noise_residual"),
    *("logistic_ess_readings", "mint_network_moving", "out_of_distribution_t1"),
    *("arena_mixture", "arena_logistic_million", "bnn_truth_cnn", "exchange_step_sizes"),
    *("five_modes_variants", "logistic_ess_grid", "gaussian_grid", "compensation"),
    *("lemmas", "exchange_rates", "arena_growth", "flymc_mnist", "bnn_truth", "tunamh_mixture"),
    *("mint_logistic", "mintee_works", "gradient_noise", "cifar_cycles", "out_of_distribution"),
    *("mhbt_mixture", "mixture_tests", "temperature_drop", "mint_network", "mint_rates", "worst_case"),
    *("mnist_tests", "mixture_moments", "step_size_sums"),
    *("smh_sizes", "logistic_ess", "mint_logistic_accuracy", "out_of_distribution_noise", "rsgld_mnist"),
}
SWEPT = {"logistic_ess_priors", "logistic_ess_readings"}  # whose claims are all of a sweep


def small(name, outputs):
    overrides = ["scale=smoke", "runtime.threads=1", f"runtime.outputs={outputs}", *CASES[name].overrides]
    return compose_config([f"experiment={name}", *overrides], compare=False)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A few hundred images that are easy to classify."""
    rng = np.random.default_rng(17)
    signed = experiment_module("shared.classify")._signed
    with pytest.MonkeyPatch.context() as patch:
        train, test = (digits.blobs(rng, ones, sevens) for ones, sevens in ((130, 110), (30, 26)))
        place = tmp_path_factory.mktemp("images")
        digits.install(place, patch, train, test)
        tables.install(place / "data", patch)
        digits.install_colours(patch)
        signed.cache_clear()
        yield train, test
    signed.cache_clear()


@pytest.fixture
def quick(monkeypatch):
    """Coarser quadrature, narrower grids, fewer pixels: the rest is as it is."""
    monkeypatch.setitem(style._SETTINGS, "savefig.dpi", 80)
    solve = experiment_module("mhminibatch.corrections").ridges
    masses = experiment_module("arena.truth").log_masses
    for module, name, coarser in (
        ("csgmcmc.exact", "DRAWS", 5000),
        ("mhminibatch.corrections", "SIMULATED", 2000),
        ("mhminibatch.corrections", "ridges", lambda sigma, lams, half: solve(sigma, lams, half // 20)),
        ("arena.truth", "LEAST", 200),
        ("arena.truth", "EVALUATIONS", 1e4),
        ("arena.truth", "log_masses", lambda density, grid, order=1: masses(density, grid, 1)),
        ("mhminibatch.mixture", "log_masses", lambda density, grid, order=1: masses(density, grid, 1)),
    ):
        monkeypatch.setattr(experiment_module(module), name, coarser)


@pytest.fixture
def whole_columns(monkeypatch):
    """A column of a metric that no method has would silently stay empty."""
    real = Run.by_method

    def by_method(run, found, columns):
        # Of a curve, such as tv_100, methods may have other steps than each other.
        curves = {
            c
            for c in columns.values()
            if re.search(r"_\d+$", c) and any(f"{m}.{c}" in found for m in run.methods)
        }
        requested = {f"{method}.{name}" for method in run.methods for name in set(columns.values()) - curves}
        assert {name for name in requested - set(found) if not name.startswith("truth.")} == set()
        return real(run, found, columns)

    monkeypatch.setattr(Run, "by_method", by_method)


def test_cases_are_of_experiments():
    assert set(experiments()) >= NAMED | ELSEWHERE


@pytest.mark.filterwarnings("ignore::RuntimeWarning:arviz_stats")  # chains that never move in a few steps
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in AS_OTHERS else ()) for name in CASES]
)
def test_an_experiment_has_all_of_its_report(name, images, quick, whole_columns, outputs, monkeypatch):
    config = small(name, outputs)
    folder = run_experiment(config, Silent())
    if name not in WITH_GENERAL_FIGURES:
        monkeypatch.setattr(build, "FIGURES", {})
        monkeypatch.setattr(on_page, "inline_svg", lambda figure, name, frame: None)
        monkeypatch.setattr(on_page, "FORMATS", ("png",))
    assert build_report(folder).failures == []
    summary, spec = folder.summary(), config["report"]

    # A claim on a metric that is not there is judged against nothing.
    for each in (name, *CASES[name].like):
        zeros = dict.fromkeys(summary["metrics"], Estimate(0.0, 1.0))
        claims = judge_all(config | {"experiment": each}, zeros)
        assert bool(claims) == ("paper" in spec and each not in SWEPT)
        assert {claim.why for claim in claims if claim.holds is None} == set()
    empty = [
        key
        for key, value in summary["metrics"].items()
        if value is None or (isinstance(value, dict) and None in value.values())
    ]
    assert [key for key in empty if not re.fullmatch(CASES[name].empty, key)] == []

    figures, shown = spec.get("figures", {}), (folder.report / "index.html").read_text().count("<figure>")
    assert shown > len(figures) if build.FIGURES else shown == len(figures)
    assert figures or name not in NAMED
    for figure in figures:
        shades = (255 * matplotlib.image.imread(folder.report / f"{figure}.png")[..., 0]).astype(int)
        assert np.count_nonzero(np.bincount(shades.ravel())) > 30
    for table in spec.get("tables", {}):
        frame = pd.read_csv(folder.report / f"{table}.csv", index_col=0)
        # By few steps
        unreached = [c for c in frame if c.endswith("(se)") or " to 0." in c or c == "with set-up"]
        assert not frame.drop(columns=unreached).isna().all().any()
        assert not frame.isna().all(axis=1).any()


@pytest.mark.parametrize(("name", "like"), [(n, other) for n, case in CASES.items() for other in case.like])
def test_two_experiments_differ_in_settings_only(name, like):
    """So that what holds of the metrics of the one holds of the other's."""
    text = yaml.safe_load((CONF / "experiment" / f"{like}.yaml").read_text())
    assert text["defaults"][0] == name
    assert not {"methods", "report"} & set(text)


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, message):
        self.notes.append(message)


def test_a_test_that_reads_all_data_too_often_is_reported_once(outputs):
    overrides = ["data.n=300", "m=20", "chains=4", "steps=50", "warmup=30", "executor=torch"]
    # So that it seldom need
    overrides.append("methods.mhminibatch_printed.schedules.temperature.temperature=2")
    overrides.extend(without("mhminibatch", "mhminibatch_fewer"))
    watcher, again = Notes(), Notes()
    config = compose_config(
        ["experiment=worst_case", "scale=smoke", f"runtime.outputs={outputs}", *overrides], compare=False
    )
    run = Run(run_experiment(config, watcher))
    shares = {name: float((run.stat(name, "batch_size") == 300).mean()) for name in run.methods}
    assert shares == pytest.approx({name: run.methods[name]["all_data_share"] for name in run.methods})
    assert shares["metropolis"] == 1  # by its nature: there is nothing to tell
    assert min(shares["austere"], shares["mhsublhd"]) > 0.1 > shares["mhminibatch_printed"] > 0
    assert [note.split(",")[0] for note in watcher.notes] == [
        f"{name}: {shares[name]:.0%} of its decisions read all 300 data" for name in ("austere", "mhsublhd")
    ]
    run_experiment(config, again)
    assert again.notes == []


# --- What reports are computed from -------------------------------------------------------------------------


def test_a_curve_reaches_its_level_between_two_draws_or_never():
    reached = experiment_module("mhminibatch.mnist").reached
    spent = np.array([100.0, 300, 400, 900])
    assert reached(spent, np.array([0.5, 0.8, 0.95, 0.2])) == pytest.approx(
        np.interp(0.9, [0.8, 0.95], [300, 400])
    )
    assert reached(spent, np.array([0.5, 0.9, 0.2, 0.95])) == 300
    assert reached(spent, np.array([0.9, 0.1, 0.1, 1.0])) == 100
    assert np.isnan(reached(spent, np.array([0.5, 0.8, 0.89, 0.899])))
    first = experiment_module("mint.logistic")._reached
    assert first(spent, np.array([0.5, 0.94, 0.95, 1.0])) == 400
    assert np.isnan(first(spent, np.full(4, 0.949)))


def test_means_so_far_and_orders():
    draws = np.random.default_rng(2).normal(size=(2, 7, 3))
    means = experiment_module("shared.classify").running_mean(draws)
    for s in range(7):
        assert means[:, s] == pytest.approx(draws[:, : s + 1].mean(axis=1))
    in_order = experiment_module("shared.measures").in_order
    found = {"a": 1.0, "b": Estimate(2.0, 9.0), "c": 2.0, "d": 1.5, "e": np.nan}
    assert in_order(found, ["a", "b"]) == 1
    assert in_order(found, ["a", "b", "c", "d"]) == 1  # equals are in no order
    assert in_order(found, ["d", "c"]) == 1
    assert in_order(found, ["a", "e", "b"]) == 0
    assert np.isnan(in_order(found, ["a", "x"]))


def test_accuracy_is_the_share_of_images_on_the_right_side(images, outputs):
    run = SimpleNamespace(target=None, config={"data": {"digits": [1, 7]}})
    pictures, labels = images[1]
    chosen = (labels == 1) | (labels == 7)
    x, sign = pictures[chosen].reshape(-1, 784) / 255, np.where(labels[chosen] == 1, 1, -1)
    theta = np.random.default_rng(3).normal(size=(2, 3, 784))
    theta[1, 2] = 0.0
    found = experiment_module("shared.classify").accuracy(run, theta)
    for c, s in np.ndindex(2, 3):
        margin = sign * (x @ theta[c, s])
        assert found[c, s] == pytest.approx(np.mean((margin > 0) + 0.5 * (margin == 0)))
    assert found[1, 2] == 0.5
