"""An estimate that fails after the last step costs no draws."""

from __future__ import annotations

import warnings

import pytest
import torch

import mhrun


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("sampled_gradients", "gradients at the draws"),
        ("width_of_draws", "the width of the draws"),
        ("excess_variance", "the effect of minibatch noise"),
        ("mean_bias", "the bias of means"),
    ],
)
def test_a_failure_after_the_last_step_is_noted_and_the_run_is_whole(
    monkeypatch, tmp_path, capsys, function, words
):
    def call():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mhrun.sample(
                lambda theta, x: -0.5 * (x - theta[0]) ** 2,
                torch.linspace(-1, 1, 50, dtype=torch.float64),
                mhrun.Unadjusted(mhrun.SGLD(), m=10),
                start=[0.0],
                step_size=1e-3,
                steps=400,
                warmup=10,
                seed=1,
                folder=tmp_path,
            )

    def broken(*args):
        raise RuntimeError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(f"mhrun.engine.diagnosis.diagnose.{function}", broken)
        trace = call()
    said = capsys.readouterr().err
    assert f"{words} cannot be estimated (RuntimeError: no such luck; test_diagnosis.py, line " in said
    assert trace["posterior"].sizes["draw"] == 400
    assert call()["posterior"].equals(trace["posterior"])  # it is complete
