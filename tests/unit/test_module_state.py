"""Any torch module: buffers of each chain, layers of all kinds, starts, and runs that resume to the same bits."""

from __future__ import annotations

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from nets import KEY, M
from torch import nn

import mhrun
from mhrun.data import Dataset
from mhrun.engine.assemble import assembled
from mhrun.engine.execution import module_evaluation
from mhrun.engine.model_checks.properties import check_model
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent
from mhrun.errors import Interrupted, Refusal, UserError
from mhrun.exchanges import MADE
from mhrun.models.module import ModuleModel
from mhrun.monitors.predictive import Predictive
from mhrun.random import Draws, Streams
from mhrun.schedules.fixed import Fixed
from mhrun.store.netcdf import open_trace
from mhrun.target import Target
from mhrun.types import BUFFER

C, SIDE, CLASSES = 3, 6, 3


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(SIDE, 5, num_layers=2, batch_first=True, dropout=0.3)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.out(self.lstm(x.unflatten(1, (SIDE, SIDE)))[0][:, -1])


class Bare(nn.Module):
    """Parameters without a layer, one of them constant; and one that is never used."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(SIDE * SIDE))
        self.shift = nn.Parameter(torch.zeros(SIDE * SIDE))
        self.unused = nn.Parameter(torch.zeros(2))
        self.out = nn.Linear(SIDE * SIDE, CLASSES)

    def forward(self, x):
        return self.out(torch.tanh(self.scale * x + self.shift))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(SIDE * SIDE, SIDE * SIDE)
        self.second = nn.Linear(SIDE * SIDE, SIDE * SIDE)
        self.second.weight = self.first.weight
        self.out = nn.Linear(SIDE * SIDE, CLASSES)

    def forward(self, x):
        return self.out(torch.relu(self.second(torch.relu(self.first(x)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(SIDE, 8))
        self.embed = nn.Linear(SIDE, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.out(self.layer(self.embed(x.unflatten(1, (SIDE, SIDE))) + self.place).mean(1))


def layers(norm):
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)),
        nn.Conv2d(1, 4, 3),
        norm,
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    )


MODULES = {
    "batch norm": lambda: layers(nn.BatchNorm2d(4)),
    "cumulative batch norm": lambda: layers(nn.BatchNorm2d(4, momentum=None)),
    "group norm": lambda: layers(nn.GroupNorm(2, 4)),
    "dropout": lambda: nn.Sequential(nn.Linear(SIDE**2, 7), nn.Dropout(0.5), nn.Linear(7, CLASSES)),
    "lstm": Recurrent,
    "bare": Bare,
    "tied": Tied,
    "attention": Attention,
}
STATEFUL = ("batch norm", "cumulative batch norm")


def made(name, evaluation="bound", **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.manual_seed(0)
        return ModuleModel(MODULES[name](), evaluation=evaluation, **settings)


def own_module(name):
    """The module in training mode, without dropout: what a training loop runs."""
    torch.manual_seed(0)
    module = MODULES[name]()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0
    return module.double()


def batch(rng, chains=C):
    x = torch.from_numpy(rng.normal(size=(chains, M, SIDE**2)))
    return {"x": x, "y": torch.from_numpy(rng.integers(0, CLASSES, (chains, M)))}


# torch's vmap has neither of these.
BY_VMAP = [name for name in MODULES if name not in ("cumulative batch norm", "lstm")]


@pytest.mark.parametrize(
    ("name", "evaluation"), [(n, "bound") for n in MODULES] + [(n, "vmapped") for n in BY_VMAP]
)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_likelihood_gradient_and_buffers_are_the_module_s_own(rng, name, evaluation):
    model, plain = made(name, evaluation), own_module(name)
    theta = model.init(C, Draws(Streams(KEY, C), 0)).double()
    theta += 0.1 * torch.from_numpy(rng.normal(size=theta.shape))
    buffers = model.first_buffers(theta)
    assert bool(buffers) == (name in STATEFUL) == (model.width > model.dim)
    assert len(model.names) == len(set(model.names)) == model.width
    own = [copy.deepcopy(plain) for _ in range(C)]
    for _ in range(2):  # the second minibatch has the statistics that the first one left
        rows = batch(rng)
        log_lik, grad, buffers = model.train(theta, buffers, rows)
        for c in range(C):
            nn.utils.vector_to_parameters(theta[c], own[c].parameters())
            own[c].zero_grad()
            values = -nn.functional.cross_entropy(own[c](rows["x"][c]), rows["y"][c], reduction="none")
            values.mean().backward()
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in own[c].parameters()]
            assert torch.allclose(log_lik[c], values, atol=1e-12)
            assert torch.allclose(grad[c], torch.cat([p.flatten() for p in parts]), atol=1e-12)
            for key, value in buffers.items():
                assert torch.allclose(value[c], own[c].get_buffer(key.removeprefix(BUFFER)), atol=1e-12)
    # In evaluation mode, with the running statistics of each chain.
    flat = [buffers[BUFFER + key].reshape(C, -1).double() for key in model.buffer_names]
    points = torch.cat([theta, *flat], 1)
    predicted, log_lik = model.predict(points, rows), model.log_lik(points, rows)
    for c in range(C):
        outputs = torch.log_softmax(own[c].eval()(rows["x"][c]), -1)
        assert torch.allclose(predicted[c], outputs, atol=1e-9)
        assert torch.allclose(log_lik[c], outputs.gather(1, rows["y"][c][:, None])[:, 0], atol=1e-9)
    for c in range(C):
        plain_again = model.module_at(points[c])(rows["x"][c])
        assert torch.allclose(torch.log_softmax(plain_again, -1), predicted[c], atol=1e-9)
    if not buffers:
        again = model.log_lik_and_grad(theta, rows)
        assert all(torch.equal(a, b) for a, b in zip(again, model.train(theta, {}, rows)[:2], strict=True))


@pytest.mark.parametrize("name", MODULES)
def test_chains_begin_at_distinct_parameters(name):
    model = made(name)
    theta = model.init(2, Draws(Streams(KEY, 2), 0))
    place = {block.name: slice(block.start, block.stop) for block in model.blocks}
    constant = {"2.weight", "2.bias", "layer.norm1.weight", "layer.norm1.bias", "layer.norm2.weight"}
    constant |= {"layer.norm2.bias", "layer.self_attn.in_proj_bias", "layer.self_attn.out_proj.bias"}
    constant = constant if name in (*STATEFUL, "group norm", "attention") else set()
    for block, where in place.items():
        differ = not torch.equal(theta[0, where], theta[1, where])
        assert differ != (block in constant), block
    assert torch.equal(theta, model.init(2, Draws(Streams(KEY, 2), 0)))
    assert torch.equal(theta[:1], model.init(1, Draws(Streams(KEY, 1), 0)))


def test_a_function_makes_the_module_of_each_chain():
    model = ModuleModel(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)))
    theta = model.init(2, Draws(Streams(KEY, 2), 0))
    assert not torch.equal(theta[0], theta[1])
    assert torch.equal(theta, model.init(2, Draws(Streams(KEY, 2), 0)))
    with pytest.raises(Refusal, match="torch module or a function that makes one"):
        ModuleModel(lambda: 3)


@pytest.mark.parametrize(
    ("name", "layer"), [("dropout", "1"), ("lstm", "lstm"), ("attention", "layer.dropout")]
)
def test_dropout_is_off_with_a_warning(name, layer):
    with pytest.warns(UserWarning, match=f"dropout is off in layer .*{layer}"):
        ModuleModel(MODULES[name]())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ModuleModel(MODULES[name]().eval())


def test_a_new_batch_norm_in_evaluation_mode_is_reported():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    with pytest.warns(UserWarning, match="evaluation mode in layer 1 and has seen no data"):
        ModuleModel(copy.deepcopy(net).eval())
    net[2].eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ModuleModel(net)  # which is in training mode
        net(torch.randn(5, 3))
        ModuleModel(net.eval())  # which has seen data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"images": np.ones((4, 3)), "y": np.zeros(4, int)},
            "inputs are the field x, and the data have images, y",
        ),
        (
            {"x": np.ones((4, 3)), "labels": np.zeros(4, int)},
            "class of a datum is the field y, and the data have x, labels",
        ),
    ],
)
def test_fields_of_other_names_are_reported(data, message):
    model = ModuleModel(nn.Linear(3, 2))
    with pytest.raises(UserError, match=message):
        model.log_lik(torch.zeros(1, 8), Dataset.of(data).part(0, 4))


def test_a_module_that_draws_random_numbers_is_reported(rng):
    class Noisy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.randn(len(x), 1)

    model = ModuleModel(Noisy(SIDE**2, CLASSES))
    with pytest.raises(UserError, match="draws random numbers in its forward pass"):
        model.log_lik(model.init(C, Draws(Streams(KEY, C), 0)), batch(rng))


def data(rng, n=60):
    x = torch.from_numpy(rng.normal(size=(n, SIDE**2)).astype(np.float32))
    return Dataset({"x": x, "y": torch.from_numpy(rng.integers(0, CLASSES, n))})


def sghmc(m=8):
    return mhrun.Unadjusted(mhrun.SGHMC(friction=0.1), m=m)


def test_batch_norm_is_refused_in_a_metropolis_hastings_test(rng):
    target = Target(made("batch norm"), data(rng))
    test = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(8), mhrun.Metropolis())
    with pytest.raises(Refusal, match=r"BatchNorm in training mode \(layer 2\).*GroupNorm or FRN"):
        method(target, test, steps=2).check()
    norm = layers(nn.BatchNorm2d(4, track_running_stats=False)).eval()  # always of the minibatch
    with pytest.raises(Refusal, match="GroupNorm or FRN"):
        method(Target(ModuleModel(norm), data(rng)), test, steps=2).check()
    method(Target(ModuleModel(MODULES["batch norm"]().eval()), data(rng)), test, steps=2).check()
    with pytest.raises(Refusal, match="need minibatches; set m"):
        method(target, sghmc(m=None), steps=2).check()


class Counting(nn.Linear):
    """A layer of the user's with a constant buffer, or with one that it changes."""

    def __init__(self, changes):
        super().__init__(SIDE**2, CLASSES)
        self.changes = changes
        self.register_buffer("scale", torch.ones(CLASSES))

    def forward(self, x):
        if self.training and self.changes:
            self.scale = 0.9 * self.scale + 0.1 * x.std()
        return super().forward(x) * self.scale


def test_a_test_takes_constant_buffers_and_no_others(rng):
    kernel = mhrun.MetropolisHastings(mhrun.LangevinProposal(), mhrun.Shared(8), mhrun.Metropolis())
    for changes in (False, True):
        target = Target(ModuleModel(Counting(changes)), data(rng))
        of = method(target, kernel, steps=2)
        of.check()
        if changes:
            with pytest.raises(Refusal, match="changes its buffer scale in training mode"):
                of.check_data()
        else:
            of.check_data()
            found = target.points(of.first_state())
            assert torch.equal(found[:, -CLASSES:], torch.ones(C, CLASSES))
        dynamics = method(target, sghmc(), steps=2)
        dynamics.check_data()
        with torch.no_grad():
            draws = Draws(Streams(KEY, C), 1)
            controls = mhrun.types.Controls(*[torch.full((C,), 1e-3)] * 3)
            after, _ = sghmc().step(target, dynamics.first_state(), controls, draws)
        assert torch.equal(after.aux[BUFFER + "scale"], torch.ones(C, CLASSES)) != changes


def method(target, kernel, steps, chains=C, monitor=None):
    schedules = {
        "step_size": Fixed(step_size=1e-3),
        "temperature": Fixed(temperature=[1.0, 2.0, 4.0] if chains == C else 1.0),
    }
    counts = {"chains": chains, "warmup": 0, "steps": steps, "thin": 1, "thin_stats": None, "seed": 3}
    return assembled(
        "sample", kernel, target, schedules, counts, dtype=torch.float32, starts=None, monitor=monitor
    )


def ladder():
    exchange = (mhrun.Full(), mhrun.Metropolis())
    return mhrun.ReplicaExchange(sghmc(), *exchange, rungs=3, every=1)


@pytest.mark.long
@pytest.mark.parametrize(("name", "kernel"), [(n, sghmc) for n in MODULES] + [("batch norm", ladder)])
def test_an_interrupted_run_goes_on_to_the_same_bits(rng, tmp_path, name, kernel):
    rows = data(rng)
    test = Dataset({key: field[:20] for key, field in rows.fields.items()})

    def run(folder, stop):
        target = Target(made(name), rows)
        of = method(target, kernel(), steps=8, monitor=Predictive(test, 4, collect=2))
        folder.mkdir(exist_ok=True)
        run_method(of, folder, Settings(executor="torch", block_seconds=0), Silent(), stop, {})

    stops = iter([False, True])
    with pytest.raises(Interrupted):
        run(tmp_path / "cut", lambda: next(stops))
    run(tmp_path / "cut", lambda: False)
    run(tmp_path / "whole", lambda: False)
    with open_trace(tmp_path / "cut") as one, open_trace(tmp_path / "whole") as two:
        assert one["posterior"]["theta"].shape == (C, 8, made(name).width)
        assert np.array_equal(one["posterior"]["theta"].values, two["posterior"]["theta"].values)
        for metric in ("error", "nll", "nll_of_ensemble"):
            assert np.array_equal(one["monitor"][metric].values, two["monitor"][metric].values)


def test_buffers_follow_theta_through_an_exchange(rng):
    target = Target(made("batch norm"), data(rng))
    kernel = ladder()
    draws = Draws(Streams(KEY, C), 0)
    state = kernel.start(target, target.model.init(C, draws), draws)
    controls = mhrun.types.Controls(
        *(torch.tensor(v) for v in ([1e-3] * 3, [1.0, 1.1, 1.2], [1.0, 1.1, 1.2]))
    )
    made_one = 0
    for step in range(1, 30):
        draws = Draws(Streams(KEY, C), step)
        with torch.no_grad():
            moved, _ = kernel.kernel.step(target, state, controls, draws)
            swapped, outcome, _, _ = kernel.exchange(target, moved, controls.temperature, draws)
        points, after = target.points(moved), target.points(swapped)
        for c in range(C):
            assert sum(torch.equal(after[c], points[k]) for k in range(C)) == 1
        assert torch.equal(swapped.aux["momentum"], moved.aux["momentum"])
        made_one += int((outcome == MADE).any())
        state = swapped
    assert made_one > 3


def test_a_stopped_chain_keeps_its_buffers(rng):
    target = Target(made("batch norm"), data(rng))
    kernel = sghmc()
    draws = Draws(Streams(KEY, 2), 0)
    theta = target.model.init(2, draws)
    state = kernel.start(target, theta, draws)
    sizes = torch.tensor([1e-3, torch.inf])
    controls = mhrun.types.Controls(sizes, torch.ones(2), torch.ones(2))
    with torch.no_grad():
        after, info = kernel.step(target, state, controls, Draws(Streams(KEY, 2), 1))
    assert info.diverging.tolist() == [False, True]
    for name, value in after.aux.items():
        if name.startswith(BUFFER):
            assert torch.equal(value[1], state.aux[name][1])
            assert not torch.equal(value[0], state.aux[name][0])


def test_parts_of_a_pass_are_cut_by_activations():
    """A convolution keeps far more values for its gradient than a datum has."""
    model = ModuleModel(
        nn.Sequential(
            nn.Unflatten(1, (1, 16, 16)),
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8192, 2),
        )
    )
    rows = {"x": torch.zeros(1, 2, 256), "y": torch.zeros(1, 2, dtype=torch.int64)}
    found = model.values_per_datum(rows)
    assert 2 * 8192 <= found <= 4 * 8192


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("name", "chains", "found"),
    [("lstm", 3, "bound"), pytest.param("dropout", 200, "vmapped", marks=pytest.mark.slow)],
)
def test_the_mode_of_evaluation_is_measured_and_stored(rng, tmp_path, monkeypatch, name, chains, found):
    """A resumed run keeps its mode of evaluation, whatever a new measurement would find."""
    monkeypatch.setattr(module_evaluation, "compiling_pays", lambda method: True)
    monkeypatch.setattr(module_evaluation, "kept", lambda kind, name, state, make: make())  # no cache
    target = Target(made(name, "auto"), data(rng))

    def plan():
        return json.loads((tmp_path / "executor.json").read_text())["evaluation"]

    of = method(target, sghmc(), steps=40, chains=chains)
    with pytest.raises(Interrupted):  # after the first stretch of 16 steps, however fast they are
        run_method(of, tmp_path, Settings(block_seconds=0), Silent(), lambda: True, {})
    assert plan() == found
    other = {"bound": "vmapped", "vmapped": "bound"}[found]
    record = json.loads((tmp_path / "executor.json").read_text())
    (tmp_path / "executor.json").write_text(json.dumps(record | {"evaluation": other}))
    if name != "lstm":
        run_method(of, tmp_path, Settings(block_seconds=0), Silent(), lambda: False, {})
        assert plan() == other


def test_a_slow_first_gradient_does_not_end_the_measurement(monkeypatch):
    """The first one of a process imports a second's worth of torch, and a replay begins after some twenty."""
    model, calls = made("lstm", "auto"), []

    def timed(model, theta, rows):
        calls.append(len(calls))
        return 1.1 if len(calls) == 1 else 0.002 if len(calls) < 25 else 0.0002

    monkeypatch.setattr(module_evaluation, "_timed", timed)
    assert module_evaluation._best(model, torch.zeros(1), {}) == 0.0002


@pytest.mark.parametrize("learns", [False, True])
def test_buffers_that_no_minibatch_changes_are_warned_of(learns, recwarn):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            if learns and self.training:
                self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            return self.layer(x - self.mean)

    data = {"x": torch.ones(8, 3), "y": torch.zeros(8, dtype=torch.long)}
    for module, warns in ((Centred(), not learns), (Centred().eval(), False)):
        target = Target(mhrun.ModuleModel(module), mhrun.Dataset.of(data))
        recwarn.clear()
        check_model(target, target.model.init(1, Draws(Streams(1, 1), 0)))
        assert any("changes the buffer mean" in str(one.message) for one in recwarn) == warns
