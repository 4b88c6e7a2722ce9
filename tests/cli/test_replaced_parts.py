"""Parts that the command line replaces: labels, and settings of the experiment that the new part does not take."""

from __future__ import annotations

import pytest

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.replaced import with_replaced_parts
from mhrun.cli.main import run
from mhrun.errors import UserError

STEP_SIZE = "methods.sgld.schedules.step_size"


def test_a_part_that_the_command_line_replaces_is_in_the_label():
    config = {"methods": {"mint": {"label": "MINT"}, "sgld": {}, "mcmc": {"label": "MCMC"}}}
    arguments = [
        "rule@methods.mint.kernel.rule=barker",
        "pairing@methods.mint.kernel.pairing=stored",
        "lam=0.2",
    ]
    arguments += ["+dynamics@methods.sgld.kernel.dynamics=sghmc", "rule@methods.absent.kernel.rule=barker"]
    arguments += ["rule@methods.mcmc.kernel.rule=barker", "methods.mcmc.label=mine"]
    found = with_replaced_parts(config, arguments)["methods"]
    assert [found[name].get("label") for name in ("mint", "sgld", "mcmc")] == [
        *("MINT (rule: barker, pairing: stored)", "sgld (dynamics: sghmc)", "MCMC")
    ]
    assert with_replaced_parts(config, ["lam=0.2"])["methods"] == config["methods"]


def test_settings_of_the_experiment_that_another_part_does_not_take_are_named(capsys):
    """Hydra puts the experiment's own settings over those of the part's file, whichever it is."""
    words = ["experiment=gmm_tied_means", "scale=smoke", f"schedule@{STEP_SIZE}=cosine"]
    assert run([*words, "--dry-run"]) == 2
    assert capsys.readouterr().err == (
        f"mhrun: schedule@{STEP_SIZE}=cosine: the experiment gives {STEP_SIZE}.end, which cosine does not take; leave "
        f"it out with ~{STEP_SIZE}.end.\n"
    )
    config = compose_config([*words, f"~{STEP_SIZE}.end"], check=True)
    assert config["methods"]["sgld"]["schedules"]["step_size"]["start"] == 1e-6


def test_a_setting_of_the_command_line_that_a_part_does_not_take_is_none_of_the_experiment(capsys):
    words = ["experiment=gmm_tied_means", "scale=smoke", f"schedule@{STEP_SIZE}=cosine", f"{STEP_SIZE}.end=3"]
    assert run([*words, "--dry-run"]) == 2
    assert "Cosine takes no 'end'" in capsys.readouterr().err


def test_a_setting_that_is_null_can_be_left_out():
    """Hydra takes null for a setting that does not exist."""
    place = "methods.sghmc.schedules.step_size"
    words = ["experiment=gaussian_grid", "scale=smoke", f"schedule@{place}=fixed"]
    with pytest.raises(
        UserError, match=r"the experiment gives .*\.end.* leave (it|them) out with ~"
    ) as caught:
        compose_config(words)
    advised = [word for word in str(caught.value).rstrip(".").split() if word.startswith("~")]
    assert compose_config([*words, *advised])["methods"]["sghmc"]["schedules"]["step_size"]
