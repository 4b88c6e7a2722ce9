"""Every file in conf/ composes and builds; every part goes with every partner it does not refuse."""

from __future__ import annotations

import pytest
import torch
import yaml
from configured import filled, part, parts
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from mhrun.build import build, trusted_object
from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.composition import composed
from mhrun.cli.configuration.resolvers import register_resolvers
from mhrun.cli.places import experiments
from mhrun.data.mixture import MixtureSample
from mhrun.engine.assemble import methods_of
from mhrun.errors import UserError
from mhrun.kernels import MetropolisHastings, Unadjusted
from mhrun.kernels.stationary import samples
from mhrun.models.tied_means import TiedMeans
from mhrun.paths import CONF
from mhrun.random import Draws, Streams, derive_key
from mhrun.report.claims.judge import judge_all
from mhrun.report.declared import experiment_function
from mhrun.target import Target
from mhrun.types import INFO_DEFAULTS, Controls


@pytest.fixture(scope="module")
def target():
    return Target(TiedMeans(), MixtureSample(200, (0.0, 1.0), 2.0))


@pytest.mark.parametrize("rule", parts("rule"))
@pytest.mark.parametrize("pairing", parts("pairing"))
@pytest.mark.parametrize("proposal", parts("proposal"))
def test_proposals_pairings_and_rules_go_together(target, proposal, pairing, rule):
    check(
        MetropolisHastings(part("proposal", proposal), part("pairing", pairing), part("rule", rule)), target
    )


@pytest.mark.parametrize("prior", parts("prior"))
def test_priors(target, prior):
    refused = Unadjusted(part("dynamics", "sgld"), 7, prior=part("prior", prior)).refuses(target)
    assert "a model with blocks" in refused


@pytest.mark.parametrize("dynamics", parts("dynamics"))
def test_dynamics(target, dynamics):
    check(Unadjusted(part("dynamics", dynamics), 7), target)


def check(kernel, target):
    """Shapes and kinds; the order of the chains does not matter; nothing given is written to."""
    if (reason := kernel.refuses(target)) is not None:
        pytest.skip(reason)
    chains = 5
    draws = Draws(Streams(derive_key(0, "contract"), chains), 0)
    theta = target.model.init(chains, draws)
    before = theta.clone()
    state = kernel.start(target, theta, draws)
    control = Controls(
        torch.full((chains,), 1e-3, dtype=torch.float64),
        torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64),
        torch.ones(chains, dtype=torch.float64),
    )
    draws.step = 1
    after, info = kernel.step(target, state, control, draws)
    assert torch.equal(theta, before)
    assert after.evaluation.theta.shape == (chains, 2)
    for name, value in info._asdict().items():
        if value is None and name in INFO_DEFAULTS:
            continue
        assert value.shape == (chains,), name
    assert info.accepted.dtype == torch.bool
    evaluated = info.n_lik + info.n_grad
    if isinstance(kernel, MetropolisHastings) and kernel.rule.exact:  # which may read no data
        assert ((evaluated >= info.batch_size) & ((evaluated > 0) == (info.batch_size > 0))).all()
    else:
        assert (evaluated > 0).all()
    assert set(after.aux) == set(state.aux)


@pytest.mark.parametrize("schedule", parts("schedule"))
def test_schedules(schedule):
    made = part("schedule", schedule).bind(200, 400)
    memory = made.start(3)
    values = made.values(memory, 1, 2)
    assert set(values) == set(made.quantities)
    for value in values.values():
        assert value.expand(2, 3).dtype == torch.float64


def _unresolved(overrides):
    return OmegaConf.to_container(composed(overrides))


def expands(name):
    """Return whether a method needs a model that bounds its terms, as the mixture's does not."""
    text = (CONF / "method" / f"{name}.yaml").read_text()
    return "surrogate" in text or "- smh2" in text


def few_at_a_time(names, count=9):
    """Return the names in groups: putting an experiment together takes a second, however many methods it has."""
    return [names[k : k + count] for k in range(0, len(names), count)]


@pytest.mark.parametrize(
    ("base", "names"),
    [
        *(("gmm_tied_means", few) for few in few_at_a_time([n for n in parts("method") if not expands(n)])),
        *(("mnist_tests", few) for few in few_at_a_time([n for n in parts("method") if expands(n)])),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_methods_can_be_added_to_an_experiment(base, names):
    overrides = [
        f"experiment={base}",
        "scale=smoke",
        *(f"+method@methods.added_{name}={name}" for name in names),
    ]
    # That methods refer to
    overrides += ["++step_size=1e-7", "++epoch=5", "++rungs=2", "++ratio=2", "++every=5", "++c=0.1"]
    methods = _unresolved(overrides)["methods"]
    for name in names:
        place, schedules = f"methods.added_{name}", methods[f"added_{name}"]["schedules"]
        for schedule, node in schedules.items():
            overrides += filled(f"{place}.schedules.{schedule}", node, 5)
        if any("cycles" in node for node in schedules.values()):  # which all are to come after burn-in
            overrides.append(f"+{place}.warmup=0")
        if base == "mnist_tests":  # which has no burn-in
            overrides.append(f"+{place}.warmup=1000")
        if name.endswith("_density"):  # made for what has no data: one datum of many has no variance
            overrides.append(f"{place}.kernel.pairing.m=20")
    built = methods_of(compose_config(overrides, compare=False))
    assert [method.name for method in built[-len(names) :]] == [f"added_{name}" for name in names]


# The scales of an experiment follow each other: they have the files in common, which are put together once.
@pytest.mark.parametrize(
    "scale",
    [
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("smoke", "quick")),
        pytest.param("paper", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", experiments())
def test_experiments_compose_build_and_have_their_report(name, scale, capsys):
    overrides = [f"experiment={name}", f"scale={scale}"]
    config = compose_config(overrides, compare=False, check=True)
    assert not capsys.readouterr().err  # which names settings that nothing reads
    assert config["experiment"] == name
    assert len(methods_of(config)) == len(config["methods"])
    report = config["report"]
    shown = [path for group in ("tables", "figures") for path in report.get(group, {}).values()]
    for path in filter(None, (report.get("metrics"), report.get("notes", report.get("sweep_notes")), *shown)):
        module, _, function = path.rpartition(".")
        assert callable(experiment_function(module, function))
        if path in shown:
            assert experiment_function(module, function).__doc__
    claims = judge_all(config, {})
    assert claims or "paper" not in report or "sweep_metrics" in report  # whose claims are of the sweep
    assert len({claim.id for claim in claims}) == len(claims)


def test_scales_change_counts_only():
    kept = []
    for scale in ("smoke", "quick", "paper"):
        config = compose_config(
            ["experiment=gmm_tied_means", f"scale={scale}", "data.n=10000"], compare=False
        )
        text = yaml.safe_dump({key: config[key] for key in ("methods", "model", "target", "lam", "tau")})
        counts = {str(config[key]) for key in ("steps", "warmup")} | {str(config["steps"] + config["warmup"])}
        kept.append("\n".join(line for line in text.splitlines() if line.split(": ")[-1] not in counts))
    assert kept[0] == kept[1] == kept[2]


def departures_of(*overrides):
    return compose_config(["experiment=gmm_tied_means", "scale=paper", *overrides])["runtime"]["departures"]


def test_what_differs_from_the_paper_is_recorded():
    assert departures_of() == []
    assert departures_of("seed=3", "executor=torch", "data.storage=file", "~methods.sgld") == []
    assert departures_of("+method@methods.more=mint") == []
    assert "m = 2000 (paper: 1000)" in departures_of("m=2000")
    assert departures_of("rule@methods.mint.kernel.rule=barker") != []
    assert departures_of("methods.mint.kernel.pairing.m=10") == [
        "methods.mint.kernel.pairing.m = 10 (paper: 1000)"
    ]
    for override in ("steps=100", "warmup=100", "chains=2", "temperature=5", "target.replacement=true",
                 "model.variance=7", "dtype=float32", "thin=2"):  # fmt: skip
        assert departures_of(override), override
    assert departures_of("scale=quick")[0] == "scale = quick"


# --- Only trusted names are built -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hostile",
    [
        "os.system",
        "subprocess.run",
        "builtins.eval",
        "mhrun.paths.os.system",
        "mhrun.store.folder.yaml.unsafe_load",
        "mhrun.paths.importlib",
        "mhrun.build.importlib.import_module",
        "mhrun.store.files._plain",
        "mhrun.store.files.write_text",
        "mhrun.cli.main.run",  # which would trust whom its arguments say
        "mhrun.__main__.main",  # which would run as it is imported
        "mhrun.engine.call.sample.sample",
        "mhrun.data.files.ensure",
        "mhrun.data.files.Path",
        "mhrun.models.module.functional_call",
        "mhrunx.evil",
        "mhrun",
        "mhrun.errors.__class__",
        "../evil",
        "",
    ],
)
def test_hostile_targets_are_refused(hostile):
    with pytest.raises(UserError):
        build({"_target_": hostile, "command": "true"})


def test_a_trusted_package_of_the_users_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "mymodels.py").write_text("class Mine:\n    def __init__(self, a=1):\n        self.a = a\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="trusted"):
        build({"_target_": "mymodels.Mine"})
    monkeypatch.setenv("MHRUN_TRUST", "other, mymodels")
    assert build({"_target_": "mymodels.Mine", "a": 3}).a == 3


def test_arguments_are_checked_by_name():
    with pytest.raises(UserError, match=r"takes no 'variace'.*Did you mean 'variance'"):
        build({"_target_": "mhrun.models.tied_means.TiedMeans", "variace": 1}, where="model")
    with pytest.raises(UserError, match="needs m"):
        build({"_target_": "mhrun.pairing.shared.Shared"})
    with pytest.raises(UserError, match="Did you mean 'TiedMeans'"):
        trusted_object("mhrun.models.tied_means.TiedMean")
    with pytest.raises(UserError, match="there is no"):
        trusted_object("mhrun.nothing.Here")


def test_overrides_without_a_meaning(outputs):
    with pytest.raises(UserError, match="list of points"):
        methods_of(
            compose_config(["experiment=gmm_tied_means", "scale=smoke", "methods.sgld.starts=[[1,2,3]]"])
        )


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("mint_stored", ("stored", True, True)),
        ("mint", (None, None, True)),
        ("mcmc", ("tempered", None, False)),
    ],
)
def test_what_a_method_samples_is_known_by_its_parts(method, expected):
    config = compose_config(["experiment=gmm_tied_means", "scale=smoke"], compare=False)
    found = next(each for each in methods_of(config) if each.name == method)
    known = samples(found.kernel, found.plan)
    assert (known.distribution, known.tempered) == expected[::2]
    assert known.m == (config["methods"][method]["kernel"]["pairing"]["m"] if expected[1] else None)
    value = config["methods"][method]["schedules"].get("temperature", {}).get("temperature", 1.0)
    assert known.temperature == value


def test_a_part_of_a_methods_name_selects_its_data():
    register_resolvers()
    text = """
    sizes: {heart: 3, german: 4}
    methods:
      sgld_heart: &sgld {kernel: {m: "${sizes.${name_part:-1}}", of: "${name_part:0}"}}
      sgld_german: *sgld
    alone: ${name_part:0}
    """
    config = OmegaConf.create(yaml.safe_load(text))
    found = OmegaConf.to_container(config["methods"], resolve=True)
    assert found == {
        "sgld_heart": {"kernel": {"m": 3, "of": "sgld"}},
        "sgld_german": {"kernel": {"m": 4, "of": "sgld"}},
    }
    with pytest.raises(InterpolationResolutionError, match="name_part is for the settings of a method"):
        _ = config["alone"]
