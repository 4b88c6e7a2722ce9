"""The compiled loop over chains of a fully connected network, against plain loops and the torch path."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from nets import LOSSES, by_hand
from threadpoolctl import threadpool_info, threadpool_limits

from mhrun.errors import UserError
from mhrun.models import perceptron_native
from mhrun.models.perceptron import Perceptron
from mhrun.native import available, over_chains

pytestmark = pytest.mark.skipif(not available(), reason="needs numba")

CHAINS = 3
NETWORKS = [[80, 50, 6], [90, 40, 30, 20, 5], [900, 5], [6000, 1, 3]]


def drawn(layers, m, seed=0, kind=torch.float32):
    """Points of some chains, and a minibatch for each."""
    draw = torch.Generator().manual_seed(seed)
    theta = torch.randn(CHAINS, Perceptron(layers).dim, generator=draw) * (2 / max(layers)) ** 0.5
    x = torch.rand(CHAINS, m, layers[0], generator=draw) * (layers[0] < 6000 or 0.1)
    x = (255 * x).to(kind) if kind == torch.uint8 else x.to(kind)
    return theta, {"x": x, "y": torch.randint(0, layers[-1], (CHAINS, m), generator=draw)}


def in_torch(monkeypatch, call):
    with monkeypatch.context() as patch:
        patch.setattr(perceptron_native, "is_compiled", lambda theta, x: False)
        return call()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("layers", NETWORKS, ids=str)
@pytest.mark.parametrize("m", [1, 9])
def test_it_is_plain_loops_over_data_and_units(layers, loss, m):
    theta, rows = drawn(layers, m)
    model = Perceptron(layers, likelihood=loss)
    assert perceptron_native.is_compiled(theta, rows["x"])
    found, grad = model.log_lik_and_grad(theta, rows)
    for c in range(CHAINS):
        pairs = [
            by_hand(theta[c].double().numpy(), x, int(y), LOSSES[loss], layers)
            for x, y in zip(rows["x"][c].numpy(), rows["y"][c], strict=True)
        ]
        assert found[c].numpy() == pytest.approx([value for value, _ in pairs], rel=1e-5, abs=1e-5)
        wanted = np.mean([gradient for _, gradient in pairs], axis=0)
        assert grad[c].numpy() == pytest.approx(wanted, rel=1e-4, abs=3e-6 * abs(wanted).max())
    assert torch.equal(model.log_lik(theta, rows), found)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("is_shared", [True, False])
def test_bytes_are_pixels_and_rows_may_be_shared(monkeypatch, kind, is_shared):
    theta, rows = drawn(NETWORKS[0], 12, kind=kind)
    if is_shared:
        rows = {name: field[:1] for name, field in rows.items()}
    model = Perceptron(NETWORKS[0])
    found = model.log_lik_and_grad(theta, rows)
    for one, other in zip(
        found, in_torch(monkeypatch, lambda: model.log_lik_and_grad(theta, rows)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [30.0, 3000.0])
def test_saturated_outputs_are_those_of_torch_in_single_precision(monkeypatch, loss, scale):
    theta, rows = drawn(NETWORKS[0], 40)
    model = Perceptron(NETWORKS[0], likelihood=loss)
    found = model.log_lik_and_grad(scale * theta, rows)
    wanted = in_torch(monkeypatch, lambda: model.log_lik_and_grad(scale * theta, rows))
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-3, atol=1e-3)
    largest = float(wanted[1].abs().max()) or 1.0  # 0 where every probability is clipped
    torch.testing.assert_close(found[1] / largest, wanted[1] / largest, rtol=0, atol=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [3, -1])  # a weight of the first layer; the bias of the last class
def test_points_that_are_not_finite_stay_so(monkeypatch, loss, bad, place):
    theta, rows = drawn(NETWORKS[0], 30)
    theta[1, place] = bad
    model = Perceptron(NETWORKS[0], likelihood=loss)
    found = model.log_lik_and_grad(theta, rows)
    wanted = in_torch(monkeypatch, lambda: model.log_lik_and_grad(theta, rows))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        torch.testing.assert_close(one[[0, 2]], other[[0, 2]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("m", [23, perceptron_native.ROWS + 1, 2 * perceptron_native.ROWS + 70])
def test_neither_other_chains_nor_threads_change_the_bits_of_a_chain(monkeypatch, m):
    theta, rows = drawn(NETWORKS[1], m)
    model = Perceptron(NETWORKS[1])
    together = model.log_lik_and_grad(theta, rows)
    alone = model.log_lik_and_grad(theta[1:2], {name: field[1:2] for name, field in rows.items()})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threaded = model.log_lik_and_grad(theta, rows)
        threaded_alone = model.log_lik_and_grad(
            theta[1:2], {name: field[1:2] for name, field in rows.items()}
        )
    finally:
        torch.set_num_threads(before)
    for values in zip(together, alone, threaded, threaded_alone, strict=True):
        assert torch.equal(values[0][1], values[1][0])
        assert torch.equal(values[0], values[2])
        assert torch.equal(values[0][1], values[3][0])
    wanted = in_torch(monkeypatch, lambda: model.log_lik_and_grad(theta, rows))
    for one, other in zip(together, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("m", [9, perceptron_native.ROWS + 3])
def test_calls_from_several_threads_at_once(m):
    """Each has its numbers, and the products of others have as many threads as before.

    The limit is set by this thread, so that `set_num_threads` of threadpoolctl does nothing in those of the pool.
    """
    theta, rows = drawn(NETWORKS[1], m)
    model = Perceptron(NETWORKS[1])
    wanted = model.log_lik(theta, rows)
    with threadpool_limits(2, user_api="blas"), ThreadPoolExecutor(4) as pool:
        before = threadpool_info()
        found = list(pool.map(lambda _: model.log_lik(theta, rows), range(200)))
        assert threadpool_info() == before
    assert all(torch.equal(values, wanted) for values in found)


def test_it_is_for_large_networks_in_single_precision_without_autograd():
    theta, rows = drawn(NETWORKS[0], 5)
    assert not perceptron_native.is_compiled(theta.double(), rows["x"])
    assert not perceptron_native.is_compiled(theta[:, :4000].contiguous(), rows["x"])
    assert not perceptron_native.is_compiled(theta.clone().requires_grad_(), rows["x"])


@pytest.mark.parametrize("fault", ["theta", "x", "y", "m"])
def test_shapes_that_do_not_belong_together_are_refused(fault):
    theta, rows = drawn(NETWORKS[0], 5)
    if fault == "theta":
        theta = theta[:, :-3].contiguous()
    elif fault == "m":
        rows["y"] = rows["y"][:, :4]
    else:
        rows[fault] = rows[fault][:2]
    with pytest.raises(ValueError, match="do not belong together"):
        Perceptron(NETWORKS[0]).log_lik_and_grad(theta, rows)


@pytest.mark.parametrize("wrong", [-1, 6])
def test_a_class_without_an_output_is_refused(wrong):
    theta, rows = drawn(NETWORKS[0], 5)
    rows["y"][2, 3] = wrong
    with pytest.raises(UserError, match=f"y holds the class {wrong}; with 6 outputs, classes are 0 to 5"):
        Perceptron(NETWORKS[0]).log_lik(theta, rows)


def test_its_products_have_one_thread_and_those_of_others_as_many_as_before(monkeypatch):
    theta, rows = drawn(NETWORKS[0], 5)
    Perceptron(NETWORKS[0]).log_lik(theta, rows)  # loads the library
    seen = []

    def noting(*args, own):
        seen.append({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
        over_chains(*args, own=own)

    monkeypatch.setattr(perceptron_native, "over_chains", noting)
    for threads in (2, 1):
        with threadpool_limits(threads, user_api="blas"):
            before = threadpool_info()
            Perceptron(NETWORKS[0]).log_lik_and_grad(theta, rows)
            assert threadpool_info() == before
    assert seen == [{1}, {1}]
