"""The multilevel regressions that ``mhrun init`` fits to a table with groups: the intercept differs between them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mhrun.cli.init.forms import CENTRED, NONCENTRED, is_centred
from mhrun.cli.init.models import Fitted, part_text, place_of, successes_of
from mhrun.data.dataset import Dataset
from mhrun.data.table_facts import features_of
from mhrun.errors import UserError
from mhrun.names import identifier

# Dimensions of a trace, and parameters, besides those of groups.
_TAKEN = ("chain", "draw", "step", "parameter", "feature", "intercept", "weights", "scale")
# A comment in the file of the model
_SIZED = "After dims, x stands for the columns of x, and the name of a column of groups for its values."


class Likelihood(NamedTuple):
    """A likelihood of a linear predictor."""

    title: str
    equation: str  # of a datum, {target} and {mean} to be filled in
    distributions: str  # that the module imports
    density: str  # log-likelihood of the data from `mean`
    draw: str  # of new targets from `mean`
    mean: str  # of the outcome, from the linear predictor `mean`
    sd: float  # of the priors of intercept and weights
    extra: Mapping[str, str]  # further parameters
    spread: str  # prior of the standard deviation of a group's effects


_LIKELIHOODS = {
    "linear": Likelihood(
        "Linear regression with normal errors",
        "{target} = {mean} + scale * N(0, 1); {target} is standardised.",
        "Normal",
        "Normal(mean, theta.scale).log_prob(rows.y)",
        "Normal(mean, theta.scale).sample()",
        "mean",
        1.0,
        {"scale": "HalfNormal(1.0)"},
        "HalfNormal(1.0)",
    ),
    "logistic": Likelihood(
        "Logistic regression",
        "P({target}{value}) = 1 / (1 + exp(-({mean}))).",
        "Bernoulli, Normal",
        "logsigmoid(rows.y * mean)",
        "2 * Bernoulli(logits=mean).sample() - 1",
        "mean.sigmoid()",
        3.0,
        {},
        "HalfNormal(2.0)",
    ),
    "Poisson": Likelihood(
        "Poisson regression",
        "{target} ~ Poisson({rate}exp({mean})).",
        "Normal, Poisson",
        "Poisson(mean.exp(){exposure}).log_prob(rows.y)",
        "Poisson(mean.exp(){exposure}).sample()",
        "mean.exp(){exposure}",
        3.0,
        {},
        "HalfNormal(1.0)",
    ),
    "binomial": Likelihood(
        "Binomial regression",
        "{target} ~ Binomial({trials}, 1 / (1 + exp(-({mean})))).",
        "Binomial, Normal",
        "Binomial(rows.trials, logits=mean).log_prob(rows.y)",
        "Binomial(rows.trials, logits=mean).sample()",
        "rows.trials * mean.sigmoid()",
        3.0,
        {},
        "HalfNormal(2.0)",
    ),
}

_PREDICTED = {
    "linear": "the mean of the outcome",
    "logistic": "the probability of the positive outcome",
    "Poisson": "the expected count",
    "binomial": "the expected successes",
}


def multilevel(kind: str, name: str, target: str, data: Dataset, form: str | None) -> Fitted:
    """Return the regression of a kind whose intercept differs between groups.

    The effects of the groups of a column are N(0, sd^2) a priori, and sd is a parameter. They are written in the form
    that fits the data: themselves where groups differ clearly (centred), else standardised (non-centred).

    Args:
        kind: the kind of regression, of `mhrun.cli.init.models.RegressionTemplate`.
        name: of the model.
        target: the column of the outcome.
        data: the table as the regression reads it.
        form: centred or noncentred, for all columns; None: by the data of each.

    Raises:
        UserError: there is no multilevel regression of this kind, or no such form.
    """
    if kind not in _LIKELIHOODS:
        raise UserError(f"groups requires model={', '.join(map(str.lower, _LIKELIHOODS))}, not {kind}.")
    likelihood, features, groups = _LIKELIHOODS[kind], features_of(data.facts), data.facts["groups"]
    exposure = data.facts.get("exposure")
    normal = f"Normal(0, {likelihood.sd:g})"
    parameters: dict[str, Any] = {"intercept": normal}
    if features:
        parameters["weights"] = {"prior": normal, "dims": {"feature": "x"}}
    terms, formula, centred = ["theta.intercept"], ["intercept"], dict[str, str]()
    for column, label in zip(groups, _identifiers(groups), strict=True):
        effects, sd = _parameters_of(label)
        themselves = is_centred(form, kind, data, column)
        parameters[sd] = likelihood.spread
        parameters[effects] = {"dims": {label: column}} | ({} if themselves else {"prior": "Normal(0, 1)"})
        scaled = "" if themselves else f"theta.{sd} * "
        terms.append(f"{scaled}theta.{effects}[rows[{json.dumps(column)}]]")
        formula.append(f"{'' if themselves else f'{sd} * '}{effects}")
        if themselves:
            centred[effects] = sd
    terms += ["rows.x @ theta.weights"] * bool(features)
    formula += ["x.weights"] * bool(features)
    parameters |= likelihood.extra
    functions = {part: f"{name}_model.{part}" for part in ("log_lik", "simulate")}
    functions["mean"] = f"{name}_model.mean_outcome"
    functions |= {"log_prior": f"{name}_model.log_prior"} if centred else {}
    functions |= {"family": kind.lower()} if kind in ("Poisson", "binomial") else {}
    positive = data.facts.get("positive")
    value = "" if positive is None else f" = {positive!r}"
    equation = likelihood.equation.format(
        target=target,
        value=value,
        mean=" + ".join(formula),
        rate=f"{exposure} * " if exposure else "",
        trials=data.facts.get("trials"),
    )
    comments = [equation, _SIZED, *_comments(groups, centred, form)]
    times = " * rows.exposure" * bool(exposure)
    columns = " and of ".join(map(_in_docstring, groups))
    module = _MODULE.format(
        title=f"{likelihood.title}, whose intercept differs between groups of {columns}.",
        imports=_imports(likelihood, bool(centred)),
        terms="\n        + ".join(terms),
        density=likelihood.density.format(exposure=times),
        draw=likelihood.draw.format(exposure=times),
    )
    module += _MEAN.format(what=_PREDICTED[kind], mean=likelihood.mean.format(exposure=times))
    if centred:
        densities = " + ".join(
            f"Normal(0.0, theta.{sd}).log_prob(theta.{effects}).sum()" for effects, sd in centred.items()
        )
        module += _LOG_PRIOR.format(densities=densities)
    files = {
        f"{name}_model.py": module,
        place_of(name): part_text(comments, "user_function", functions | {"parameters": parameters}),
    }
    dim = 1 + len(features) + sum(1 + len(levels) for levels in groups.values()) + len(likelihood.extra)
    names = "intercept and weights" if features else "intercept"
    unit = ", for the standardised outcome" * (kind == "linear")
    prior = f"{names} {normal}, effects N(0, sd^2), sd {likelihood.spread}{unit}; in {place_of(name)}"
    outcome = successes_of(target, data) if kind == "binomial" else f"{target}{value}"
    return Fitted(files, dim, prior, f"{outcome}, intercepts by {' and '.join(groups)}")


def _identifiers(columns: Iterable[str]) -> list[str]:
    """Return names that Python and traces can read for columns, each another, with those of their parameters."""
    found: list[str] = []
    taken = set(_TAKEN)
    for column in columns:
        name = identifier(column, "group")
        number = 2
        while taken & {name, *_parameters_of(name)}:
            name, number = f"{identifier(column, 'group')}_group{number if number > 2 else ''}", number + 1
        found.append(name)
        taken |= {name, *_parameters_of(name)}
    return found


def _parameters_of(name: str) -> tuple[str, str]:
    """Return the names of the parameters of a column: its effects, and their standard deviation."""
    return f"{name}_effects", f"{name}_sd"


def _in_docstring(column: str) -> str:
    return column.replace("\\", "\\\\").replace('"', "'")


def _comments(groups: Mapping[str, Sequence[str]], centred: Mapping[str, str], form: str | None) -> list[str]:
    """Return comments on the forms of the effects."""
    density = "log_prior has their density."
    if form is not None:
        return [
            f"Effects are parameters themselves (centred); {density}"
            if centred
            else "Effects are standardised (non-centred)."
        ]
    lines = [f"Effects of groups that differ clearly are parameters themselves (centred); {density}"] * bool(
        centred
    )
    if len(centred) < len(groups):
        lines.append("Effects of groups that do not differ clearly are standardised (non-centred).")
    forms = [NONCENTRED] * bool(centred) + [CENTRED] * (len(centred) < len(groups))
    return [
        *lines,
        f"mhrun init writes the other form with {' or '.join(f'form={other}' for other in forms)}.",
    ]


def _imports(likelihood: Likelihood, has_prior: bool) -> str:
    names = set(likelihood.distributions.split(", "))
    if not has_prior and likelihood.title != _LIKELIHOODS["linear"].title:
        names -= {"Normal"}
    line = f"from torch.distributions import {', '.join(sorted(names))}"
    return (
        f"{line}\nfrom torch.nn.functional import logsigmoid" if "logsigmoid" in likelihood.density else line
    )


_MODULE = '''\
"""{title}"""

{imports}


def linear_predictor(theta, rows):
    """Return the linear predictor of each datum (m,)."""
    return (
        {terms}
    )


def log_lik(theta, rows):
    """Return the log-likelihood of each datum (m,)."""
    mean = linear_predictor(theta, rows)
    return {density}


def simulate(theta, rows):
    """Return new targets for the same features and groups."""
    mean = linear_predictor(theta, rows)
    return {{"y": {draw}}}
'''

_MEAN = '''

def mean_outcome(theta, rows):
    """Return {what} of each row (m,), which run.predict averages over the draws."""
    mean = linear_predictor(theta, rows)
    return {mean}
'''

_LOG_PRIOR = '''

def log_prior(theta):
    """Return the log-density of the effects, given their standard deviations."""
    return {densities}
'''
