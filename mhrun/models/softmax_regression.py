"""Multinomial logistic regression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.array_types import Float64Array
from mhrun.errors import Refusal
from mhrun.models.bounds import Distances, order_of, over_parts, remainder_slope, remainder_width
from mhrun.models.linear import fits_loops, predictor
from mhrun.models.naming import named
from mhrun.models.softmax_native import native_bounds, native_lower_bound, native_model
from mhrun.models.weights import Weights, checked_start_sd, precision_of
from mhrun.native import NativeBounds, NativeLowerBound, NativeModel
from mhrun.types import BOUND_KINDS, Bounds, DataShape, Field, Reference, Rows

# Of log softmax in its K logits: sup of |d^j| over unit vectors, the norm of a symmetric form being that on its
# diagonal. A unit vector's components differ by at most sqrt 2, a variance is at most range^2 / 4 and a third central
# moment at most range^3 / (6 sqrt 3).
_DERIVATIVES = (math.sqrt(2), 1 / 2, 2 * math.sqrt(2) / (6 * math.sqrt(3)))
_VALUES = 1 << 22  # most values in memory while norms are computed
_LOOPED = 256  # weights up to which compiled loops are used


class SoftmaxRegression(Weights):
    """P(y_i = k) = exp(x_i.w_k) / sum_j exp(x_i.w_j), k = 0..K-1; w_k ~ N(0, prior_variance I), or flat.

    theta holds the rows w_0, ..., w_{K-1} of the weights (K, features), D = K features. All K rows are parameters: a
    common shift of them leaves the likelihood unchanged, so that a flat prior is improper. Without an intercept; give
    x a constant column to have one. Fields: ``x`` (n, features), real, and ``y`` (n,), classes from 0. Computed in
    float64.

    Args:
        features: number of features; null in a configuration: the number of columns of x.
        classes: K; null in a configuration: that of the data.
        prior_variance: prior variance of each weight; flat if None.
        start_sd: standard deviation of the normal starting points.
        names: of the weights, in traces and reports, class by class; None: w[0,0], w[0,1] and so on.

    Raises:
        Refusal: an invalid setting.
    """

    bound_kinds: Sequence[str] = BOUND_KINDS

    def __init__(
        self,
        features: int,
        classes: int,
        prior_variance: float | None = 1.0,
        start_sd: float = 0.0,
        names: Sequence[str] | None = None,
    ) -> None:
        if features < 1 or classes < 2:
            raise Refusal(
                f"SoftmaxRegression needs features >= 1 and classes >= 2, not {features} and {classes}."
            )
        self.features, self.classes = features, classes
        self.dim = features * classes
        numbered = [f"w[{k},{d}]" for k in range(classes) for d in range(features)]
        self.names: Sequence[str] = numbered if names is None else named(names, self.dim)
        self.precision = precision_of(prior_variance, self)
        self.start_sd = checked_start_sd(start_sd, self)

    @classmethod
    def settings_of(cls, data: DataShape) -> dict[str, Any]:
        """Return the settings that follow from the data: numbers of columns and classes, and names of the weights."""
        columns, classes = data.columns, data.classes
        names = None
        if columns is not None and classes is not None:
            names = [f"{column}[{level}]" for level in classes for column in columns]
        count = None if classes is None else len(classes)
        return {"features": data.features, "classes": count, "names": names}

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n, features) and classes ``y`` (n,)."""
        return {
            "x": Field((self.features,), setting="model.features"),
            "y": Field((), "classes", self.classes, "model.classes"),
        }

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D), x (C or 1, m, features) and y (C or 1, m) -> (C, m)."""
        logits = self._logits(theta, rows)
        return self._of_class(logits, rows) - logits.logsumexp(-1)

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m), and the gradient (C, D) of their mean.

        Of the weights of class k it is the mean of (1 - p_ik) x_i where y_i = k, and of -p_ik x_i elsewhere.
        """
        x = rows["x"].double()
        logits = self._logits(theta, {"x": x})
        log_sum = logits.logsumexp(-1)
        share = (logits - log_sum[..., None]).exp_()
        y = rows["y"].long().expand(logits.shape[:2])[..., None]
        share.scatter_add_(-1, y, torch.full_like(logits[..., :1], -1.0))
        sums = torch.einsum("cmk,mf->ckf", share, x[0]) if len(x) == 1 else share.mT @ x
        grad = sums.reshape(len(theta), -1) / -x.shape[1]
        return self._of_class(logits, rows) - log_sum, grad.to(theta)

    def predict(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the log-probabilities of the classes, (C, m, K)."""
        return self._logits(theta, rows).log_softmax(-1)

    def simulate(self, theta: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Return new classes ``y`` (n,) for rows with ``x`` (n, features), at theta (D,)."""
        shares = self.predict(theta[None], {"x": rows["x"][None]})[0].exp()
        return {"y": torch.multinomial(shares, 1)[:, 0]}

    def taylor(self, theta: Tensor, reference: Tensor, rows: Rows, order: int) -> Tensor:
        """Return the Taylor polynomial of log_lik about the reference, without its constant, (C, m)."""
        share = self._logits(reference[None], rows).softmax(-1)  # (C or 1, m, K)
        step = self._logits(theta.double() - reference, rows)
        mean = (share * step).sum(-1)
        first = self._of_class(step, rows) - mean
        if order == 1:
            return first
        return first - 0.5 * (share * (step - mean[..., None]).square()).sum(-1)

    def native(self, data: Rows, *, full: bool) -> NativeModel | None:
        """Return the pieces of the compiled loops; None for many weights, of which products of matrices are faster."""
        if not self._loops(data):
            return None
        x, y = data["x"].numpy(), data["y"].numpy()
        return native_model(x, y, self.classes, self.precision, full=full)

    def native_bounds(self, data: Rows, kind: str, surrogate: Any) -> NativeBounds | None:
        """Return the pieces of the compiled loops on terms with bounds; None for many weights."""
        if not self._loops(data):
            return None
        expansion = np.zeros((1, 2, self.classes))
        if surrogate is not None:
            expansion = self._expansion(data, surrogate.reference.theta)
        x, y = data["x"].numpy(), data["y"].numpy()
        return native_bounds(x, y, self.classes, self.precision, order_of(kind), surrogate, expansion)

    def native_lower_bound(self, data: Rows, sums: Any, *, tuned: bool) -> NativeLowerBound | None:
        """Return the pieces of the compiled loop of Firefly Monte Carlo; None for many weights."""
        if not self._loops(data):
            return None
        anchor = sums.reference.theta if tuned else torch.zeros_like(sums.reference.theta)
        x, y = data["x"].numpy(), data["y"].numpy()
        return native_lower_bound(x, y, self.classes, self.precision, sums, self._expansion(data, anchor))

    def _loops(self, data: Rows) -> bool:
        return self.dim <= _LOOPED and fits_loops(data)

    def _expansion(self, data: Rows, theta: Tensor) -> Float64Array:
        """Return the logits of all data and their probabilities, (n, 2, K)."""

        def of_rows(rows: Rows) -> Tensor:
            logits = self._logits(theta[None], {"x": rows["x"][None]})[0]
            return torch.stack([logits, logits.softmax(-1)], 1)

        return over_parts(of_rows, data).numpy()

    def lower_bound(self, theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        """Return log B <= log_lik (C, m), quadratic in theta (Boehning 1992): with logits e and those of the anchor a,

            log B = e_y - logsumexp(a) - (e - a).softmax(a) - (|e - a|^2 - (sum of e - a)^2 / K) / 4.

        It touches at the anchor (D,), or at theta = 0 without one.
        """  # noqa: D415
        logits = self._logits(theta, rows)
        anchor_logits = torch.zeros_like(logits) if anchor is None else self._logits(anchor[None], rows)
        step = logits - anchor_logits
        bend = step.square().sum(-1) - step.sum(-1).square() / self.classes
        first = anchor_logits.logsumexp(-1) + (step * anchor_logits.softmax(-1)).sum(-1)
        return self._of_class(logits, rows) - first - 0.25 * bend

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds, see `mhrun.types.Bounds`; they hold everywhere."""
        order = order_of(kind)
        norms = over_parts(lambda rows: self._norms(rows["x"].double(), reference), data)
        weights = norms ** (order + 1) * _DERIVATIVES[order]
        distances = Distances(reference)
        return Bounds(weights, remainder_width(order, distances), remainder_slope(order, distances))

    def _norms(self, x: Tensor, reference: Reference | None) -> Tensor:
        """Return how fast the logits, less their mean, change in the reference's metric: spectral norms (n,)."""
        if reference is None or reference.root is None:
            return x.norm(dim=-1)
        k = self.classes
        root = reference.root.reshape(k, self.features, self.dim)
        root = root - root.mean(0)  # a common shift of the logits changes nothing
        norms = []
        for part in x.split(max(1, _VALUES // (k * self.dim))):
            moves = torch.einsum("nf,kfd->nkd", part, root)
            norms.append(torch.linalg.eigvalsh(moves @ moves.mT)[:, -1].clamp_min(0).sqrt())
        return torch.cat(norms)

    def _logits(self, theta: Tensor, rows: Rows) -> Tensor:
        x, weights = rows["x"].double(), theta.double().reshape(len(theta), self.classes, self.features)
        if len(x) == 1:
            flat = predictor(weights.reshape(-1, self.features), x)  # (C K, m)
            return flat.reshape(len(theta), self.classes, -1).mT
        return x @ weights.mT

    @staticmethod
    def _of_class(values: Tensor, rows: Rows) -> Tensor:
        """Return the values (C, m, K) of each datum's own class (C, m)."""
        y = rows["y"].long().expand(values.shape[0], values.shape[1])
        return values.gather(-1, y[..., None])[..., 0]
