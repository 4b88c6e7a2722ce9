"""Number formats: gradients in bfloat16 or TF32, acceptance ratios in float32, and flags as they were."""

from __future__ import annotations

from types import SimpleNamespace

import digits
import numpy as np
import pytest
import torch
from kit import config, short_run
from torch import nn

import mhrun
from mhrun.cli.configuration.compose import compose_config
from mhrun.data import Dataset
from mhrun.engine.assemble import assembled
from mhrun.engine.experiment import run_experiment
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, UserError
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron
from mhrun.random import Draws, Streams
from mhrun.report.build import build_report
from mhrun.report.page import arithmetic_of_methods
from mhrun.store.identity import digest, method_digest
from mhrun.store.netcdf import open_trace
from mhrun.target import Target
from mhrun.target.precision import exact_products, lowered

N, M, C, SIDE, CLASSES = 400, 16, 2, 8, 3
CUDA = torch.device("cuda")


def fields():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 1, SIDE, SIDE, generator=generator)
    return {"x": x, "y": torch.randint(0, CLASSES, (N,), generator=generator)}


def network(evaluation="bound", norm=nn.GroupNorm):
    layer = nn.GroupNorm(2, 4) if norm is nn.GroupNorm else nn.BatchNorm2d(4)
    parts = (nn.Conv2d(1, 4, 3), layer, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES))
    return ModuleModel(nn.Sequential(*parts), prior_variance=1.0, evaluation=evaluation)


def target(precision="fp32", model=None):
    return Target(model or network(), Dataset.of(fields()), precision=precision)


def point(where):
    theta = where.model.init(C, Draws(Streams(3, C), 0)).float()
    return theta, torch.arange(M).expand(C, M)


def rms(value):
    return float(value.square().mean().sqrt())


@pytest.mark.parametrize(
    ("evaluation", "norm"),
    [("bound", nn.GroupNorm), ("vmapped", nn.GroupNorm), ("bound", nn.BatchNorm2d)],
)
def test_gradients_in_bf16_are_those_in_fp32_to_a_hundredth(evaluation, norm):
    """The parameters, the gradient and the buffers stay in float32."""
    found, temperature = [], torch.ones(C)
    for precision in ("fp32", "bf16"):
        where = target(precision, network(evaluation, norm))
        theta, index = point(where)
        if where.has_buffers:
            grad, log_lik, buffers = where.gradients.train(
                theta, index, temperature, where.first_buffers(theta)
            )
            assert {b.dtype for b in buffers.values() if b.is_floating_point()} == {torch.float32}
        else:
            log_lik, grad = where.gradients.log_lik_and_reduced(theta, index, temperature)
        assert (log_lik.dtype, grad.dtype) == (torch.float32, torch.float32)
        found.append(grad)
    plain, low = found
    assert not torch.equal(plain, low)
    assert 1e-5 < rms(low - plain) / rms(plain) < 1e-2


def test_each_chain_of_a_bound_module_has_its_own_weights_in_bf16():
    """A cache of converted weights would give every chain those of the first."""
    where = target("bf16")
    theta, index = point(where)
    both = where.gradients.reduced(theta, index, torch.ones(C))
    second = where.gradients.reduced(theta[1:], index[1:], torch.ones(1))
    assert torch.equal(both[1:], second)


KERNELS = {
    "random walk": lambda: mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(M), mhrun.Metropolis()),
    "Langevin, shared": lambda: mhrun.MetropolisHastings(
        mhrun.ReversibleLangevinProposal(), mhrun.Shared(M), mhrun.Metropolis()
    ),
    "Langevin, full": lambda: mhrun.MetropolisHastings(
        mhrun.ReversibleLangevinProposal(), mhrun.Full(), mhrun.Metropolis()
    ),
}


def method(kernel, precision, temperature, dtype=torch.float32, model=None):
    counts = {"chains": C, "warmup": 0, "steps": 40, "thin": 1, "thin_stats": None, "seed": 1}
    schedules = {"all": mhrun.Fixed(step_size=1e-6, temperature=temperature)}
    where = target(precision, model)
    return assembled("one", kernel, where, schedules, counts, dtype=dtype, starts=None, monitor=None)


def log_lik_difference(one):
    """Return the mean log-likelihood difference of a contest between two fixed points."""
    theta, _ = point(one.target)
    kernel, draws = one.kernel, Draws(one.streams(), 1)
    controls = one.plan.controls(one.plan.start(), 1, 1).each(lambda c: c[0].float())
    temperature = controls.temperature if kernel.proposal.gradients else None
    with torch.no_grad():
        origin = kernel.pairing.current(
            one.target, kernel.start(one.target, theta, draws).evaluation, draws, temperature
        )
        _, contest = kernel.contest(one.target, origin, theta + 0.01, controls, draws)
    return contest.difference.mean


@pytest.mark.parametrize("name", KERNELS)
def test_the_ratio_of_a_test_is_that_of_fp32(name):
    """n/T = 400."""
    plain, low = (log_lik_difference(method(KERNELS[name](), p, 1.0)) for p in ("fp32", "bf16"))
    assert torch.equal(plain, low)
    one = method(KERNELS[name](), "bf16", 1.0)
    assert one.target.precision.ratio == "fp32"
    assert (
        one.arithmetic == "state in float32, gradients in bfloat16, acceptance ratios in float32 without TF32"
    )


def test_a_small_scale_takes_the_ratio_from_the_pass_of_the_gradient():
    """n/T = 100: both points in bfloat16; where no pass has both, or n/T is larger, the ratio stays in float32."""
    name = "Langevin, shared"
    one = method(KERNELS[name](), "bf16", 4.0)
    assert one.target.precision.ratio == "bf16"
    assert "acceptance ratios in bfloat16" in one.arithmetic
    plain = log_lik_difference(method(KERNELS[name](), "fp32", 4.0))
    low = log_lik_difference(one)
    assert not torch.equal(plain, low)
    assert float((plain - low).abs().max()) < 1e-2
    assert method(KERNELS[name](), "bf16", [4.0, 3.99]).target.precision.ratio == "fp32"
    for other in ("random walk", "Langevin, full"):
        assert method(KERNELS[other](), "bf16", 4.0).target.precision.ratio == "fp32"


def test_the_two_targets_of_a_precision_share_their_data():
    where = target("bf16")
    assert where.with_ratio_in("bf16").data is where.data


FLAGS = ((torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32"),
         (torch.backends.cudnn, "deterministic"), (torch.backends.cudnn, "benchmark"))  # fmt: skip


def flags():
    return [getattr(*flag) for flag in FLAGS]


@pytest.fixture
def odd_flags():
    """Set each flag as a test can tell it, and restore it."""
    before = flags()
    for flag, value in zip(FLAGS, (False, True, False, True), strict=True):
        setattr(*flag, value)
    yield
    for flag, value in zip(FLAGS, before, strict=True):
        setattr(*flag, value)


@pytest.mark.usefixtures("odd_flags")
def test_flags_are_set_and_restored_after_errors():
    during = []

    def fail():
        with exact_products(CUDA, deterministic=True):
            during.append(flags())
            with lowered("tf32", CUDA):
                during.append(flags())
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during == [[False, False, True, False], [True, True, True, False]]
    assert flags() == [False, True, False, True]
    with exact_products(CUDA, deterministic=False):
        assert flags() == [False, False, False, True]
        with lowered("tf32", CUDA):
            assert flags() == [True, True, False, True]
        assert flags() == [False, False, False, True]


def test_an_error_of_a_module_leaves_no_autocast(monkeypatch):
    where = target("bf16")
    theta, index = point(where)
    monkeypatch.setattr(
        where.model._memo.evaluators.bound, "_likelihood", lambda outputs, rows: outputs / {}["missing"]
    )
    with pytest.raises(UserError):
        where.gradients.reduced(theta, index, torch.ones(C))
    assert not torch.is_autocast_enabled("cpu")


def test_a_step_needs_deterministic_products_where_it_has_a_ratio():
    dynamics = mhrun.Unadjusted(mhrun.SGLD(), M)
    ladder = mhrun.ReplicaExchange(dynamics, mhrun.Full(), mhrun.Metropolis(), 2)
    kernels = {dynamics: 1.0, KERNELS["random walk"](): 1.0, ladder: [1.0, 2.0] * (C // 2)}
    found = [method(kernel, "bf16", temperature).has_ratio for kernel, temperature in kernels.items()]
    assert found == [False, True, True]
    assert method(dynamics, "bf16", 1.0).arithmetic == "state in float32, gradients in bfloat16"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "bf61"}, "precision = 'bf61' is unknown; choose fp32, tf32, bf16. Did you mean 'bf16'"),
        ({"precision": None}, "precision = None is unknown"),
        ({"precision": "tf32"}, "a format of NVIDIA GPUs; on a CPU choose fp32 or bf16"),
        ({"precision": "bf16", "model": Perceptron([SIDE**2, CLASSES])}, "Perceptron computes its gradient itself"),
        ({"precision": "bf16", "dtype": torch.float64}, "choose dtype=float32, or precision=fp32"),
        ({"precision": "bf16", "surrogate": "taylor1"}, "more than the remainders of a surrogate"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(settings, message):
    given = {"model": network(), "dtype": torch.float32} | settings
    flat = {"x": fields()["x"].flatten(1), "y": fields()["y"]}
    data = flat if isinstance(given["model"], Perceptron) else fields()
    kernel = mhrun.Unadjusted(mhrun.SGLD(), M)
    with pytest.raises(UserError) as error:
        mhrun.sample(data=data, kernel=kernel, step_size=1e-6, steps=2, warmup=0, **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# --- runs ---------------------------------------------------------------------------------------------------


def sampled(folder, precision="bf16", steps=40, **more):
    return mhrun.sample(
        network(), fields(), mhrun.Unadjusted(mhrun.SGHMC(), M), step_size=1e-6, steps=steps, warmup=0,
        chains=C, dtype=torch.float32, precision=precision, folder=folder, **more,
    )  # fmt: skip


@short_run
def test_a_trace_records_its_precision_and_another_precision_is_another_call(tmp_path):
    low = sampled(tmp_path / "low")
    plain = sampled(tmp_path / "plain", "fp32")
    assert low.attrs["arithmetic"] == "state in float32, gradients in bfloat16"
    assert "arithmetic" not in plain.attrs
    assert not np.array_equal(low.posterior.theta, plain.posterior.theta)
    with pytest.raises(UserError, match="another call"):
        sampled(tmp_path / "low", "fp32")


def test_a_run_in_another_precision_is_another_run(tmp_path):
    plain, low = config(tmp_path), config(tmp_path, "precision=bf16")
    assert digest(plain) != digest(low)
    assert method_digest(plain, "mint") != method_digest(low, "mint")


def test_an_interrupted_run_in_bf16_goes_on_to_the_same_bits(tmp_path):
    one = method(mhrun.Unadjusted(mhrun.SGHMC(), M), "bf16", 1.0)
    settings = Settings(executor="torch", block_seconds=0)
    with pytest.raises(Interrupted):
        run_method(one, tmp_path / "cut", settings, Silent(), lambda: True, {})
    for folder in ("cut", "whole"):
        again = method(mhrun.Unadjusted(mhrun.SGHMC(), M), "bf16", 1.0)
        run_method(again, tmp_path / folder, settings, Silent(), lambda: False, {})
    with open_trace(tmp_path / "cut") as cut, open_trace(tmp_path / "whole") as whole:
        assert np.array_equal(cut.posterior.theta, whole.posterior.theta)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("unrendered")
def test_summary_and_report_of_a_run_in_bf16_name_the_precision(tmp_path, monkeypatch):
    digits.install_colours(monkeypatch)
    words = ["experiment=cifar_cycles", "scale=smoke", "data.n=60", "m=20", "monitor.data.n=20"]
    words += ["scales.smoke.length.part=2", "explore=0.6", "precision=bf16", f"runtime.outputs={tmp_path}"]
    others = (
        "sgd",
        "sgd_momentum",
        "snapshot_sgd_momentum",
        "sgld",
        "csgld",
        "sghmc",
        "sgld_half",
        "sghmc_half",
    )
    words += [f"~methods.{name}" for name in (*others, "snapshot_sgd")]
    folder = run_experiment(compose_config(words), Silent())
    arithmetic = "state in float32, gradients in bfloat16"
    assert [about["arithmetic"] for about in folder.summary()["methods"].values()] == [arithmetic]
    page = build_report(folder).page.read_text()
    assert f"Numbers: {arithmetic}." in page


def test_a_page_lists_the_number_formats_of_its_methods():
    methods = {name: {"arithmetic": words} for name, words in (("a", "one"), ("b", "two"), ("c", "one"))}
    labels = SimpleNamespace(methods=methods, label=str.upper)
    assert arithmetic_of_methods(labels) == "one (A, C); two (B)"
    assert arithmetic_of_methods(SimpleNamespace(methods={}, label=str.upper)) == ""


@pytest.mark.parametrize("variance", [1.0, 0.1])
@pytest.mark.parametrize("kind", ["perceptron", "module", "module, a variance for each block"])
def test_the_prior_of_a_large_network_in_float32_is_summed_in_float64(kind, variance):
    """Acceptance ratios have a difference of two log-priors of size D / 2: in float32 it was off by 0.03."""
    layers = (784, 120, 10)
    model = Perceptron(layers, prior_variance=variance)
    if kind != "perceptron":
        net = nn.Sequential(nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 10))
        blocks = {"0.weight": variance, "*": 1.0}
        model = ModuleModel(net, "categorical", variance if kind == "module" else blocks)
    theta = model.init(3, Draws(Streams(5, 3), 0)).float()
    to = theta + 1e-4 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(1))
    change = model.log_prior(to) - model.log_prior(theta)
    exact = model.log_prior(to.double()) - model.log_prior(theta.double())
    assert (change - exact).abs().max() < 1e-5
    again = theta.clone().requires_grad_()  # where torch sums
    assert (model.log_prior(again) - model.log_prior(theta.double())).abs().max() < 1e-3
