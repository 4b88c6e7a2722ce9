"""What `sample` says to ordinary mistakes, and of what came out."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from kit import short_run

import mhrun
from mhrun.build import call
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


@pytest.mark.slow
def test_a_density_needs_no_data():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theta = sampled(steps=3000)["posterior"]["theta"].to_numpy()
    assert theta.shape == (4, 3000, 2)
    assert abs(theta.mean() - 1) < 0.2
    assert abs(theta.var() - 0.25) < 0.1


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ([2], r"field y has 1 NaN \(in row 2, counted from 0\)"),
        ([3, 7], r"field y has 2 NaN \(the first in row 3, counted from 0\)"),
    ],
)
def test_data_that_are_not_a_number_are_named(lacking, message):
    data = {"x": np.ones(9), "y": np.ones(9)}
    data["y"][lacking] = np.nan
    with pytest.raises(UserError, match=message):
        sampled(lambda theta, batch: theta[0] * batch.x - batch.y, data)


@pytest.mark.parametrize("method", ["sghmc", "mhminibatch"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_found_by_methods_that_read_few(method, value):
    """In any of many rows; where a model makes something of it, it is no mistake."""
    x = np.arange(100_000.0)
    x[54_321] = value

    def log_lik(theta, rows):
        return -0.5 * (rows - theta) ** 2

    def with_missing(theta, rows):
        return torch.where(rows.isfinite(), log_lik(theta, rows), 0.0)

    settings = {"start": [0.0], "step_size": 1e-5, "steps": 20, "warmup": 0}
    message = "x has 1 NaN .in row 54,321" if np.isnan(value) else "in row 54,321 .* x has infinite values"
    with pytest.raises(UserError, match=message):
        mhrun.sample(lambda theta, rows: log_lik(theta, rows.x), {"x": x}, method, **settings)
    trace = mhrun.sample(lambda theta, rows: with_missing(theta, rows.x), {"x": x}, method, **settings)
    assert np.isfinite(trace["posterior"]["theta"]).all()


def test_every_name_is_among_the_values_of_a_start_that_is_refused():
    """The scale is negative, after a vector that alone would fill the line."""

    def log_lik(theta, rows):
        return torch.distributions.Normal(theta.a + theta.b.sum(), theta.s).log_prob(rows)

    parameters = {"a": "Normal(0, 1)", "b": {"shape": [5], "prior": "Normal(0, 1)"}, "s": "Normal(-5, 0.1)"}
    with pytest.raises(UserError, match=r"a = .*, b\[0\] = .*, b\[1\] = .*, s = -[45].* and 3 more"):
        mhrun.sample(log_lik, np.zeros(9), parameters=parameters)


class Ramp(mhrun.Schedule):
    quantities = ("step_size",)

    def __init__(self, start):
        self.start = start

    def bind(self, warmup, steps):
        return self

    def start(self, chains):
        return {}

    def values(self, memory, first_step, steps):
        return {"step_size": torch.full((1, 1), 0.1)}

    def steps_until_update(self, step):
        return None

    def learn(self, memory, first_step, accepted):
        return memory


class Hidden(mhrun.Metropolis):
    def __init__(self):
        self.decide = 3


class Undecided(mhrun.Metropolis):
    def decide(self, contest, draws):
        return contest.log_ratio > 0


def test_an_attribute_that_hides_a_method_of_the_base_class_is_named():
    message = "Ramp sets self.start, which is a method of Schedule; choose another attribute name"
    with pytest.raises(UserError, match=message):
        sampled(step_size=Ramp(0.1))
    with pytest.raises(UserError, match=r"schedules.step_size: Ramp sets self.start"):
        call(Ramp, {"start": 0.1}, "ours.Ramp", "schedules.step_size")
    with pytest.raises(UserError, match=r"Hidden sets self.decide, which is a method of"):
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), Hidden())


class Misspelt(mhrun.Metropolis):
    keep_ratio = True
    limits = 3.0  # a constant that no base class declares


def test_a_class_in_place_of_a_part_is_named():
    with pytest.raises(UserError, match=r"Metropolis is a class; give an instance of it: Metropolis\(\)"):
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), mhrun.Metropolis)


def test_a_misspelt_declaration_is_named():
    message = "Misspelt declares keep_ratio, which Metropolis does not have; did you mean keeps_ratio?"
    with pytest.raises(UserError, match=re.escape(message)):
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), Misspelt())


class Limited(mhrun.Metropolis):
    """A rule whose limit depends on its setting."""

    corrects_noise = True

    def __init__(self, cap):
        self.noise_limit = cap**0.5


class Declared(mhrun.Metropolis):
    exact = "yes"


@pytest.mark.parametrize("method", [None, "mcmc", "parallel_tempering"])
def test_a_control_variate_of_a_method_that_reads_all_data_is_refused(method):
    """It would cost a mode search, and change nothing."""
    with pytest.raises(UserError, match="surrogate = 'taylor2' is a control variate of minibatches"):
        mhrun.sample(
            lambda theta, x: -0.5 * (x - theta[0]) ** 2,
            np.arange(9.0),
            method,
            start=[0.0],
            surrogate="taylor2",
            steps=9,
        )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Limited(-1.0), r"Limited.noise_limit = \(.*j\) must be a number or None"),
        (Limited(0.0), r"Limited.noise_limit = 0.0 must be positive"),
        (Declared(), r"Declared.exact = 'yes' must be true or false"),
    ],
)
def test_a_declaration_of_the_wrong_type_is_refused_at_once(rule, message):
    with pytest.raises(UserError, match=message):
        mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), rule)


def test_a_limit_of_noise_may_be_set_by_a_constructor():
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), Limited(4.0))
    assert kernel.rule.noise_limit_of(10.0) == 2.0


class Wide(mhrun.RandomWalk):
    def log_density(self, origin, to, controls):
        return -(to - origin.theta).abs()


class Flat(mhrun.RandomWalk):
    def sample(self, origin, controls, draws):
        return super().sample(origin, controls, draws)[:, 0]


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        (Wide(), r"Wide.log_density returns \(C,\), here \(4,\), not a tensor of shape \(4, 2\)"),
        (Flat(), r"Flat.sample returns \(C, D\), here \(4, 2\), not a tensor of shape \(4,\)"),
    ],
)
def test_a_proposal_of_the_wrong_shape_is_named(proposal, message):
    kernel = mhrun.MetropolisHastings(proposal, mhrun.Full(), mhrun.Metropolis())
    with pytest.raises(UserError, match=message):
        mhrun.sample(
            lambda t: -0.5 * (t**2).sum(), None, kernel, start=[0.0, 0.0], step_size=0.1, steps=9, chains=4
        )


def test_a_rule_that_returns_no_verdict_is_named():
    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Full(), Undecided())
    message = r"decide of Undecided must return a Verdict: return contest.to_verdict\(accepted\)"
    with pytest.raises(UserError, match=message):
        sampled(kernel=kernel)


_READS = r"log_lik \(test_mistakes_in_python.py, line \d+\) reads the value of a tensor .* use torch.where"


@pytest.mark.parametrize(
    ("log_lik", "message"),
    [
        (lambda theta, batch: batch.x @ theta, r"theta is float64 and x is not; write batch.x.double\(\)"),
        (lambda theta, batch: batch.x[:, 0] * theta[0].item(), _READS),
        (lambda theta, batch: batch.x[:, 0] if theta[0] > 0 else batch.x[:, 1], _READS),
        (lambda theta, batch: batch.x[:, 0] * np.exp(theta[0]), _READS),
        (lambda theta, batch: theta[0] * torch.randn(len(batch.x)), "draws random numbers"),
        (
            lambda theta, batch: batch.k @ theta,
            r"multiplies float64 and int64: theta is float64 and k is not; write batch.k.double\(\)",
        ),
        (
            lambda theta, batch: torch.distributions.Bernoulli(logits=theta[0]).log_prob(batch.b),
            r"subtracts with b, of type bool; write batch.b.double\(\)",
        ),
        (
            lambda theta, batch: batch.y.sub_(theta[0]),
            r"line \d+\) changes in place a tensor .*\. Data must not be changed",
        ),
        (
            lambda theta, batch: batch.y.sub_(1) * theta[0],
            r"line \d+\) changes the field y .*write y = batch.y - 1",
        ),
    ],
)
@pytest.mark.parametrize("proposal", [mhrun.RandomWalk, mhrun.LangevinProposal])
@pytest.mark.filterwarnings("ignore:__array_wrap__")
def test_the_usual_mistakes_of_a_log_likelihood_have_a_remedy(log_lik, message, proposal):
    kernel = mhrun.MetropolisHastings(proposal(), mhrun.Full(), mhrun.Metropolis())
    data = {
        "x": np.ones((5, 2), np.float32),
        "k": np.ones((5, 2), np.int64),
        "b": np.ones(5, bool),
        "y": np.ones(5),
    }
    with pytest.raises(UserError, match=message) as error:
        sampled(log_lik, data, kernel=kernel)
    assert "file a" not in str(error.value)


def test_a_parameter_that_is_not_there_is_located_in_the_users_function():
    def misspelt(theta, batch):
        return -0.5 * (batch.x[:, 0] - theta.mew) ** 2

    message = r"log_lik \(misspelt\) failed: .*no 'mew' here, but mu \(test_mistakes_in_python.py, line \d+\)"
    with pytest.raises(UserError, match=message):
        sampled(misspelt, {"x": np.ones((5, 1))}, start=None, parameters={"mu": "Normal(0, 1)"})


def test_the_constant_that_a_surrogate_needs_is_named():
    tests = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Thinned(), mhrun.SMH())
    for kernel, surrogate, message in (
        (mhrun.ZigZag(), "none", r"choose surrogate=taylor2 \(target.surrogate in a configuration"),
        (mhrun.ZigZag(), "taylor2", "remainders of surrogate=taylor2; .* give some: third="),
        (
            tests,
            "taylor2",
            "FunctionModel has none; a function of yours can give some: third= of mhrun.FunctionModel",
        ),
        (tests, "taylor1", "can give some: curvature="),
        (tests, "none", "can give some: lipschitz="),
    ):
        with pytest.raises(UserError, match=message):
            sampled(lambda theta, x: x * theta[0], np.ones(5), kernel=kernel, surrogate=surrogate)


def test_a_data_set_is_shown_without_its_numbers():
    data = mhrun.Dataset({"x": torch.zeros(3, 2), "y": torch.zeros(3)}, "mine")
    assert repr(data) == "Dataset(x (3, 2) float32, y (3,) float32): mine"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_has_a_reason(capsys):
    message = f"torch {torch.__version__} "
    message += "has no CUDA; install a build with CUDA" if torch.version.cuda is None else "finds no GPU"
    with pytest.raises(UserError) as error:
        sampled(device="cuda")
    assert message in str(error.value)
    assert run(["gmm_tied_means", "device=cuda", "scale=smoke"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_chains_that_begin_at_no_density_are_refused(value):
    """The first row of many is named, of the first chain that is not finite there."""

    def log_lik(theta, x):  # not finite at one of two starting points
        return torch.where((theta[0] > 0) & (x > 2040), value, 0.0) - (x - theta.sum()) ** 2

    kernel = mhrun.MetropolisHastings(mhrun.RandomWalk(), mhrun.Shared(m=5), mhrun.Barker())
    start = torch.zeros(2, 6)
    start[1, 0] = 1.25
    with pytest.raises(UserError) as error:
        mhrun.sample(log_lik, np.arange(3000.0), kernel, start=start, chains=2, step_size=1.0, steps=50)
    assert (
        f"1 of 2 chains begin where the log-likelihood is not finite: chain 1 has {value:g} in row 2,041 (counted from "
        "0) at theta[0] = 1.25, theta[1] = 0, theta[2] = 0, theta[3] = 0 and 2 more; "
    ) in str(error.value)


@pytest.mark.parametrize("unit", [1.0, 1e5])
def test_features_in_large_units_are_named_where_a_likelihood_overflows(unit):
    """A Poisson regression as a function, whose chains begin at draws from the prior; and one of another cause."""
    x = unit * np.random.default_rng(0).normal(3.0, 1.0, (50, 1))

    def log_lik(theta, rows):
        rate = (theta.a + rows.x @ theta.b).exp() + (0.0 if unit > 1 else torch.inf)
        return rows.y * rate.log() - rate

    parameters = {"a": "Normal(0, 1)", "b": {"shape": [1], "prior": "Normal(0, 1)", "dims": "feature"}}
    with pytest.raises(UserError) as error:
        mhrun.sample(log_lik, {"x": x, "y": np.full(50, 1e6)}, parameters=parameters, step_size="auto")
    assert ("x has values up to 5" in str(error.value)) == (unit > 1)
    assert ("e+05: standardise them, choose other starting points" in str(error.value)) == (unit > 1)


def test_an_infinite_outcome_is_named_and_so_is_a_prior_that_is_a_class():
    data = {"y": np.r_[np.inf, np.zeros(9)]}
    with pytest.raises(UserError, match="y has infinite values: leave out their rows"):
        mhrun.sample(lambda t, b: -0.5 * (b.y - t.a) ** 2, data, parameters={"a": "Normal(0, 1)"}, steps=50)
    with pytest.raises(UserError, match=r"Normal is a class; give a distribution, such as Normal\(\.\.\.\)"):
        mhrun.sample(lambda t, b: -(b.y**2), data, parameters={"a": torch.distributions.Normal}, steps=50)


@pytest.mark.slow
def test_a_prediction_that_is_no_tensor_is_named():
    trace = mhrun.sample(
        lambda theta: -0.5 * theta.a**2, None, parameters={"a": "Normal(0, 1)"}, steps=60, progress=False
    )
    with pytest.raises(UserError, match="must return a tensor, and returned a ndarray"):
        mhrun.predict(trace, lambda theta, rows: rows.x.numpy() * 2, {"x": torch.ones(4)})


def test_classes_as_categories_are_referred_to_their_codes():
    table = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": pd.Categorical(["a", "b", "a"])})
    with pytest.raises(UserError, match=r"their codes, y\.astype\('category'\)\.cat\.codes"):
        mhrun.Dataset.of(table)


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
        (
            {"kernel": mhrun.Metropolis()},
            r"give mhrun.MetropolisHastings\(proposal, pairing, Metropolis\(...\)\)",
        ),
        ({"folder": ""}, "folder = '' names no folder"),
        ({"dtype": "float32"}, "must be torch.float64 or torch.float32"),
        ({"steps": "100"}, "steps = '100' must be a whole number"),
        (
            {"temperature": mhrun.Fixed(step_size=2.0)},
            "temperature = Fixed is a schedule of step_size; give one whose quantities have temperature",
        ),
        (
            {"kernel": LADDER, "temperature": mhrun.Fixed(temperature=2.0)},
            "temperature = Fixed, but a ladder has fixed rungs; give a list of one number each",
        ),
        ({"temperature": "warm"}, "temperature = 'warm' must be a number"),
        ({"temperature": [1.0, 2.0]}, "2 values for 1 rung; give a number, or a kernel with a ladder"),
        ({"kernel": LADDER, "temperature": [1.0, 2.0, 4.0]}, "3 values for 2 rungs; give one for each"),
        ({"kernel": LADDER, "temperature": [2.0, 1.0]}, "must increase"),
        (
            {"kernel": LADDER},
            r"the 2 rungs of its ladder all have the temperature 1, .* the coldest first, such as \[1, 2\]",
        ),
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

    class Alone(mhrun.SGLD):
        def move(self, theta, grad, aux, controls, draws):
            return theta

    with pytest.raises(UserError, match=r"Alone\.move must return the next theta and aux, a pair"):
        sampled(dynamics=Alone())


def test_a_time_series_has_gradients_though_its_first_term_has_none(capsys):
    """The default kernel is the usual one, and what is wrong with the function is the minibatch."""

    def garch(theta, x):
        h = [x.new_tensor(1.0)]
        for last in x[:-1]:
            h.append(theta.omega + theta.alpha * last**2 + 0.5 * h[-1])
        h = torch.stack(h)
        return -0.5 * (h.log() + x**2 / h)

    parameters = {"omega": "HalfNormal(1.0)", "alpha": "Beta(1.0, 1.0)"}
    with pytest.raises(UserError, match="a function of the datum and theta"):
        mhrun.sample(garch, np.ones(50), parameters=parameters, steps=100, warmup=100)
    assert "without gradients" not in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mhrun.Blocks(m=10.5), "m = 10.5 must be a whole number, at least 1"),
        (lambda: mhrun.Thinned(gradient_m="10"), "gradient_m = '10' must be a whole number, at least 1"),
        (
            lambda: mhrun.MetropolisHastings(
                mhrun.RandomWalk(), mhrun.Growing(), mhrun.MHMinibatch(m=10, pilot=2.5)
            ),
            "MHMinibatch: pilot = 2.5 must be a whole number",
        ),
        (lambda: mhrun.Unadjusted(mhrun.Adam(n=2.5), m=10), "Adam: n = 2.5 must be a whole number"),
    ],
)
def test_a_whole_number_is_none_with_a_fraction_or_a_text(make, message):
    with pytest.raises(UserError, match=re.escape(message)):
        make()
