"""The command `mhrun check`: its arguments, its verdicts, and its exit status."""

from __future__ import annotations

import json

import pytest

from mhrun.cli.main import run


@pytest.mark.slow
def test_the_bias_with_minibatches_is_no_property_of_a_proposal(capsys):
    arguments = ["checks=minibatches", "chains=4000"]
    assert run(["check", "proposal=random_walk", *arguments]) == 0
    out = capsys.readouterr().out
    assert "with a correct proposal too, as Metropolis's rule reads minibatches here" in out
    assert "\nno check fails. " in out
    assert run(["check", "dynamics=sgld", *arguments]) == 0
    out += capsys.readouterr().out
    assert "rule that takes no account" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_a_setting_of_a_part_needs_its_kind_before_it(capsys):
    for arguments, hint in (
        (["dynamics=sghmc", "friction=0.5"], "Did you mean 'dynamics.friction=0.5'?"),
        (["method=sghmc", "friction=0.5"], "Did you mean 'method.kernel.dynamics.friction=0.5'?"),
    ):
        assert run(["check", *arguments]) == 2
        assert f"There is no setting 'friction'. {hint}" in capsys.readouterr().err


def test_the_command_prints_verdicts_and_returns_a_status(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    few = ["chains=500", "n=200", "m=20", "checks=[balance,costs]"]
    assert run(["check", "rule=barker", *few]) == 0
    out = capsys.readouterr().out
    assert "detailed balance" in out
    assert "no check fails" in out
    assert "A correct kernel fails this page with probability 1e-4. Seed 0." in out
    assert "An error within 4.9 standard errors (±) passes unseen" in out
    assert run(["check", "rule=barker", "checks=[balance]", "chains=200", "step_size=1e-9"]) == 1
    powerless = capsys.readouterr().out
    assert "No check had power: nothing is known of the distribution." in powerless
    assert "passes unseen" not in powerless
    assert "┃" not in out  # a pipe gets plain columns
    assert run(["check", "rule=metropolis", "checks=minibatches", "chains=4000"]) == 0
    assert "that is not judged. One that is meant to be right" in capsys.readouterr().out
    assert run(["check", "rule=barker", "checks=invariance", "chains=500"]) == 0
    assert "A variance that is off by less than" in capsys.readouterr().out
    assert run(["check", "mhrun.rules.barker.Barker", "--json", *few]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["fails"] == 0
    assert [check["check"] for check in content["checks"]] == [
        "detailed balance",
        "what a step reports",
        "cost counting",
    ]

    for method in ("mcmc", "tunamh", "zig_zag"):
        assert run(["check", f"method={method}", "m=10", *few[:2]]) == 2
        assert "m=10 sets 'm', which the method does not read." in capsys.readouterr().err

    for method in ("flymc", "flymc_untuned"):
        assert run(["check", f"method={method}", "n=100", "checks=costs"]) == 0
    assert capsys.readouterr().out.count("no check fails") == 2
    # Gradients with a control variate need no bounds.
    assert run(["check", "method=sgld_cv", "checks=[costs]"]) == 0
    assert "no check fails" in capsys.readouterr().out
    for method, note in (
        ("smh1", "without the method's target.surrogate=taylor1"),
        ("mcmc", "no check fails"),
    ):
        assert run(["check", f"method={method}", "checks=[costs]"]) == 0
        assert note in capsys.readouterr().out
    exact = ["method=mint", "+method.target.surrogate=taylor2", "checks=[costs,minibatches]"]
    assert run(["check", *exact]) == 0  # the expansion of a normal log-likelihood has no error, and no noise
    found = capsys.readouterr().out
    assert "no bias seen" in found
    assert "are without" not in found
    for given in ([], ["m=50"]):
        assert run(["check", "mhrun.rules.mh_minibatch.MHMinibatch", "checks=[costs]", *given]) == 0
        assert ("MHMinibatch is checked with m = 100; m=VALUE" in capsys.readouterr().err) == (not given)
    assert run(["check", "method=mcmc", "+method.target.surrogate=banana"]) == 2
    assert "surrogate = 'banana' is unknown" in capsys.readouterr().err
    assert run(["check", "method=zig_zag"]) == 2
    assert "needs target.surrogate=taylor2, and the checks have no targets" in capsys.readouterr().err

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "lazyrule.py").write_text(
        "from mhrun.parts import Rule\n"
        "from mhrun.random import Purpose\n"
        "class Lazy(Rule):\n"
        "    def __init__(self, power=1.0): self.power = power\n"
        "    def decide(self, contest, draws):\n"
        "        u = draws.uniform(Purpose.ACCEPT).log()\n"
        "        return contest.to_verdict(u < self.power * contest.log_ratio)\n"
    )
    arguments = ["check", "--project", str(tmp_path / "mine"), "lazyrule.Lazy", *few, "chains=4000"]
    assert run(arguments) == 0
    assert run([*arguments, "power=0.5"]) == 1
    out = capsys.readouterr().out
    assert "1 fail: detailed balance" in out
    short = [*arguments[:-3], "n=200", "m=20", "checks=invariance", "chains=500", "step_size=0.001"]
    assert run(short) == 1
    out = capsys.readouterr().out
    assert "\nno check fails. No power: invariance: Gaussian mean, n = 30; invariance: mixture" in out
    assert "no power: " not in out
    assert run([*short, "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["fails"], content["no_power"]) == (0, 3)


@pytest.fixture(scope="module")
def wrong_rules(tmp_path_factory):
    """A folder with ``wrongrules.py``."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "wrongrules.py").write_text(
        "import torch\n"
        "from mhrun.parts import Rule\n"
        "from mhrun.proposals.random_walk import RandomWalk\n"
        "from mhrun.random import Purpose\n"
        "class Lopsided(RandomWalk):\n"
        "    def sample(self, origin, controls, draws):\n"
        "        return super().sample(origin, controls, draws) + 0.3 * controls.step_size[:, None]\n"
        "def accepted(contest, draws, power):\n"
        "    return draws.uniform(Purpose.ACCEPT).log() < power * contest.log_ratio\n"
        "class Warm(Rule):\n"
        "    keeps_ratio = True\n"
        "    def decide(self, contest, draws): return contest.to_verdict(accepted(contest, draws, 0.5))\n"
        "class Never(Rule):\n"
        "    keeps_ratio = True\n"
        "    def decide(self, contest, draws): return contest.to_verdict(accepted(contest, draws, 0) & False)\n"
        "class Crash(Rule):\n"
        "    def decide(self, contest, draws): return contest.to_verdict(contest.log_ratoi > 0)\n"
        "class Smooth(Rule):\n"
        "    def decide(self, contest, draws): return contest.to_verdict(contest.log_ratio.sigmoid())\n"
        "class Column(Rule):\n"
        "    def decide(self, contest, draws): return contest.to_verdict(accepted(contest, draws, 1)[:, None])\n"
    )
    return folder


@pytest.fixture
def own_rules(wrong_rules, monkeypatch):
    """The arguments that check a class of that file."""
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    return ["check", "--project", str(wrong_rules)]


def test_the_message_on_a_rule_that_returns_probabilities_or_a_column_names_the_right_return_value(
    own_rules, capsys
):
    for name, given in (("Smooth", "(100,), float64"), ("Column", "(100, 1), bool")):
        assert run([*own_rules, f"wrongrules.{name}"]) == 2
        err = capsys.readouterr().err
        assert f"decide of {name}: contest.to_verdict takes which chains accept" in err
        assert f"was given {given}; compare with a uniform: u < probability." in err
        assert err.count("\n") == 1


def test_an_error_of_several_checks_is_printed_once_and_no_chance_event(own_rules, capsys):
    assert run([*own_rules, "wrongrules.Crash", "checks=[balance,costs,resuming]"]) == 1
    out = capsys.readouterr().out
    assert out.count("log_ratoi") == 1
    assert "\n3 checks  fails" in out
    assert "\n3 fail: balance; costs; resuming. " in out
    assert "1e-4" not in out
    assert "unseen" not in out
    assert run([*own_rules, "wrongrules.Crash", "checks=[balance,costs]", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["checks"]
    assert [(verdict["check"], verdict["crashed"]) for verdict in found] == [
        ("balance", True),
        ("costs", True),
    ]


@pytest.mark.slow
def test_a_rule_that_accepts_nothing_has_no_power_and_no_bias(own_rules, capsys):
    checks = "checks=[invariance,balance,geweke,minibatches]"
    assert run([*own_rules, "wrongrules.Never", checks, "chains=400"]) == 1
    out = capsys.readouterr().out
    assert "invariance: Gaussian mean, n = 30       no power  this rule accepted nothing\n" in out
    assert "positive parameters" not in out
    assert "with minibatches                        no power  no chain moves in 225 steps" in out
    assert "\nno check fails. No power: " in out
    assert "bias" not in out
    assert "no power:" not in out
    assert "is declared" not in out


@pytest.mark.slow
def test_what_a_rule_declares_and_is_not_so_is_named(own_rules, capsys):
    few = ["checks=[invariance,balance]", "chains=2000"]
    assert run([*own_rules, "wrongrules.Warm", *few]) == 1
    out = capsys.readouterr().out
    assert out.count("\nkeeps_ratio = True is declared and is not so: it has no detailed balance") == 1
    assert "Gaussian mean, n = 30; invariance: mixture" in out
    # With Metropolis's rule, which keeps the ratio
    assert run([*own_rules, "wrongrules.Lopsided", *few]) == 1
    assert "is declared" not in capsys.readouterr().out


def test_a_class_that_is_not_there_is_answered_with_those_that_can_be_checked(own_rules, capsys):
    classes = "wrongrules has Column, Crash, Lopsided, Never, Smooth, Warm.\n"
    for name in ("Missing", "accepted"):
        assert run([*own_rules, f"wrongrules.{name}"]) == 2
        assert capsys.readouterr().err.endswith(classes)


def test_the_command_refuses_in_a_line(capsys):
    for arguments, content in (
        ([], "check needs a part"),
        (["rule=nothing"], "There is no rule 'nothing'"),
        (["os.system"], "not in a trusted package"),
        (["mhrun.data.mixture.MixtureSample"], "is not a class of a part"),
        (["seed=1"], "names no part"),
        (["rule=barker", "m=-1"], "m = -1 must be a whole number"),
        (["pairing=growing", "rule=metropolis"], "leaves the minibatch to the rule"),
        (["rule=barker", "checks=[nothing]"], "There is no check 'nothing'"),
        (["rule=barker", "checks=3"], "There is no check '3'"),
        (["rule=barker", "checks=[costs"], "'checks=[costs' cannot be read"),
        (["rule=barker", "step_size=abc"], "step_size = 'abc' must be a positive number"),
        (["rule=barker", "seed=1.5"], "seed = 1.5 must be a whole number"),
        (["rule=barker", "n=200.5"], "n = 200.5 must be a whole number"),
        (["rule=barker", "chains=1"], "chains = 1 must be a whole number, at least 200"),
        (["mhrun.rules.barker.Barker", "m=[1"], "'m=[1' cannot be read"),
        (["barker"], "'barker' is not a dotted name"),
        (["model=logistic"], "check takes no model: parts are checked on targets with known distributions."),
        (["rule=barker", "+data=gmm"], "with its priors and methods: mhrun check experiment=NAME data=gmm."),
        (["experiment=gmm_tied_means"], "TiedMeans has no sample_prior(count) and no simulate(theta, rows)"),
        (["rule=barker", "outputs=here"], "There is no setting 'outputs'. check has checks, seed"),
    ):
        assert run(["check", *arguments]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert content in err


@pytest.fixture(scope="module")
def signed_project(tmp_path_factory):
    """A project with a dynamics, ``signed.Signed`` and ``dynamics=signed``."""
    folder = tmp_path_factory.mktemp("signed")
    (folder / "signed.py").write_text(
        "from mhrun.dynamics.sgld import SGLD\n"
        "class Signed(SGLD):\n"
        "    def __init__(self, sign: float = 1.0, noise: float = 1.0):\n"
        "        super().__init__()\n"
        "        self.sign = sign\n"
        "    def move(self, theta, grad, aux, controls, draws):\n"
        "        return super().move(theta, self.sign * grad, aux, controls, draws)\n"
    )
    (folder / "dynamics").mkdir()
    (folder / "dynamics" / "signed.yaml").write_text("_target_: signed.Signed\n")
    return folder


@pytest.fixture
def own_dynamics(signed_project, monkeypatch):
    """The arguments that check parts of that project."""
    monkeypatch.setenv("MHRUN_TRUST", "")
    monkeypatch.setenv("MHRUN_FOLDERS", "")
    return ["check", "--project", str(signed_project)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("signed.Signed +dynamics.sign=-1", "a class that is given by name takes its settings bare: sign=-1."),
        ("signed.Signed dynamics.sign=-1", "a class that is given by name takes its settings bare: sign=-1."),
        ("signed.Signed +sign=-1", "a class that is given by name takes its settings bare: sign=-1."),
        (
            "signed.Signed +dynamics.nonsense=5",
            "sets 'nonsense', which nothing reads. Did you mean 'noise'? Signed takes sign and noise, given bare",
        ),
        ("signed.Signed nonsense=5", "There is no setting 'nonsense'. Did you mean 'noise'? Signed takes sign and"),
        ("signed.Signed +other=5", "+other=5 sets 'other', which nothing reads. Signed takes sign and noise; check"),
        ("signed.Signed rule=barker", "sets 'rule', which nothing reads: only the dynamics Signed is checked."),
        ("signed.Signed dynamics=sgld", "signed.Signed is the dynamics that is checked; leave out one of them."),
        ("signed.Signed temperature=3", "temperature=3 sets 'temperature', which nothing reads."),
        ("dynamics=signed +nonsense=5", "+nonsense=5 sets 'nonsense', which nothing reads."),
        ("dynamics=signed +sign=-1", "+sign=-1 sets 'sign', which nothing reads. Did you mean '+dynamics.sign'?"),
        ("dynamics=signed dynamics.sign=-1", "and what a part has as dynamics.KEY."),
        ("dynamics=signed +rule.nonsense=5", "sets 'rule', which nothing reads: of these parts only the dynamics"),
        ("mhrun.rules.barker.Barker +rule.nonsense=3", "'nonsense', which nothing reads. Barker takes no settings."),
        ("rule=barker +step_szie=0.1", "sets 'step_szie', which nothing reads. Did you mean 'step_size'?"),
        ("proposal=random_walk +rule.nonsense=3", "sets 'rule', which nothing reads; choose one with rule=NAME."),
        ("method=sgld +method.stepz=3", "sets 'method.stepz', which nothing reads: of a method its kernel is checked"),
        ("rule=barker +data.rows=3", "sets 'data.rows', which nothing reads."),
    ],
)  # fmt: skip
def test_settings_that_nothing_reads_are_refused_with_what_is_read(own_dynamics, capsys, arguments, message):
    assert run([*own_dynamics, *arguments.split(), "chains=200", "checks=repeatable"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_settings_that_a_part_refers_to_are_read(own_dynamics, capsys):
    for arguments in (
        ["dynamics=sghmc", "+share=0.3", "dynamics.friction=${share}"],
        ["signed.Signed", "sign=${lam}", "lam=0.5"],
        ["dynamics=adam", "data.n=300"],
        ["dynamics=signed", "+dynamics.sign=0.5"],
        ["signed.Signed", "sign=0.5", "m=50"],
    ):
        arguments = [*arguments, "checks=repeatable", "chains=200", "step_size=0.01"]
        assert run([*own_dynamics, *arguments]) == 0, capsys.readouterr().err
    capsys.readouterr()
