"""A model defined by user functions that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from mhrun.build import trusted_object
from mhrun.errors import Refusal
from mhrun.models.function import FunctionModel
from mhrun.models.named_tensors import Named

__all__ = ["Named", "UserFunction"]


class UserFunction(FunctionModel):
    """A log-likelihood of named parameters with priors and constraints, vectorised over chains by `torch.func.vmap`.

    The functions use plain torch, including `torch.distributions`. Gradients are computed by automatic differentiation.
    Parameters are float64.

    Args:
        log_lik: the dotted name of a function ``(theta, rows) -> (m,)``, the log-likelihood of each datum. ``rows.x``,
            or ``rows["x"]``, is the field x of a minibatch (m, ...), and likewise for every field of the data.
        log_prior: the dotted name of a function ``theta -> ()``, added to the declared priors; None: 0.
        parameters: name -> size (1 for a number, k for a vector, [k, l] for a matrix), prior, such as
            ``HalfNormal(1.0)``, or a mapping of shape, prior and constraint, see
            `mhrun.models.parameters.Parameters`. The functions access them by name, ``theta.slopes`` or
            ``theta["slopes"]``, within their constraints.
        dim: D, instead of `parameters`: theta is then a tensor (D,).
        start: starting values: a number for all parameters, or name -> a number or a list; None: draws from the
            priors, and 0 in unconstrained coordinates for parameters without one.
        start_sd: standard deviation of normal noise added to the start in unconstrained coordinates, independent for
            each chain.
        simulate: the dotted name of a function ``(theta, rows) -> fields`` that draws new data, for
            ``mhrun check experiment=...``, and for `LoadedRun.predict` where there is no `mean`.
        mean: the dotted name of a function ``(theta, rows) -> (m,)``, the mean of the outcome, for `LoadedRun.predict`.
        family: the distribution of the outcome ``y`` given its `mean`: ``poisson``, counts, or ``binomial``, successes
            out of the field ``trials``. A run warns if their variance is well above that of the family. None: this is
            not judged.
        lipschitz: a bound on the norm of the gradient of each datum's log-likelihood in theta, everywhere: a number, or
            the dotted name of a function ``rows -> (n,)``. Exact minibatch tests need it. It is never guessed; a run
            stops if a term exceeds its bound. Parameters must be without constraints.
        curvature: likewise a bound on the spectral norm of the Hessian, for ``target.surrogate=taylor1``.
        third: likewise a bound on the norm of the third derivative, for ``target.surrogate=taylor2``.

    Raises:
        Refusal: invalid settings.
        UserError: a function that does not exist or is not trusted; or, when called, fails or does not return the
            log-likelihood of each datum.
    """

    def __init__(
        self,
        log_lik: str,
        log_prior: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        dim: int | None = None,
        start: Any = None,
        start_sd: float = 0.0,
        simulate: str | None = None,
        mean: str | None = None,
        family: Literal["poisson", "binomial"] | None = None,
        lipschitz: float | str | None = None,
        curvature: float | str | None = None,
        third: float | str | None = None,
    ) -> None:
        if not isinstance(log_lik, str):
            raise Refusal(
                "UserFunction is for configurations: log_lik is a dotted name; give a function to mhrun.FunctionModel."
            )
        if (parameters is None) == (dim is None):
            raise Refusal("UserFunction needs parameters (name: size, or name: prior), or dim instead.")
        if dim is not None:
            if dim < 1:
                raise Refusal("a model needs at least one parameter.")
            start = _points(0.0 if start is None else start, dim)
        constants: dict[str, Any] = {"lipschitz": lipschitz, "curvature": curvature, "third": third}
        super().__init__(
            trusted_object(log_lik, "log_lik"),
            start,
            None if log_prior is None else trusted_object(log_prior, "log_prior"),
            parameters=parameters,
            start_sd=start_sd,
            simulate=None if simulate is None else trusted_object(simulate, "simulate"),
            mean=None if mean is None else trusted_object(mean, "mean"),
            family=family,
            **{k: trusted_object(v, k) if isinstance(v, str) else v for k, v in constants.items()},
        )


def _points(setting: Any, dim: int) -> torch.Tensor:
    try:
        return torch.as_tensor(setting, dtype=torch.float64).expand(dim)
    except (TypeError, ValueError, RuntimeError) as error:
        raise Refusal(f"start = {setting!r} does not fit dim = {dim}.") from error
