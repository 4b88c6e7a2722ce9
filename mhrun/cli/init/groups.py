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
from mhrun.names import group_name

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


class GroupEffects(NamedTuple):
    """The effects of the groups of a column on the intercept, and their standard deviation: two parameters."""

    column: str
    label: str  # that Python and traces can read
    levels: int
    is_centred: bool  # whether the parameters are the effects themselves

    @property
    def effects(self) -> str:
        """The name of the parameter of the effects."""
        return _parameters_of(self.label)[0]

    @property
    def sd(self) -> str:
        """The name of the parameter of their standard deviation."""
        return _parameters_of(self.label)[1]

    def parameters(self, spread: str) -> dict[str, Any]:
        """Return the parameters as a configuration has them, with a prior of the standard deviation."""
        prior = {} if self.is_centred else {"prior": "Normal(0, 1)"}
        return {self.sd: spread, self.effects: {"dims": {self.label: self.column}} | prior}

    @property
    def formula(self) -> str:
        """The term of the linear predictor in words."""
        return self.effects if self.is_centred else f"{self.sd} * {self.effects}"

    @property
    def term(self) -> str:
        """The term of the linear predictor in Python."""
        scaled = "" if self.is_centred else f"theta.{self.sd} * "
        return f"{scaled}theta.{self.effects}[rows[{json.dumps(self.column)}]]"

    @property
    def log_prior(self) -> str:
        """The log-density of the effects in Python, given their standard deviation."""
        return f"Normal(0.0, theta.{self.sd}).log_prob(theta.{self.effects}).sum()"


class Design(NamedTuple):
    """A multilevel regression of a table, from which its files are written."""

    kind: str
    likelihood: Likelihood
    target: str
    facts: Mapping[str, Any]  # of the table
    has_features: bool
    groups: Sequence[GroupEffects]
    form: str | None  # of all effects, as the user chose it

    @property
    def centred(self) -> list[GroupEffects]:
        """The columns whose effects are parameters themselves."""
        return [group for group in self.groups if group.is_centred]

    @property
    def normal(self) -> str:
        """The prior of intercept and weights."""
        return f"Normal(0, {self.likelihood.sd:g})"

    @property
    def value(self) -> str:
        """The positive value of the outcome, as an equation has it; nothing without one."""
        positive = self.facts.get("positive")
        return "" if positive is None else f" = {positive!r}"


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
    features, columns = features_of(data.facts), data.facts["groups"]
    groups = [
        GroupEffects(column, label, len(columns[column]), is_centred(form, kind, data, column))
        for column, label in zip(columns, _identifiers(columns), strict=True)
    ]
    design = Design(kind, _LIKELIHOODS[kind], target, data.facts, bool(features), groups, form)
    settings = _functions(design, f"{name}_model") | {"parameters": _parameters(design)}
    files = {
        f"{name}_model.py": _module(design),
        place_of(name): part_text(_comments(design), "user_function", settings),
    }
    dim = 1 + len(features) + sum(1 + group.levels for group in groups) + len(design.likelihood.extra)
    outcome = successes_of(target, data) if kind == "binomial" else f"{target}{design.value}"
    return Fitted(
        files,
        dim,
        f"{_priors(design)}; in {place_of(name)}",
        f"{outcome}, intercepts by {' and '.join(columns)}",
    )


def _parameters(design: Design) -> dict[str, Any]:
    """Return the parameters of the model as a configuration has them."""
    parameters: dict[str, Any] = {"intercept": design.normal}
    if design.has_features:
        parameters["weights"] = {"prior": design.normal, "dims": {"feature": "x"}}
    for group in design.groups:
        parameters |= group.parameters(design.likelihood.spread)
    return parameters | dict(design.likelihood.extra)


def _functions(design: Design, module: str) -> dict[str, str]:
    """Return the settings of the model that name its functions, and its family where it has one."""
    functions = {
        "log_lik": f"{module}.log_lik",
        "simulate": f"{module}.simulate",
        "mean": f"{module}.mean_outcome",
    }
    if design.centred:
        functions["log_prior"] = f"{module}.log_prior"
    if design.kind in ("Poisson", "binomial"):
        functions["family"] = design.kind.lower()
    return functions


def _module(design: Design) -> str:
    """Return the source of the model's functions."""
    likelihood = design.likelihood
    times = " * rows.exposure" if design.facts.get("exposure") else ""
    columns = " and of ".join(_in_docstring(group.column) for group in design.groups)
    terms = ["theta.intercept", *(group.term for group in design.groups)]
    terms += ["rows.x @ theta.weights"] * design.has_features
    module = _MODULE.format(
        title=f"{likelihood.title}, whose intercept differs between groups of {columns}.",
        imports=_imports(likelihood, bool(design.centred)),
        terms="\n        + ".join(terms),
        density=likelihood.density.format(exposure=times),
        draw=likelihood.draw.format(exposure=times),
    )
    module += _MEAN.format(what=_PREDICTED[design.kind], mean=likelihood.mean.format(exposure=times))
    if design.centred:
        module += _LOG_PRIOR.format(densities=" + ".join(group.log_prior for group in design.centred))
    return module


def _priors(design: Design) -> str:
    """Return the priors in words."""
    names = "intercept and weights" if design.has_features else "intercept"
    unit = ", for the standardised outcome" if design.kind == "linear" else ""
    return f"{names} {design.normal}, effects N(0, sd^2), sd {design.likelihood.spread}{unit}"


def _identifiers(columns: Iterable[str]) -> list[str]:
    """Return names that Python and traces can read for columns, each another, with those of their parameters."""
    found: list[str] = []
    taken = set(_TAKEN)
    for column in columns:
        name = group_name(column)
        number = 2
        while taken & {name, *_parameters_of(name)}:
            name, number = f"{group_name(column)}_group{number if number > 2 else ''}", number + 1
        found.append(name)
        taken |= {name, *_parameters_of(name)}
    return found


def _parameters_of(name: str) -> tuple[str, str]:
    """Return the names of the parameters of a column: its effects, and their standard deviation."""
    return f"{name}_effects", f"{name}_sd"


def _in_docstring(column: str) -> str:
    return column.replace("\\", "\\\\").replace('"', "'")


def _comments(design: Design) -> list[str]:
    """Return the comments in the file of the model: its equation, its dims, and the forms of the effects."""
    return [_equation(design), _SIZED, *_comments_on_forms(design)]


def _equation(design: Design) -> str:
    exposure = design.facts.get("exposure")
    terms = ["intercept", *(group.formula for group in design.groups)] + ["x.weights"] * design.has_features
    return design.likelihood.equation.format(
        target=design.target,
        value=design.value,
        mean=" + ".join(terms),
        rate=f"{exposure} * " if exposure else "",
        trials=design.facts.get("trials"),
    )


def _comments_on_forms(design: Design) -> list[str]:
    any_centred, all_centred = bool(design.centred), len(design.centred) == len(design.groups)
    standardised = "standardised (non-centred)."
    themselves = "parameters themselves (centred); log_prior has their density."
    if design.form is not None:
        return [f"Effects are {themselves if any_centred else standardised}"]
    lines, other_forms = list[str](), list[str]()
    if any_centred:
        lines.append(f"Effects of groups that differ clearly are {themselves}")
        other_forms.append(f"form={NONCENTRED}")
    if not all_centred:
        lines.append(f"Effects of groups that do not differ clearly are {standardised}")
        other_forms.append(f"form={CENTRED}")
    return [*lines, f"mhrun init writes the other form with {' or '.join(other_forms)}."]


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
