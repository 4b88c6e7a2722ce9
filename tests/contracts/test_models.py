"""Every model in conf/model keeps its contract; the tied means keep their formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from reference import tied_log_lik, tied_log_prior

from mhrun.build import build
from mhrun.data import Dataset
from mhrun.data.mixture import MixtureSample
from mhrun.errors import Refusal, UserError
from mhrun.models.compressed import compress
from mhrun.models.function import FunctionModel
from mhrun.models.tied_means import TiedMeans
from mhrun.native import philox as pieces
from mhrun.paths import CONF
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target
from mhrun.target.fields import unfit
from mhrun.types.capabilities import declared_fields

MODELS = [path for path in sorted(CONF.glob("model/*.yaml")) if "???" not in path.read_text()]


def scalars(rng, dim):
    return {"x": rng.normal(0.5, 1.5, 3000).astype(np.float32)}


def labelled_rows(rng, dim):
    # float64, so that sums in another order agree to the digits that the tests ask for.
    return {"x": rng.random((300, dim)), "y": rng.choice([-1, 1], 300)}


def classes(rng, dim):
    return {"x": rng.integers(0, 256, (40, 784), dtype=np.uint8), "y": rng.integers(0, 10, 40)}


def counted_rows(rng, dim):
    return {"x": rng.normal(0, 0.5, (300, dim)), "y": rng.poisson(2.0, 300)}


def rows_of_three_classes(rng, dim):
    return {"x": rng.normal(size=(300, dim // 3)), "y": rng.integers(0, 3, 300)}


def nothing(rng, dim):
    return {"x": np.zeros((60, 1))}


def colours(rng, dim):
    return {"x": rng.integers(0, 256, (40, 3, 32, 32), dtype=np.uint8), "y": rng.integers(0, 10, 40)}


# A model is tried on the first kind of data that it can read.
KINDS = (scalars, labelled_rows, counted_rows, rows_of_three_classes, classes, colours, nothing)

# Regressions are given a size, which is otherwise that of their data, and networks are small. BatchNorm has another
# likelihood in training mode, on purpose: see test_module_state.
SMALL = {
    "logistic": {"dim": 784},
    "poisson_regression": {"dim": 10},
    "binomial_regression": {"dim": 10},
    "robust_regression": {"dim": 10},
    "softmax_regression": {"features": 10, "classes": 3},
    "convolutional": {"widths": [4, 8], "dense": 8},
    "recurrent": {"hidden": 6, "dense": 5},
    "residual": {"blocks": [1, 1], "widths": [4, 8], "norm": "group"},
}


# Of a field that a model declares, by what its values must be.
VALUES = {
    "": lambda rng, field, shape: rng.normal(size=shape),
    "signs": lambda rng, field, shape: rng.choice([-1, 1], shape),
    "classes": lambda rng, field, shape: rng.integers(0, field.classes, shape),
    "counts": lambda rng, field, shape: rng.poisson(2.0, shape),
    "positive": lambda rng, field, shape: rng.exponential(size=shape),
    "zeros": lambda rng, field, shape: np.zeros(shape),
}


def declared(model, rng):
    """Return data of the fields that a model declares, empty if it does not."""
    fields = declared_fields(model)
    if any(field.row is None for field in fields.values()):
        return {}
    found = {name: VALUES[field.values](rng, field, (300, *field.row)) for name, field in fields.items()}
    for name, field in fields.items():
        if field.at_most:
            found[name] = np.minimum(found[name], found[field.at_most])
    return found


def readable(model, theta, rng):
    kinds = [kind(rng, model.dim) for kind in KINDS]
    for fields in filter(None, [*kinds, declared(model, rng)]):
        data = Dataset.of(fields, pixels=True)
        if unfit(model, data) is not None:
            continue
        try:
            if model.log_lik(theta, data.part(0, 2)).shape == (len(theta), 2):
                return data
        except (UserError, KeyError, RuntimeError):
            continue
    raise AssertionError(
        "the model can read no kind of data there is here: give it `fields`, or add a kind to KINDS"
    )


@pytest.fixture(params=MODELS, ids=lambda path: path.stem)
def case(request, rng):
    settings = yaml.safe_load(request.param.read_text())
    model = build(settings | SMALL.get(request.param.stem, {}))
    draws = Draws(Streams(derive_key(0, "start"), 6), 0)
    start = model.init(6, draws)
    data = readable(model, start, rng)
    theta = start + torch.from_numpy(rng.normal(0, 0.7, start.shape))
    return model, data, theta


def test_shapes(case):
    model, data, theta = case
    assert theta.shape == (6, model.dim)
    assert theta.dtype == torch.float64
    assert len(model.names) == model.dim
    index = torch.arange(12).reshape(6, 2)
    assert model.log_prior(theta).shape == (6,)
    assert model.log_lik(theta, data.rows(index)).shape == (6, 2)
    assert model.log_lik(theta, data.rows(index[:1])).shape == (6, 2)


def test_a_chain_is_scored_without_its_neighbours(case):
    model, data, theta = case
    index = torch.arange(30).reshape(6, 5)
    together = model.log_lik(theta, data.rows(index))
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    assert torch.allclose(model.log_lik(theta[order], data.rows(index[order])), together[order], rtol=1e-12)


def test_the_full_sum_is_the_sum(case):
    model, data, theta = case
    if not hasattr(model, "full_log_lik"):
        pytest.skip("offers no faster sum")
    plain = model.log_lik(theta, data.part(0, data.n)).sum(-1)
    assert torch.allclose(model.full_log_lik(data.fields)(theta), plain, rtol=1e-10)


@pytest.mark.parametrize("count", [1, 6])
def test_a_slope_is_that_of_the_mean_of_the_rows(case, count):
    model, data, theta = case
    if not hasattr(model, "log_lik_and_grad"):
        pytest.skip("leaves it to autograd")
    rows = data.rows(torch.arange(5 * count).reshape(count, 5))
    point = theta.clone().requires_grad_()
    wanted = model.log_lik(point, rows)
    (grad,) = torch.autograd.grad(wanted.mean(-1).sum(), point)
    values, found = model.log_lik_and_grad(theta, rows)
    assert torch.allclose(values, wanted.detach().to(values.dtype), rtol=1e-6)
    assert torch.allclose(found, grad.to(found.dtype), rtol=1e-4, atol=1e-6)


def test_native_functions_agree_with_the_plain_model(case):
    """Called as plain Python, so that this is the arithmetic itself; float32 per datum."""
    model, data, theta = case
    target = Target(model, data)
    native = target.native(full=True)
    if native is None:
        pytest.skip("has no native form")
    index = torch.arange(40)
    for here, there in zip(theta[:3], theta[3:], strict=True):
        a, b = here.numpy(), there.numpy()
        rows = data.rows(index[None])
        first, second = (model.log_lik(t[None], rows)[0] for t in (here, there))
        d = second - first
        one, two = native.difference(native.args, index.numpy(), 40, a, b)
        assert one == pytest.approx(float(d.sum()), rel=2e-5, abs=2e-4)
        assert two == pytest.approx(float(d.square().sum()), rel=2e-5, abs=2e-4)
        one, two = native.moments(native.args, index.numpy(), 40, a)
        assert one == pytest.approx(float(first.sum()), rel=1e-5)
        assert two == pytest.approx(float(first.square().sum()), rel=1e-5)
        assert native.total(native.args, a) == pytest.approx(
            float(target.full_log_lik(here[None])), rel=1e-10
        )
        out = np.empty(model.dim)
        point = here.clone().requires_grad_()
        native.gradient(native.args, index.numpy(), 40, a, out)
        (grad,) = torch.autograd.grad(model.log_lik(point[None], rows).sum(), point)
        assert out == pytest.approx(grad.numpy(), rel=1e-4, abs=1e-4)
        if native.total_and_gradient is not None:
            every, both = np.arange(target.n), np.full(model.dim, np.nan)
            found = native.total_and_gradient(native.args, a, both)
            assert found == pytest.approx(native.total(native.args, a), rel=1e-12)
            native.gradient(native.args, every, target.n, a, out)
            assert both == pytest.approx(out, rel=1e-6 if data.fields["x"].dtype == torch.float32 else 1e-11)
        assert native.log_prior(native.args, a) == pytest.approx(float(model.log_prior(here[None])))
        native.prior_gradient(native.args, a, out)
        prior = model.log_prior(point[None]).sum()
        grad = torch.autograd.grad(prior, point)[0] if prior.requires_grad else torch.zeros_like(point)
        assert out == pytest.approx(grad.numpy())


def test_tied_means_follow_the_paper(rng):
    model = TiedMeans()
    theta = torch.from_numpy(rng.normal(0, 1.5, (5, 2)))
    x = rng.normal(0.5, 2, (5, 7))
    values = model.log_lik(theta, {"x": torch.from_numpy(x)})
    expected = [[tied_log_lik(v, *t) for v in row] for t, row in zip(theta.tolist(), x.tolist(), strict=True)]
    assert values.numpy() == pytest.approx(np.array(expected), rel=1e-12)
    prior = model.log_prior(theta) - model.log_prior(torch.zeros(1, 2, dtype=torch.float64))
    assert prior.numpy() == pytest.approx([tied_log_prior(*t) for t in theta.tolist()])


def test_tied_means_do_not_see_the_components_exchanged(rng):
    model = TiedMeans()
    theta = torch.from_numpy(rng.normal(0, 1, (4, 2)))
    mirrored = torch.stack([theta.sum(1), -theta[:, 1]], dim=1)
    rows = {"x": torch.from_numpy(rng.normal(0, 2, (1, 50)))}
    assert torch.allclose(model.log_lik(theta, rows), model.log_lik(mirrored, rows), rtol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 3.0, 11.9])
def test_compressed_sums_are_exact_as_far_as_they_promise(rng, shift):
    x = rng.normal(0.5, 1.5, 50_000)
    nodes, weights = compress(x, 0.25, 20)
    assert weights.sum() == pytest.approx(len(x), rel=1e-12)
    s, t = shift / 2, -shift * (0.3 + shift / 2) / 2
    exact = np.logaddexp(0, s * x + t).sum()
    assert abs(weights @ np.logaddexp(0, s * nodes + t) - exact) < 1e-11 * len(x)


def test_compression_of_a_single_value_and_of_gaps():
    for x in (np.array([2.5]), np.array([-4.0, 9.0, 9.1])):
        nodes, weights = compress(x, 0.25, 20)
        assert weights @ np.sin(nodes) == pytest.approx(np.sin(x).sum(), abs=1e-12)
        assert len(nodes) <= 3 * 20


def test_a_model_from_a_function(rng):
    def log_lik(theta, batch):
        return -0.5 * (batch["y"] - theta[0] - theta[1] * batch["x"]) ** 2

    x, y = rng.normal(size=(2, 30))
    model = FunctionModel(log_lik, [0.0, 0.0], log_prior=lambda theta: -(theta**2).sum(), names=("a", "b"))
    data = Dataset.of({"x": x, "y": y})
    theta = torch.from_numpy(rng.normal(size=(3, 2)))
    index = torch.tensor([[0, 5], [1, 7], [9, 9]])
    expected = [
        [-0.5 * (y[i] - a - b * x[i]) ** 2 for i in row]
        for (a, b), row in zip(theta.tolist(), index.tolist(), strict=True)
    ]
    assert model.log_lik(theta, data.rows(index)).numpy() == pytest.approx(np.array(expected))
    shared = model.log_lik(theta, data.part(0, 30))
    assert shared.shape == (3, 30)
    assert model.log_prior(theta).numpy() == pytest.approx(-(theta.numpy() ** 2).sum(1))


def test_a_function_that_sums_over_the_data_is_reported(rng):
    model = FunctionModel(lambda theta, x: -((x - theta[0]) ** 2).sum(), [0.0], single=True)
    with pytest.raises(UserError, match="one value per datum"):
        model.log_lik(torch.zeros(2, 1), {"x": torch.zeros(2, 5)})


def test_meaningless_settings_are_refused():
    with pytest.raises(Refusal, match="positive"):
        TiedMeans(variance=0)
    with pytest.raises(UserError, match="one length"):
        Dataset.of({"x": np.zeros(3), "y": np.zeros(4)})
    with pytest.raises(UserError, match="at least one row"):
        Dataset.of(np.zeros(0))
    with pytest.raises(UserError, match="holds numbers"):
        Dataset.of(np.array(["a"]))
    with pytest.raises(Refusal, match="fewer than"):
        Target(TiedMeans(), type("Many", (), {"n": 2**31})())


def test_pieces_are_marked_for_the_compiler():
    from mhrun.native.compiler import _PIECES

    assert pieces.philox in _PIECES


def test_sums_of_all_data_hold_far_from_the_data(rng):
    data = Dataset({"x": torch.from_numpy(rng.normal(0.5, 1.5, 1500))})
    target = Target(TiedMeans(), data)
    far = torch.tensor([[60.0, -60.0], [-300.0, 300.0], [0.0, 80.0]], dtype=torch.float64)
    rows = {"x": data.fields["x"][None]}
    assert torch.allclose(target.full_log_lik(far), target.model.log_lik(far, rows).sum(-1), rtol=1e-9)


# --- A bound of the terms ---------------------------------------------------------------------------------


def adversarial(x, spread, rng):
    """Return pairs of points (P, 2, 2): random ones, tiny and huge moves, and slopes that change within a cell."""
    wide = spread * rng.normal(0, 1, (60, 2, 2)) * np.array([1.0, 2.0])
    tiny = wide.copy()
    tiny[:, 1] = tiny[:, 0] + rng.normal(0, 1e-6, (60, 2))
    huge = rng.normal(0, 300.0, (60, 2, 2))
    # d changes its slope where a datum is as likely under both components: put that between two data of one cell.
    second = rng.normal(0, 60.0, (60, 1, 2))
    second[..., 1] = 0.1
    at = rng.choice(x, 60)[:, None] + rng.normal(0, 1e-3, (60, 2))
    steep = np.stack([at - second[:, 0] / 2, second[:, 0]], axis=-1)
    equal = np.repeat(rng.normal(0, 1, (10, 1, 2)), 2, axis=1)
    return torch.from_numpy(np.concatenate([wide, tiny, huge, steep, equal]))


@pytest.mark.parametrize("n", [1, 2, 3, 5_000, 100_000])
@pytest.mark.parametrize("variance", [0.05, 2.0])
def test_the_bound_of_the_terms_of_tied_means_holds(n, variance):
    """In torch and compiled, at every datum, for moves that were made to break it; and it is tight for usual ones."""
    rng = np.random.default_rng(n)
    x = MixtureSample(n, [0.0, 1.0], variance, seed=n).load().fields["x"]
    model = TiedMeans(variance)
    pairs = adversarial(x.double().numpy(), variance**0.5, rng)
    one, two = pairs[:, 0], pairs[:, 1]
    bound = model.bound({"x": x})(one, two).numpy()
    native = model.native({"x": x}, full=True)
    for k, (a, b) in enumerate(zip(one, two, strict=True)):
        rows = {"x": x[None]}
        true = float((model.log_lik(b[None], rows) - model.log_lik(a[None], rows)).abs().max())
        assert true <= bound[k]
        assert k >= 60 or bound[k] <= true * 1.002 + 1e-9
        if k % 8 == 0:  # interpreted here, and slow
            compiled = native.full_pass_stats(native.args, a.numpy(), b.numpy())[2]
            assert true <= compiled + 1e-12 * (1 + true)
            assert k >= 60 or compiled <= true * 1.002 + 1e-9
