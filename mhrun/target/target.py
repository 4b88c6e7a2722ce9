"""A target: a model on data at a temperature."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Protocol

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.data.transforms import Transforms
from mhrun.errors import Refusal, UserError
from mhrun.native import NativeModel, available, native_form
from mhrun.random import Draws, Purpose
from mhrun.target.all_data import AllData
from mhrun.target.bounded import BoundedTerms
from mhrun.target.fields import unfit
from mhrun.target.gradients import Gradients, likelihoods
from mhrun.target.precision import FP32, Precision, check_precision, lowered
from mhrun.target.quadratic import Quadratic, quadratic_part
from mhrun.target.surrogate import Surrogate
from mhrun.target.surrogates import surrogate_of
from mhrun.types import BUFFER, Difference, Evaluation, Model, Rows, State


class Source(Protocol):
    """Data whose number is known before they are loaded."""

    n: int

    def load(self) -> Dataset:
        """Return the data."""
        ...


class Target:
    """The target density at temperature T:

    - ``temper="posterior"``: (prior(theta) prod_i p(x_i | theta))^(1/T),
    - ``temper="likelihood"``: prior(theta) (prod_i p(x_i | theta))^(1/T).

    A target draws minibatches and evaluates the model. Each result contains its cost (`Evaluation.n_lik`). The
    temperature T is not stored here: it is one of the controls of each step, one value per chain.

    Args:
        model: log-prior and log-likelihood.
        data: the data; a source is loaded on first use.
        temper: which of the two densities above.
        replacement: draw minibatches with replacement (independent indices).
        common_batch: use one minibatch for all chains of a step. Wide rows are then gathered once, and many chains
            cost little more than one. The distribution of each chain is unchanged, but the chains are not independent.
        gradient_noise: variance of normal noise added to each coordinate of the gradients of a dynamics, which imitates
            minibatch noise on a density without data (Zhang et al. 2020, section 5.1).
        energy_noise: variance of normal noise added to the energy at each of the two points of a replica exchange
            (Luo et al. 2020, section 4.1).
        surrogate: control variate of log-likelihood differences, and of the gradients of a dynamics: none, or the
            Taylor polynomial of order 1 (``taylor1``) or 2 (``taylor2``) about the posterior mode, see `Surrogate`; or
            a lower bound of the log-likelihood that touches it there (``lower_bound``) or where the model chooses
            (``lower_bound_untuned``), see `LowerBound`, which the kernel `Firefly` needs.
        device: device of the computation.
        precision: format of the products of gradients: fp32, tf32 or bf16, see `Precision`.

    Raises:
        Refusal: an unknown value of `temper`, `surrogate` or `precision`, a negative variance, or a model without
            lower bounds.
    """  # noqa: D415

    def __init__(
        self,
        model: Model,
        data: Dataset | Source,
        *,
        temper: str = "posterior",
        replacement: bool = False,
        common_batch: bool = False,
        gradient_noise: float = 0.0,
        energy_noise: float = 0.0,
        surrogate: str = "none",
        device: torch.device | str = "cpu",
        precision: str = FP32,
    ) -> None:
        if temper not in ("posterior", "likelihood"):
            raise Refusal(f"temper = '{temper}' is unknown; choose posterior or likelihood.")
        if surrogate != "none" and getattr(data, "transforms", None) is not None:
            raise Refusal("a surrogate expands about fixed data: leave out the transforms of the data.")
        for name, noise in (("gradient_noise", gradient_noise), ("energy_noise", energy_noise)):
            if not noise >= 0:
                raise Refusal(f"{name} = {noise:g} is a variance; it must be at least 0.")
        self.model = model
        self.n = data.n  # number of data
        if self.n >= 2**31:  # the integer arithmetic of the index draws overflows
            raise Refusal(f"n = {self.n:,} data are too many; minibatches can be drawn from fewer than 2^31.")
        self._source = data
        self.temper = temper
        self.replacement = replacement
        self.common_batch = common_batch
        self.gradient_noise = gradient_noise
        self.energy_noise = energy_noise
        self.device = torch.device(device)
        check_precision(precision, self.device, model, surrogate)
        self.precision = Precision(precision)
        self._read = cache(self._loaded)  # which a copy shares
        self.surrogate = surrogate_of(surrogate, model, lambda: self.data)
        self._gradients = Gradients(model, precision, self.device)
        self._all = AllData(model, lambda: self.data, self._gradients, self.surrogate)
        plain = not common_batch and self.device.type == "cpu"
        self.bounded = BoundedTerms(model, lambda: self.data, self._all, self.surrogate, native=plain)

    @property
    def data(self) -> Dataset:
        """The data, on the device, loaded once.

        Raises:
            Refusal: they lack what the model needs.
            UserError: they cannot be loaded, or do not fit in memory.
        """
        return self._read()

    def _loaded(self) -> Dataset:
        try:
            loaded = self._source if isinstance(self._source, Dataset) else self._source.load()
            if reason := unfit(self.model, loaded):
                raise Refusal(reason)
            return loaded.to(self.device)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
                raise
            raise UserError(
                f"There is not enough memory for the n = {self.n:,} data; choose fewer, or keep them on disk "
                "(data=memmap, or data.storage=file if the data set has it)."
            ) from error

    @cached_property
    def quadratic(self) -> Quadratic:
        """What a Taylor surrogate and a normal prior know of the log density.

        Raises:
            UserError: the prior is not normal, or no mode was found.
        """
        assert isinstance(self.surrogate, Surrogate)
        return quadratic_part(self.model, self.surrogate)

    def with_ratio_in(self, precision: str) -> Target:
        """Return this target, on the same data, with the log-likelihoods of `evaluate` in another format."""
        if precision == self.precision.ratio:
            return self
        found = copy.copy(self)
        found.precision = self.precision._replace(ratio=precision)
        return found

    @property
    def source(self) -> Dataset | Source:
        """Where the data come from: a data set, or what loads it."""
        return self._source

    @property
    def dim(self) -> int:
        """The number of parameters D."""
        return self.model.dim

    @property
    def width(self) -> int:
        """The numbers of a point: D, and those of the model's buffers."""
        return getattr(self.model, "width", self.model.dim)

    @property
    def has_buffers(self) -> bool:
        """Whether the model has buffers beside theta, such as running statistics."""
        return self.width > self.dim

    def first_buffers(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the initial buffers of the chains at theta (C, D), for `State.aux`."""
        return self.model.first_buffers(theta) if self.has_buffers else {}  # type: ignore[attr-defined]

    def points(self, state: State) -> Tensor:
        """Return theta (C, D), or with buffers theta and the buffers after it (C, width)."""
        theta = state.evaluation.theta
        if not self.has_buffers:
            return theta
        names: Sequence[str] = self.model.buffer_names  # type: ignore[attr-defined]
        kept = (
            state.aux if BUFFER + names[0] in state.aux else self.first_buffers(theta)
        )  # a test changes none
        own = [kept[BUFFER + name].reshape(len(theta), -1).to(theta) for name in names]
        return torch.cat([theta, *own], 1)

    def prior_power(self, temperature: Tensor) -> Tensor:
        """Return the exponent of the prior at these temperatures (C,): 1/T if it is tempered, else 1."""
        return 1.0 / temperature if self.temper == "posterior" else torch.ones_like(temperature)

    def refuses_batch(self, m: int) -> str | None:
        """Return why a minibatch of m cannot be drawn, or None."""
        if m < 1:
            return f"m = {m} is not a valid minibatch size; choose 1 <= m <= n = {self.n}."
        if m > self.n and not self.replacement:
            return f"m = {m} is more than the n = {self.n} data; choose m <= n, or replacement=true."
        return None

    def batch(self, draws: Draws, m: int) -> Tensor:
        """Return the indices of a fresh minibatch, (C, m) or one for all chains (1, m)."""
        index = draws.index(self.n, m, replacement=self.replacement, common=self.common_batch)
        return self._transformed(index, draws)

    def pass_batch(self, draws: Draws, m: int) -> Tensor:
        """Return the indices of this step's piece (C, m) of a pass over all data in random order.

        A pass has n // m pieces and skips the remaining n mod m data.
        """
        return self._transformed(draws.piece(self.n, m), draws)

    def more(self, draws: Draws, start: int, stop: int, rows: Tensor) -> Tensor:
        """Return elements start..stop of a growing minibatch of chains `rows` (R,): indices (R, stop - start)."""
        index = draws.index(self.n, stop - start, replacement=False, start=start, rows=rows)
        return self._transformed(index, draws, start, rows)

    def _transformed(self, index: Tensor, draws: Draws, start: int = 0, rows: Tensor | None = None) -> Tensor:
        """Return row numbers with the transforms of this step, if the data have any; see `mhrun.data.transforms`."""
        if self.transforms is None:
            return index
        return self.transforms.index(index, draws, start, rows)

    @property
    def transforms(self) -> Transforms | None:
        """Augmentation and permuted labels of the data in minibatches, or None."""
        return getattr(self._source, "transforms", None)

    def prior(self, theta: Tensor) -> Evaluation:
        """Return the evaluation at theta (C, D) with the log-prior only; reads no data."""
        return Evaluation(theta, self.model.log_prior(theta).double())

    def _error(self, var: Tensor, m: int) -> Tensor:
        """Return the variance of a minibatch mean, var / m * error_share(m); 0 for all data, even if `var` is NaN."""
        share = self.error_share(m)
        return torch.zeros_like(var) if share == 0 else var / m * share

    def error_share(self, size: Tensor | int) -> Tensor | float:
        """Return the finite-population factor of a minibatch mean's variance: 1 - size/n without replacement, else 1.

        The variance of the mean is var / size times this factor. A factor of 0 makes the error 0. With a positive
        factor the error of a minibatch of one datum is NaN, because its sample variance is undefined.
        """
        if self.n == 1:  # all data, with or without replacement
            return 0.0
        return 1.0 if self.replacement else 1.0 - size / self.n

    def evaluate(
        self, theta: Tensor, index: Tensor, grad_temperature: Tensor | None = None, rows: Rows | None = None
    ) -> Evaluation:
        """Return the evaluation at theta (C, D) on the minibatch `index` (C or 1, m).

        Args:
            theta: the points.
            index: indices of the minibatch.
            grad_temperature: the temperature (C,) of a gradient from the same pass, see `gradient`; None for none.
            rows: the data at `index`, if already gathered.
        """
        m, grad = index.shape[-1], None
        rows = self.data.rows(index) if rows is None else rows
        if grad_temperature is None:
            log_lik = self._ratio_log_lik(theta, rows)
        else:
            log_lik, grad = self._gradients.log_lik_and_grad(theta, rows)
            if self.precision.ratio != self.precision.gradients:
                log_lik = self._ratio_log_lik(theta, rows)
            grad = self._scaled(grad, theta, grad_temperature)
        log_lik = likelihoods(log_lik)
        mean, var = _moments(log_lik)
        return self.prior(theta)._replace(
            log_lik_mean=mean,
            log_lik_var=var,
            batch=index,
            grad=grad,
            log_lik=log_lik,
            rows=rows,
            n_lik=m,
            n_grad=0 if grad_temperature is None else m,
        )

    def _ratio_log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the log-likelihoods (C, m) in the format of acceptance ratios."""
        if self.precision.ratio == FP32:
            return self.model.log_lik(theta, rows)
        with lowered(self.precision.ratio, self.device):
            return self.model.log_lik(theta, rows)

    def with_gradient(self, point: Evaluation, grad_temperature: Tensor | None) -> Evaluation:
        """Return the point with a gradient on the data of its evaluation, unless it has one or none is needed."""
        if grad_temperature is None or point.grad is not None:
            return point
        if point.batch is None:
            grad, size = self.gradient_full(point.theta, grad_temperature), self.n
        else:
            grad, size = self.gradient(point.theta, point.batch, grad_temperature), point.batch.shape[-1]
        return point._replace(grad=grad, n_grad=point.n_grad + size)

    def paired(self, origin: Evaluation, candidate: Evaluation) -> Difference:
        """Return the difference of two evaluations on one minibatch, from its per-datum terms."""
        assert origin.log_lik is not None
        assert candidate.log_lik is not None
        terms = candidate.log_lik.double() - origin.log_lik
        m = origin.log_lik.shape[-1]
        if self.surrogate is not None:
            assert origin.rows is not None
            terms = terms - self.surrogate.terms(candidate.theta, origin.rows)
            terms = terms + self.surrogate.terms(origin.theta, origin.rows)
        mean, var = _moments(terms)
        known, n_lik = self.known(origin.theta, candidate.theta), (self.per_term - 2) * m
        return Difference(mean, var, _sizes(m, mean), self._error(var, m), n_lik, known)

    def difference(self, origin: Tensor, candidate: Tensor, index: Tensor) -> Difference:
        """Return the difference log p(x | candidate) - log p(x | origin) on the minibatch `index` (C, m)."""
        m = index.shape[-1]
        if self.surrogate is not None:
            mean, var = _moments(self.terms(origin, candidate, index))
        else:
            rows = self.data.rows(index)
            found = likelihoods(self.model.log_lik(candidate, rows))
            mean, var = _moments(found - self.model.log_lik(origin, rows))
        known = self.known(origin, candidate)
        return Difference(mean, var, _sizes(m, mean), self._error(var, m), self.per_term * m, known)

    def terms(self, origin: Tensor, candidate: Tensor, index: Tensor) -> Tensor:
        """Return log p(x | candidate) - log p(x | origin) for each datum of `index` (R, k).

        With a surrogate: the difference of the remainders, see `known`.
        """
        return self._all.terms(origin, candidate, self.data.rows(index))

    def remainders(self, theta: Tensor, index: Tensor) -> Tensor:
        """Return the log-likelihoods l_i(theta) of the minibatch `index` (C, m), (C, m), float64.

        With a surrogate: those of the remainders, r_i(theta) = l_i(theta) - l_i(ref) - t_i(theta) + t_i(ref). Their sum
        over all data plus `Surrogate.total` is the log-likelihood up to a constant.
        """
        rows = self.data.rows(index)
        if self.surrogate is None:
            return likelihoods(self.model.log_lik(theta, rows)).double()
        about = self.surrogate.reference.theta.repeat(len(theta), 1)
        return self._all.terms(about, theta, rows)

    @property
    def per_remainder(self) -> int:
        """How many evaluations a remainder costs: one, and that of the expansion with a surrogate."""
        return 1 if self.surrogate is None else 2

    @property
    def per_term(self) -> int:
        """How many evaluations a term costs: at both points, and one of the expansion with a surrogate."""
        return 2 if self.surrogate is None else 3

    def known(self, origin: Tensor, candidate: Tensor) -> Tensor | None:
        """Return the mean over all data of the surrogate's part of the difference, (C,); None without a surrogate.

        The mean difference of the log-likelihoods is this plus the mean of the terms.
        """
        if self.surrogate is None:
            return None
        return (self.surrogate.total(candidate) - self.surrogate.total(origin)) / self.n

    def full_mean(self, origin: Tensor, candidate: Tensor) -> Tensor:
        """Return the mean of the terms over all data (C,)."""
        mean = (self.full_log_lik(candidate) - self.full_log_lik(origin)) / self.n
        known = self.known(origin, candidate)
        return mean if known is None else mean - known

    def full_moments(self, origin: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (divisor n) of the terms over all data, each (C,)."""
        return self._all.moments(origin, candidate)

    def full_largest(self, origin: Tensor, candidate: Tensor) -> Tensor:
        """Return the largest absolute term over all data (C,): exact, or the model's bound."""
        return self._all.largest(origin, candidate)

    def gap(self, origin: Evaluation, candidate: Evaluation, m: int) -> Difference:
        """Return the difference of two evaluations on independent minibatches of m, or on all data if m = n."""
        assert origin.log_lik_mean is not None
        assert origin.log_lik_var is not None
        assert candidate.log_lik_mean is not None
        assert candidate.log_lik_var is not None
        mean = candidate.log_lik_mean - origin.log_lik_mean
        var = candidate.log_lik_var + origin.log_lik_var
        return Difference(mean, var, _sizes(m, mean), self._error(var, m))

    def evaluate_full(self, theta: Tensor, grad_temperature: Tensor | None = None) -> Evaluation:
        """Return the evaluation at theta (C, D) on all data; `grad_temperature` as in `evaluate`."""
        if grad_temperature is None:
            total, grad = self.full_log_lik(theta), None
        elif self._all.in_one_pass(theta):
            total, grad = self._both(theta)
            grad = self._add_prior(grad, theta, grad_temperature)
        else:
            total, grad = self.full_log_lik(theta), self.gradient_full(theta, grad_temperature)
        mean = likelihoods(total / self.n)
        return self.prior(theta)._replace(
            log_lik_mean=mean,
            log_lik_var=torch.zeros_like(mean),
            grad=grad,
            n_lik=self.n,
            n_grad=0 if grad_temperature is None else self.n,
        )

    def full_log_lik(self, theta: Tensor) -> Tensor:
        """Return the log-likelihood of all data (C,), float64."""
        return self._all.log_lik(theta)

    def log_density(self, theta: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log of the tempered density at theta (C, D), up to a constant, from all data."""
        t = torch.as_tensor(temperature, dtype=theta.dtype, device=theta.device)
        return self.full_log_lik(theta) / t + self.prior_power(t) * self.model.log_prior(theta)

    def gradient(self, theta: Tensor, index: Tensor, temperature: Tensor) -> Tensor:
        """Return the full-data log-posterior gradient (C, D), estimated on the minibatch `index` (C or 1, m).

        If only the likelihood is tempered, the prior's gradient is multiplied by T. A dynamics with noise at
        temperature T then has the target as its small-step limit.
        """
        _, grad = self._gradients.log_lik_and_grad(theta, self.data.rows(index))
        return self._scaled(grad, theta[:, : self.dim], temperature)

    def reduced_gradient(self, theta: Tensor, index: Tensor, temperature: Tensor) -> Tensor:
        """Return `gradient` (C, D) with the surrogate as a control variate; the same without a surrogate."""
        return self.log_lik_and_reduced_gradient(theta, index, temperature)[1]

    def log_lik_and_reduced_gradient(
        self, theta: Tensor, index: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m) on the minibatch `index` (C or 1, m), and `reduced_gradient` (C, D).

        With remainders r_i = l_i - t_i the gradient is sum_all grad t_i + n mean_I grad r_i + that of the prior: the
        mean over minibatches is that of `gradient`, the variance is that of grad r_i.
        """
        rows = self.data.rows(index)
        log_lik, grad = self._gradients.log_lik_and_grad(theta, rows)
        if self.surrogate is not None:
            grad = grad - self.surrogate.gradient_error(theta, rows).to(grad)
        return log_lik, self._scaled(grad, theta[:, : self.dim], temperature)

    @property
    def per_gradient(self) -> int:
        """How many gradients a datum of `reduced_gradient` costs: one, and that of the expansion with a surrogate."""
        return 1 if self.surrogate is None else 2

    def train(
        self, theta: Tensor, index: Tensor, temperature: Tensor, buffers: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return `gradient` (C, D) in training mode, the log-likelihoods (C, m), and the buffers afterwards."""
        log_lik, grad, after = self._gradients.train(theta, buffers, self.data.rows(index))
        return self._scaled(grad, theta, temperature), log_lik, after

    def log_lik_and_grad(self, theta: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m) on the minibatch `index` (C, m), and the gradient (C, D) of their mean."""
        return self._gradients.log_lik_and_grad(theta, self.data.rows(index))

    def gradient_full(self, theta: Tensor, temperature: Tensor) -> Tensor:
        """Return the gradient (C, D) of the log posterior from all data, at n gradients a chain; see `gradient`."""
        _, grad = self._both(theta)
        return self._add_prior(grad, theta, temperature)

    def _both(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-likelihood of all data (C,) and its gradient (C, D)."""
        return self._all.value_and_grad(theta)

    def _scaled(self, grad: Tensor, theta: Tensor, temperature: Tensor) -> Tensor:
        """Return the gradient (C, D) of the log posterior from that of a minibatch's mean log-likelihood; in place."""
        factor = self.prior_power(temperature) * temperature
        return self._gradients.scaled_with_prior(grad, self.n, theta, factor)

    def _add_prior(self, grad: Tensor, theta: Tensor, temperature: Tensor) -> Tensor:
        """Return grad + T * prior_power(T) * (gradient of the log-prior), (C, D)."""
        return self._gradients.add_prior(grad, theta, self.prior_power(temperature) * temperature)

    def retempered(self, grad: Tensor, theta: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Return a gradient (C, D) computed for temperatures `before` (C,) as one for `after` (C,); may be in place."""
        if self.temper == "posterior":
            return grad
        return self._gradients.add_prior(grad, theta, after - before)

    def native(self, *, full: bool, plain: bool = False) -> NativeModel | None:
        """Return the model's pieces for a compiled CPU loop, or None.

        Args:
            full: whether the loop needs sums over all data.
            plain: whether it needs the pieces of the log-likelihood where there is a surrogate, which they do not use.
        """
        offered = native_form(self.model, "native", "log_prior", "log_lik")
        usable = not self.common_batch and self.transforms is None  # what a loop's own indices can be
        usable = usable and (plain or self.surrogate is None)
        if offered is None or not usable or self.device.type != "cpu" or not available():
            return None
        pieces: NativeModel = offered(self.data.fields, full=full)
        return pieces

    def add_gradient_noise(self, grad: Tensor, draws: Draws) -> Tensor:
        """Return the gradient (C, D) plus N(0, gradient_noise) noise in each coordinate; in place."""
        if not self.gradient_noise:
            return grad
        z = draws.normal(Purpose.GRADIENT, grad.shape[1], dtype=grad.dtype)
        return grad.add_(z, alpha=self.gradient_noise**0.5)

    def add_energy_noise(self, found: Difference, draws: Draws) -> Difference:
        """Return a difference of two energies, divided by n, plus N(0, energy_noise) noise on each energy."""
        variance = 2 * self.energy_noise / self.n**2
        z = draws.normal(Purpose.EXCHANGE, 1)[:, 0]
        return found._replace(mean=found.mean + variance**0.5 * z, error=found.error + variance)


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sample variance along the last axis, float64; the variance of a single value is NaN."""
    values = values.double()
    return values.mean(-1), values.var(-1) if values.shape[-1] > 1 else torch.full_like(
        values[..., 0], torch.nan
    )


def _sizes(m: int, like: Tensor) -> Tensor:
    return torch.full_like(like, m, dtype=torch.int64)
