"""A model from Python functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from mhrun.errors import Refusal, UserError
from mhrun.models import autograd
from mhrun.models.bounds import BoundsFunction, Constant, bounds_from
from mhrun.models.dispersion import DRAWS, ROWS, posterior_dispersion_warnings
from mhrun.models.explained import called, explained, place_of, unvalidated
from mhrun.models.function_checks import check_arguments, check_mean
from mhrun.models.named_tensors import Named
from mhrun.models.naming import named
from mhrun.models.parameters import Parameters, start_values
from mhrun.models.recorded import Replays
from mhrun.models.returned import returned, tensor, unchanged
from mhrun.random import Draws, Purpose, derive_key
from mhrun.types import Bounds, Reference, Rows

PerDatum = Callable[[Any, Any], Tensor]


class FunctionModel:
    """A prior and a likelihood given as functions of one chain's parameters.

    With `parameters`, chains move in unconstrained coordinates u; the functions receive the constrained parameters
    x = T(u) by name, and the log-prior is sum log p(x) + log_prior(x) + log |dT/du| (see
    `mhrun.models.parameters.Parameters`).

    Args:
        log_lik: ``(theta, batch) -> (m,)``, the log-likelihood of each datum. `theta` is a tensor (D,), or the named
            parameters, ``theta.scale`` or ``theta["scale"]``. `batch` holds the rows of the minibatch: fields (m, ...)
            by name, ``batch.x`` or ``batch["x"]``, or one tensor if `single`.
        start: starting point, (D,) or one row per chain (C, D). With `parameters`: a number for all, or name -> a
            number or values, in the user's coordinates; parameters that are not given, and all if None, start at draws
            from their priors, and at u = 0 without a prior.
        log_prior: ``theta -> ()``, added to the declared priors; a density with respect to the parameters as they are
            received. None: 0.
        names: names of the parameters, without `parameters`.
        single: pass only the field ``x``, as a tensor.
        batched: the functions take all chains at once, theta (C, D) and rows (C or 1, m, ...), and
            return (C, m) and (C,). Otherwise they are vectorised by `torch.func.vmap`.
        parameters: name -> size, prior or settings, as `mhrun.models.parameters.Parameters` takes them.
        start_sd: standard deviation of normal noise added to the start in the unconstrained coordinates, independent
            for each chain.
        simulate: ``(theta, rows) -> fields``: new data given parameters, for simulation-based calibration; `rows` has
            the experiment's data, and the returned fields replace those of the same names.
        mean: ``(theta, rows) -> (m,)``: the mean of the outcome, which `mhrun.predict` averages over draws.
        family: the distribution of the outcome ``y`` given its `mean`: ``poisson``, counts, or ``binomial``, successes
            out of the field ``trials``. A run warns if their variance is well above that of the family. None: this is
            not judged.
        lipschitz: a bound on the norm of the gradient of each datum's log-likelihood in theta, everywhere, for exact
            minibatch tests: a number, or a function ``rows -> (n,)``. It is never guessed; a run stops if a term
            exceeds its bound. Parameters must be without constraints.
        curvature: likewise a bound on the spectral norm of the Hessian, for ``surrogate="taylor1"``.
        third: likewise a bound on the norm of the third derivative, for ``surrogate="taylor2"``.
        bounds: ``(data, kind, reference) -> Bounds`` instead, where the derivatives have no bound everywhere, see
            `mhrun.types.Bounds`. They are functions of theta as chains see it, in unconstrained coordinates.
        bound_kinds: the kinds that `bounds` covers.

    Raises:
        Refusal: invalid settings.
        UserError: a function fails or returns a wrong shape.
    """

    bound_kinds: Sequence[str] = ()
    family: Literal["poisson", "binomial"] | None = None
    _bounds: BoundsFunction | None = None

    def __init__(
        self,
        log_lik: PerDatum,
        start: Any = None,
        log_prior: Callable[[Any], Tensor] | None = None,
        names: Sequence[str] | None = None,
        single: bool = False,
        batched: bool = False,
        parameters: Mapping[str, Any] | Parameters | None = None,
        start_sd: float = 0.0,
        simulate: Callable[[Any, Any], Any] | None = None,
        mean: Callable[[Any, Any], Tensor] | None = None,
        family: Literal["poisson", "binomial"] | None = None,
        lipschitz: Constant | None = None,
        curvature: Constant | None = None,
        third: Constant | None = None,
        bounds: Callable[[Rows, str, Reference | None], Bounds] | None = None,
        bound_kinds: Sequence[str] = ("difference",),
    ) -> None:
        self.parameters: Parameters | None = None
        self.names: Sequence[str]
        if parameters is None:
            self.start: Any = _start_points(start)
            self.dim = self.start.shape[-1]
            self.names = named(names, self.dim)
        else:
            if names is not None or batched:
                raise Refusal("names and batched require theta as a tensor; parameters have their own names.")
            self.parameters = parameters if isinstance(parameters, Parameters) else Parameters(parameters)
            self.dim, self.names = self.parameters.dim, self.parameters.names
            self.start = {} if start is None else start_values(start, self.parameters)
            self.parameters.check(self.start)
        self.start_sd = float(start_sd)
        check_mean(mean, family)
        data = "a tensor" if single else "batch.x and other fields"
        for name, function in (("log_lik", log_lik), ("simulate", simulate), ("mean", mean)):
            if function is not None:
                check_arguments(name, function, "theta", "batch", hint=f": the data are one argument, {data}")
        if log_prior is not None:
            check_arguments("log_prior", log_prior, "theta")
        self.simulate, self.mean = simulate, mean
        if family is not None:  # else the attribute would change fingerprints, which folders of calls have
            self.family = family
        self._log_lik = log_lik
        self._log_prior = log_prior
        self._single = single
        self._batched = batched
        self._memo = Replays()
        constants = {"lipschitz": lipschitz, "curvature": curvature, "third": third}
        if bounds is None:
            bounds, bound_kinds = bounds_from(constants)
        elif given := [name for name, constant in constants.items() if constant is not None]:
            raise Refusal(f"bounds and {given[0]} both bound the terms; give one of them.")
        if bounds is not None:
            self._bounds, self.bound_kinds = bounds, tuple(bound_kinds)
        if any(constant is not None for constant in constants.values()) and not self._is_plain:
            raise Refusal("lipschitz, curvature and third are for parameters without constraints.")

    @property
    def _is_plain(self) -> bool:
        return self.parameters is None or self.parameters.is_plain

    def anew(self) -> FunctionModel:
        """Return the model without recordings of its functions, which hold the values that globals had."""
        model = copy.copy(self)
        model._memo = Replays()
        return model

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the given bounds, see `mhrun.types.Bounds`."""
        assert self._bounds is not None
        return self._bounds(data, kind, reference)

    @property
    def start_rows(self) -> int:
        """The number of chains that starting points were given for; 1: any number."""
        if self.parameters is None:
            return len(self.start) if self.start.dim() > 1 else 1
        shapes = self.parameters.shapes
        return max([1, *(len(v) for k, v in self.start.items() if v.dim() > len(shapes[k]))])

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D): as given, or drawn from the priors.

        Raises:
            UserError: starts are given for another number of chains.
        """
        start = self._starts(chains, draws).to(draws.device)
        return start + self.start_sd * draws.normal(Purpose.INIT, self.dim) if self.start_sd else start

    def refuses_simulation(self) -> str | None:
        """Return why parameters and data cannot be drawn from the model, or None."""
        if self.parameters is None:
            return "theta has no declared priors to draw from; name parameters with priors, such as HalfNormal(1.0)."
        if self.simulate is None:
            return (
                "the model does not say how data are drawn; give it simulate, the name of a function (theta, rows) -> "
                "new fields."
            )
        if flat := self.parameters.without_prior:
            names = ", ".join(flat)
            if self._log_prior is None:
                return f"{names} has no declared prior to draw from; give it one, such as Normal(0, 1)."
            return (
                f"{names} has no declared prior to draw from, and log_prior cannot be drawn from; declare the prior "
                "in parameters and leave it out of log_prior. Effects of groups that depend on a scale can be "
                "written as the scale times standard normal effects (non-centred)."
            )
        if self._log_prior is not None:
            return "log_prior cannot be drawn from; declare the priors in parameters instead."
        return None

    @property
    def prior_summary(self) -> str:
        """The prior in a line, for run metadata."""
        declared = "flat" if self.parameters is None else self.parameters.prior_summary
        if self._log_prior is None:
            return declared
        name = getattr(self._log_prior, "__name__", type(self._log_prior).__name__)
        return name if declared == "flat" else f"{declared}; and {name}"

    def replayable(self) -> bool:
        """Return whether its functions are operations on tensors alone: under `torch.func.vmap` they read no values."""
        return not self._batched

    def draw_prior(self, chains: int, key: int, *, strict: bool = False) -> Tensor:
        """Return independent draws of theta (C, D) from the declared priors; chain c's depends on key and c alone.

        Parameters without a prior, and those of which a thousand draws are outside of their constraint, are at u = 0.

        Raises:
            Refusal: if `strict`, there is such a parameter.
        """
        assert self.parameters is not None
        drawn: list[dict[str, Tensor]] = []
        with torch.random.fork_rng(devices=[]):
            for chain in range(chains):
                torch.manual_seed(derive_key(key, f"prior/{chain}") >> 1)
                drawn.append(self.parameters.sample(strict=strict))
        stacked = {name: torch.stack([draw[name] for draw in drawn]) for name in self.parameters.shapes}
        return self.parameters.theta(stacked, "a draw from the prior")

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,)."""
        return self._replayed(self._log_prior_of, theta, {})[0]

    def log_prior_autograd(self, theta: Tensor) -> Tensor | None:
        """Return the gradient (C, D) of the log-prior, or None if it is flat."""
        gradients = self._replayed(self._log_prior_grad_of, theta, {})
        return gradients[0] if gradients else None

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and rows (C or 1, m, ...) -> (C, m)."""
        return self._replayed(self._log_lik_of, theta, rows)[0]

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m) of rows (C or 1, m, ...), and the gradient (C, D) of their mean."""
        log_lik, grad = self._replayed(self._log_lik_and_grad_of, theta, rows)
        return log_lik, grad

    def applied(self, function: PerDatum, theta: Tensor, rows: Rows) -> Tensor:
        """Return another function of parameters and data, called as `log_lik` is, for each chain: (C, m, ...)."""
        if self._batched:
            return function(theta, rows["x"] if self._single else Named(rows))
        values = []
        for c, point in enumerate(theta):
            given = self._given(point[None])
            one = {name: value[0] for name, value in given.items()} if isinstance(given, dict) else given[0]
            fields = {name: field[c % len(field)] for name, field in rows.items()}
            with explained(called("the function", function), {"theta": point, **fields}):
                values.append(function(self._received(one), fields["x"] if self._single else Named(fields)))
        return torch.stack(values)

    @property
    def checks_fit(self) -> bool:
        """Whether `fit_warnings` checks anything."""
        return self.family is not None

    def fit_warnings(self, draws: Tensor, data: Rows) -> list[str]:
        """Return a line if counts vary more than the family allows about the posterior means of their means.

        Args:
            draws: of the posterior (K, P), the numbers of all named parameters or theta.
            data: fields (n, ...), of which ``y`` are the counts, and ``trials`` those of the family binomial.
        """
        fields = {name: field[:: -(-len(data["y"]) // ROWS)] for name, field in data.items()}
        trials = fields["trials"] if self.family == "binomial" else None
        return list(posterior_dispersion_warnings(fields["y"], self._means(draws, fields), trials))

    def _means(self, draws: Tensor, fields: Rows) -> Iterator[Tensor]:
        """Yield the outcome's mean (n,) at some of the draws (K, P), evenly spaced."""
        assert self.mean is not None
        rows, n = fields["x"] if self._single else Named(fields), len(fields["y"])
        with explained(called("mean", self.mean), fields):
            for draw in draws[:: -(-len(draws) // DRAWS)]:
                point = draw if self.parameters is None else Named(self.parameters.named(draw))
                yield returned(self.mean(point, rows)[None], (1, n), "mean")[0]

    def _replayed(
        self, function: Callable[[Tensor, Rows], Sequence[Tensor]], theta: Tensor, rows: Rows
    ) -> Sequence[Tensor]:
        if self._batched:  # without vmap, a function may read values
            return function(theta, rows)
        return self._memo(function, theta, rows)

    def _log_prior_of(self, theta: Tensor, rows: Rows) -> Sequence[Tensor]:
        declared = (
            theta.new_zeros(len(theta)) if self.parameters is None else self.parameters.log_prior(theta)
        )
        if self._log_prior is None:
            return (declared,)
        prior = self._log_prior
        with explained(called("log_prior", prior), {"theta": theta[0]}):
            if self._batched:
                value = prior(theta)
            else:
                what = f"{called('log_prior', prior)}{place_of(prior)}"
                value = torch.func.vmap(
                    lambda point: tensor(prior(self._received(point)), what, "one number")
                )(self._given(theta))
        return (declared + returned(value, (len(theta),), "log_prior"),)

    def _log_prior_grad_of(self, theta: Tensor, rows: Rows) -> Sequence[Tensor]:
        grad = autograd.log_prior_grad(lambda point: self._log_prior_of(point, rows)[0], theta)
        return () if grad is None else (grad,)

    def _log_lik_of(self, theta: Tensor, rows: Rows) -> Sequence[Tensor]:
        any_field = next(iter(rows.values()))
        shared = len(any_field) == 1
        arguments = {"theta": theta[0], **{name: field[0] for name, field in rows.items()}}
        what = called("log_lik", self._log_lik)
        with explained(what, arguments), unchanged(rows, f"{what}{place_of(self._log_lik)}"):
            if self._batched:
                value = self._log_lik(theta, rows["x"] if self._single else Named(rows))
            else:
                fields = {name: field[0] for name, field in rows.items()} if shared else dict(rows)
                value = torch.func.vmap(self._one, in_dims=(0, None if shared else 0))(
                    self._given(theta), fields
                )
        return (returned(value, (len(theta), any_field.shape[1]), "log_lik"),)

    def _log_lik_and_grad_of(self, theta: Tensor, rows: Rows) -> Sequence[Tensor]:
        return autograd.log_lik_and_grad(
            lambda point: self._log_lik_of(point, rows)[0],
            theta,
            None if self._batched else lambda: self._ignores_theta(theta, rows),
        )

    def _ignores_theta(self, theta: Tensor, rows: Rows) -> bool:
        """Return whether the log-likelihood depends on no parameter, as when only the prior is sampled.

        vmap follows every operation on theta, also those that gradients do not pass, such as detach, and refuses to
        return a result of any as one for all chains.
        """
        fields = {name: field[0] for name, field in rows.items()}
        try:
            with unvalidated():
                torch.func.vmap(self._one, in_dims=(0, None), out_dims=None)(self._given(theta), fields)
        except ValueError:
            return False
        return True

    def _one(self, theta: Any, fields: dict[str, Tensor]) -> Tensor:
        value = self._log_lik(self._received(theta), fields["x"] if self._single else Named(fields))
        return tensor(
            value, f"{called('log_lik', self._log_lik)}{place_of(self._log_lik)}", "one value per datum"
        )

    def log_lik_of_one(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the function's value at theta (1, D) and rows (1, m, ...), without vmap and with its own errors."""
        if self._batched:
            return self._log_lik(theta, rows["x"] if self._single else Named(rows))
        given = self._given(theta)
        one = {name: value[0] for name, value in given.items()} if isinstance(given, dict) else given[0]
        return self._one(one, {name: field[0] for name, field in rows.items()})

    def _given(self, theta: Tensor) -> Any:
        """Return what is vectorised over chains: theta, or the parameters by name."""
        return theta if self.parameters is None else self.parameters.values(theta)

    def _received(self, point: Any) -> Any:
        """Return one chain's parameters as functions receive them."""
        return point if self.parameters is None else Named(point)

    def _starts(self, chains: int, draws: Draws) -> Tensor:
        if self.parameters is None:
            rows = self.start if self.start.dim() > 1 else None
            if rows is not None and len(rows) != chains:
                raise UserError(
                    f"start has {len(rows)} rows for {chains} chains; give one row, or one per chain."
                )
            start: Tensor = self.start.repeat(chains, 1) if rows is None else rows
            return start
        drawn = self.parameters.values(self.draw_prior(chains, draws.streams.key))
        for name, value in self.start.items():
            per_chain = value.dim() > len(self.parameters.shapes[name])
            if per_chain and len(value) != chains:
                raise UserError(
                    f"start of {name} has {len(value)} rows for {chains} chains; give one for each."
                )
            drawn[name] = value if per_chain else value.expand(chains, *value.shape)
        return self.parameters.theta(drawn)


def _start_points(start: Any) -> Tensor:
    """Return starting points as a tensor (D,) or (C, D).

    Raises:
        Refusal: there are none, or they are no numbers.
    """
    if start is None:
        raise Refusal("a model needs start, where chains begin, or parameters, with their priors.")
    try:
        return torch.atleast_1d(torch.as_tensor(start, dtype=torch.float64))
    except (TypeError, ValueError):
        raise Refusal(
            f"start = {start!r} must be numbers, where chains begin; named parameters with their priors are "
            "given as parameters={...}, and functions by name: log_prior=..."
        ) from None
