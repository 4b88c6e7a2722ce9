"""What `sample` says to ordinary mistakes, and of what came out."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from kit import short_run

import mhrun
from mhrun.cli.main import run
from mhrun.errors import UserError


def log_density(theta):
    return -0.5 * ((theta - 1) ** 2).sum() / 0.25


def sampled(model=log_density, data=None, dynamics=None, **how):
    kernel = mhrun.Unadjusted(dynamics or mhrun.SGLD(), m=1)
    settings = {"start": [0.0, 0.0], "step_size": 0.02, "steps": 300, "warmup": 100} | how
    return mhrun.sample(
        model, data, how.pop("kernel", kernel), **{k: v for k, v in settings.items() if k != "kernel"}
    )


def test_a_density_needs_no_data():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theta = sampled(steps=3000)["posterior"]["theta"].to_numpy()
    assert theta.shape == (4, 3000, 2)
    assert abs(theta.mean() - 1) < 0.2
    assert abs(theta.var() - 0.25) < 0.1


@short_run
def test_what_came_out_is_reported():
    with pytest.warns(UserWarning, match="4 of 4 chains became non-finite"):
        sampled(step_size=1e3, steps=2000)
    with pytest.warns(UserWarning, match="of its draws follow the target"):
        sampled(dynamics=mhrun.TACTHMC())
    with pytest.warns(UserWarning, match="no chain ever moved"):
        mhrun.sample(
            lambda theta, x: torch.where(theta[0] == 0, 0.0, torch.nan) * x,
            np.ones(5),
            mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
            start=[0.0],
            step_size=1.0,
            steps=50,
        )


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_chains_that_begin_at_no_density_are_refused(value):
    def log_lik(theta, x):  # not finite at one of two starting points
        return torch.where(theta[0] > 0, value, 0.0) - (x - theta[0]) ** 2

    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(m=5), mhrun.Barker())
    with pytest.raises(UserError, match="1 of 2 chains begin where the log-likelihood is not finite"):
        mhrun.sample(log_lik, np.ones(50), kernel, start=[[0.0], [1.0]], chains=2, step_size=1.0, steps=50)


LADDER = mhrun.ReplicaExchange(
    mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis()),
    mhrun.Full(),
    mhrun.Metropolis(),
    rungs=2,
)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"kernel": mhrun.SGNHT()}, "SGNHT is not a kernel"),
        ({"dtype": "float32"}, "must be torch.float64 or torch.float32"),
        ({"steps": "100"}, "steps = '100' must be a whole number"),
        ({"temperature": mhrun.Fixed(temperature=2.0)}, "temperature must be a number"),
        ({"temperature": "warm"}, "temperature must be a number"),
        ({"temperature": [1.0, 2.0]}, "2 values for 1 rung; give a number, or a kernel with a ladder"),
        ({"kernel": LADDER, "temperature": [1.0, 2.0, 4.0]}, "3 values for 2 rungs; give one for each"),
        ({"kernel": LADDER, "temperature": [2.0, 1.0]}, "must increase"),
        ({"kernel": LADDER, "temperature": [1.0, 2.0], "chains": 3}, "multiple"),
        ({"step_size": mhrun.Cosine(0.1, 2), "acceptance": 0.3}, "acceptance= tunes a number"),
        (
            {"step_size": mhrun.Cosine(0.1, 4), "steps": 100, "warmup": 100},
            "2 of 4 cycles lie in the 100",
        ),
    ],
)
def test_ordinary_mistakes_are_reported_in_a_line(how, message):
    with pytest.raises(UserError, match=message):
        sampled(**how)


def test_a_dynamics_that_returns_another_shape_is_reported():
    class Odd(mhrun.SGLD):
        def move(self, theta, grad, aux, controls, draws):
            return theta[0], aux

    with pytest.raises(UserError, match=r"Odd.move returned a theta of shape \(2,\), not \(C, D\)"):
        sampled(dynamics=Odd())


def test_the_default_kernel_is_named_after_the_model_was_evaluated(tmp_path, monkeypatch, capsys):
    """A function that fails has no gradients for another reason: its error alone is printed."""

    def broken(theta, x):
        return x - theta.there

    def whole(theta, x):
        return ((x - theta.mu) ** 2).sum()

    for function, message in ((broken, "there"), (whole, "log_lik")):
        with pytest.raises(UserError, match=message):
            mhrun.sample(function, np.ones(50), parameters={"mu": "Normal(0.0, 1.0)"}, steps=20, warmup=20)
        assert "no kernel was named" not in capsys.readouterr().err
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "rows.csv").write_text("x\n1\n2\n4\n")
    (tmp_path / "wrong.py").write_text("def log_lik(theta, rows):\n    return rows.nothing - theta.mu\n")
    (tmp_path / "conf" / "model" / "wrong.yaml").write_text(
        "defaults: [user_function, _self_]\nlog_lik: wrong.log_lik\nparameters: {mu: 'Normal(0.0, 1.0)'}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(["--project", ".", "data=table", "data.file=rows.csv", "model=wrong"]) == 2
    err = capsys.readouterr().err
    assert "nothing" in err
    assert err.count("\n") == 1
