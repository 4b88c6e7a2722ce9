"""The regressions that ``mhrun init`` fits to a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from mhrun.data.columns import CLASSES
from mhrun.data.dataset import Dataset
from mhrun.data.table_facts import features_of, weight_names
from mhrun.errors import UserError, nearest
from mhrun.numbers import is_number_text

_VARIANCE = 10.0  # of the prior of each weight of a built-in model
_NAMED = 4  # classes that a line names


class Fitted(NamedTuple):
    """A model of the columns of a table."""

    files: dict[str, str]  # path in the project -> text
    dim: int  # its parameters
    prior: str  # in words
    outcome: str  # in words


class RegressionTemplate(NamedTuple):
    """A kind of regression."""

    kind: str  # linear, logistic, softmax, Poisson or binomial
    table: Mapping[str, Any]  # how the table is read
    has_bounds: bool  # so that exact minibatch methods can run
    # Of name, target, data and the target's values
    fitted: Callable[[str, str, Dataset, Sequence[Any]], Fitted]


def regression_of(chosen: str | None, target: str, levels: Sequence[Any]) -> RegressionTemplate:
    """Return the regression that the user chose, or the one for the values of the target.

    Two values give a logistic regression, more categories a softmax regression, and numbers a linear one.

    Raises:
        UserError: there is no such regression, or the target does not fit.
    """
    binary = len(levels) == 2
    numbers = all(isinstance(level, int | float) for level in levels)
    name = chosen or ("logistic" if binary else "linear" if numbers else "softmax")
    if name not in REGRESSIONS:
        raise UserError(
            f"model={name} is unknown; choose {', '.join(REGRESSIONS)}.{nearest(name, REGRESSIONS)} Other models are "
            "yours to write: mhrun init DIR writes an example, a robust regression."
        )
    if name == "logistic" and not binary:
        raise UserError(f"model=logistic is for two values, and '{target}' has more.")
    if name == "softmax" and len(levels) > CLASSES:
        raise UserError(f"model=softmax is for at most {CLASSES} classes, and '{target}' has more values.")
    if name in ("linear", "poisson", "binomial") and not numbers:
        raise UserError(
            f"model={name} is for numbers, and '{target}' holds {' and '.join(map(repr, levels[:2]))}."
        )
    return REGRESSIONS[name]


def part_text(comments: Sequence[str], base: str, settings: Mapping[str, Any]) -> str:
    """Return the text of a part that begins from a part of mhrun's."""
    head = "".join(f"# {comment}\n" for comment in comments)
    return f"{head}defaults:\n  - {base}\n  - _self_\n{_block(settings)}"


class _Quoting(yaml.SafeDumper):
    """Quotes texts that a configuration reads as numbers, such as 1e3, which is a text to YAML."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if is_number_text(text) else None)


_Quoting.add_representer(str, _quoted)


def flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.dump(
        value,
        Dumper=_Quoting,
        default_flow_style=True,
        allow_unicode=True,
        sort_keys=False,
        width=float("inf"),
    )
    return text.removesuffix("...\n").strip()


def _block(settings: Mapping[str, Any], indent: str = "") -> str:
    """Return settings as YAML: mappings as blocks, lists in one line."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{flow(key)}:\n{_block(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{flow(key)}: {flow(value)}\n")
    return "".join(lines)


_SIZED = "It has a weight for each column of x, whatever the features of the data are."


def _built_in(name: str, base: str, comment: str, data: Dataset, outcome: str, **extra: Any) -> Fitted:
    """Return a regression of the package, with a weight for each column of x."""
    comments = [
        comment,
        _SIZED,
        "The prior of each weight is normal with mean 0 and variance prior_variance.",
    ]
    names = weight_names(data.facts)
    settings = {"prior_variance": _VARIANCE, **extra}
    return Fitted({place_of(name): part_text(comments, base, settings)}, len(names), _prior(name), outcome)


def place_of(name: str) -> str:
    """Return the place of a model's file in the project."""
    return f"conf/model/{name}.yaml"


def _prior(name: str) -> str:
    return f"each weight and the intercept Normal(0, sd {_VARIANCE**0.5:.2f}): wide; prior_variance in {place_of(name)}"


def _logistic(name: str, target: str, data: Dataset, levels: Sequence[Any]) -> Fitted:
    positive = data.facts["positive"]
    comment = f"P({target} = {positive!r}) = 1 / (1 + exp(-theta.x)); the first column of x is 1."
    outcome = f"{target} = {positive!r} against {next(v for v in levels if v != positive)!r}"
    return _built_in(name, "logistic", comment, data, outcome, start="zeros")


def _softmax(name: str, target: str, data: Dataset, _levels: Sequence[Any]) -> Fitted:
    classes, weights = [str(level) for level in data.facts["classes"]], weight_names(data.facts)
    comments = [
        f"P({target} = k) is proportional to exp(x.w_k); the first column of x is 1.",
        _SIZED,
        "The prior of each weight is normal with mean 0 and variance prior_variance. Differences of the weights of two",
        "classes are what the data determine; a common shift is known from the prior alone.",
    ]
    text = part_text(comments, "softmax_regression", {"prior_variance": _VARIANCE})
    prior = f"{_prior(name)}; the data determine differences between classes, the prior alone a common shift"
    class_names = ", ".join(map(repr, data.facts["classes"][:_NAMED])) + ", ..." * (len(classes) > _NAMED)
    dim = len(weights) * len(classes)
    return Fitted({place_of(name): text}, dim, prior, f"{target}, {len(classes)} classes ({class_names})")


def check_counts(kind: str, target: str, data: Dataset) -> None:
    """Refuse an outcome that is not what a Poisson or binomial regression is for.

    Raises:
        UserError: it has other numbers than counts, or more successes than trials.
    """
    if kind not in ("Poisson", "binomial"):
        return
    y, where = data.fields["y"], f"model={kind.lower()}"
    if bool((wrong := (y < 0) | (y != y.round())).any()):
        hint = ""
        if kind == "binomial" and bool(((y >= 0) & (y <= 1)).all()):
            hint = ". Multiply a proportion by the trials"
        raise UserError(
            f"{where} is for counts 0, 1, 2, ..., and '{target}' holds other numbers, such as {float(y[wrong][0]):g}"
            f"{hint}."
        )
    if kind == "binomial" and bool((above := y > data.fields["trials"]).any()):
        value, most = float(y[above][0]), float(data.fields["trials"][above][0])
        count, column = int(above.sum()), data.facts["trials"]
        raise UserError(
            f"{where}: '{target}' is {value:g} where the trials '{column}' are {most:g}, and above them in {count:,} "
            f"row{'s' * (count > 1)}."
        )


def successes_of(target: str, data: Dataset) -> str:
    """Return how many of the trials were successes, in words."""
    y, trials = data.fields["y"], data.fields["trials"]
    return f"{target} out of {data.facts['trials']} ({y.sum():,.0f} of {trials.sum():,.0f})"


def _poisson(name: str, target: str, data: Dataset, _levels: Sequence[Any]) -> Fitted:
    y = data.fields["y"]
    exposure = data.facts.get("exposure")
    rate = f"{exposure} * " * bool(exposure)
    comment = f"{target} ~ Poisson({rate}exp(x.theta)); the first column of x is 1. The variance is the mean."
    outcome = f"{target}, from {float(y.min()):g} to {float(y.max()):g}" + f", for each {exposure}" * bool(
        exposure
    )
    return _built_in(name, "poisson_regression", comment, data, outcome)


def _binomial(name: str, target: str, data: Dataset, _levels: Sequence[Any]) -> Fitted:
    column = data.facts["trials"]
    comment = f"{target} ~ Binomial({column}, 1 / (1 + exp(-x.theta))); the first column of x is 1."
    return _built_in(name, "binomial_regression", comment, data, successes_of(target, data))


def _linear(name: str, target: str, data: Dataset, _levels: Sequence[Any]) -> Fitted:
    features = features_of(data.facts)
    parameters = {
        "intercept": "Normal(0, 1)",
        "weights": {"prior": "Normal(0, 1)", "dims": {"feature": "x"}},
        "scale": "HalfNormal(1.0)",
    }
    functions = {part: f"{name}_model.{part}" for part in ("log_lik", "simulate")}
    functions["mean"] = f"{name}_model.mean_outcome"
    comments = [
        f"{target} = intercept + x.weights + scale * N(0, 1); {target} is standardised.",
        "feature: x, a weight for each column of x, with its name.",
    ]
    files = {
        f"{name}_model.py": _LINEAR,
        place_of(name): part_text(comments, "user_function", functions | {"parameters": parameters}),
    }
    prior = "intercept and weights Normal(0, 1), scale HalfNormal(1), for the standardised outcome"
    return Fitted(files, len(features) + 2, prior, target)


REGRESSIONS: Mapping[str, RegressionTemplate] = {
    "logistic": RegressionTemplate("logistic", {"outcome": "sign", "intercept": True}, True, _logistic),
    "linear": RegressionTemplate("linear", {"outcome": "number", "standardise_target": True}, False, _linear),
    "softmax": RegressionTemplate("softmax", {"outcome": "class", "intercept": True}, True, _softmax),
    "poisson": RegressionTemplate("Poisson", {"outcome": "number", "intercept": True}, True, _poisson),
    "binomial": RegressionTemplate("binomial", {"outcome": "number", "intercept": True}, True, _binomial),
}

_LINEAR = '''\
"""Linear regression with normal errors, whose scale is a parameter."""

from torch.distributions import Normal


def mean_outcome(theta, rows):
    """Return the mean of each outcome (m,), which run.predict averages over the draws."""
    return theta.intercept + rows.x @ theta.weights


def log_lik(theta, rows):
    """Return the log-likelihood of each datum (m,)."""
    return Normal(mean_outcome(theta, rows), theta.scale).log_prob(rows.y)


def simulate(theta, rows):
    """Return new outcomes for the same features."""
    return {"y": Normal(mean_outcome(theta, rows), theta.scale).sample()}
'''
