"""The one door to the data: a model on data at a temperature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from mhrun.build import build, call
from mhrun.data import Dataset
from mhrun.data.files import look_in
from mhrun.errors import Refusal, UserError
from mhrun.native import NativeModel, available, native_form
from mhrun.random import Draws, Purpose
from mhrun.types import Difference, Evaluation, Model, Rows

_FULL_PASS = 1 << 22  # log-likelihoods held at once in a pass over all data
_VALUES = 1 << 27  # values of rows held at once in it, where rows are wide


class Source(Protocol):
    """Data that can say how many they are before they are loaded."""

    n: int

    def load(self) -> Dataset:
        """Return the data."""
        ...


class Target:
    """The density that the chains are after: at temperature T,

    - ``temper="posterior"``: (prior(theta) prod_i p(x_i | theta))^(1/T),
    - ``temper="likelihood"``: prior(theta) (prod_i p(x_i | theta))^(1/T).

    It draws minibatches, evaluates, and counts what it evaluates. The temperature itself is no part of
    it: it comes with the controls of each step, one per chain.

    Args:
        model: prior and log-likelihood.
        data: what the model is on; a source is loaded when its data are first asked for.
        temper: which of the two densities above.
        replacement: whether a minibatch is drawn with replacement (independent indices).
        common_batch: whether all chains of a step read one minibatch: wide rows are gathered once, and many
            chains cost little more than one. Each chain has the law that it has alone, but they are not
            independent of each other.
        gradient_noise: variance of normal noise that is added to each coordinate of the gradients of a dynamics, to
            try on a density what minibatches do on data (Zhang et al. 2020, section 5.1).
        energy_noise: variance of normal noise that is added to the energy at each of the two points of an exchange of
            replicas (Luo et al. 2020, section 4.1).
        device: where the work is done.

    Raises:
        Refusal: an unknown word for `temper`, or a negative variance.
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
        device: torch.device | str = "cpu",
    ) -> None:
        if temper not in ("posterior", "likelihood"):
            raise Refusal(f"temper = '{temper}' is unknown; choose posterior or likelihood.")
        for name, noise in (("gradient_noise", gradient_noise), ("energy_noise", energy_noise)):
            if not noise >= 0:
                raise Refusal(f"{name} = {noise:g} is a variance; it must be at least 0.")
        self.model = model
        self.n = data.n  # how many data there are
        if self.n >= 2**31:  # what the arithmetic of the index draws holds
            raise Refusal(f"n = {self.n:,} data are too many; minibatches can be drawn from fewer than 2^31.")
        self._source = data
        self.temper = temper
        self.replacement = replacement
        self.common_batch = common_batch
        self.gradient_noise = gradient_noise
        self.energy_noise = energy_noise
        self.device = torch.device(device)
        self._n_lik = 0
        self._n_grad = 0
        self._full: Callable[[Tensor], Tensor] | None = None
        self._nodes: list[tuple[Rows, Tensor]] | None = None
        self._largest: Callable[[Tensor, Tensor], Tensor] | None = None
        self._slope: Callable[[Tensor, Rows], tuple[Tensor, Tensor]] | None = None
        self._full_slope: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        self._gathered: tuple[Tensor, Rows] | None = None

    @cached_property
    def data(self) -> Dataset:
        """The data, on the device."""
        loaded = self._source if isinstance(self._source, Dataset) else self._source.load()
        return loaded.to(self.device)

    @property
    def dim(self) -> int:
        """How many parameters D."""
        return self.model.dim

    def spent(self) -> tuple[int, int]:
        """Return the log-likelihoods and gradients of single data evaluated per chain since the last call."""
        counts = self._n_lik, self._n_grad
        self._n_lik = self._n_grad = 0
        return counts

    def spend(self, n_lik: int, n_grad: int) -> None:
        """Count evaluations that were made, or put back what `spent` took."""
        self._n_lik += n_lik
        self._n_grad += n_grad

    def prior_power(self, temperature: Tensor) -> Tensor:
        """Return the power that the prior is raised to at these temperatures (C,)."""
        return 1.0 / temperature if self.temper == "posterior" else torch.ones_like(temperature)

    def refuses_batch(self, m: int) -> str | None:
        """Return why there can be no minibatch of m, or None."""
        if m < 1:
            return f"m = {m} is no minibatch size; choose 1 <= m <= n = {self.n}."
        if m > self.n and not self.replacement:
            return (
                f"m = {m} is more than the n = {self.n} data there are; choose m <= n, or replacement=true."
            )
        return None

    def batch(self, draws: Draws, m: int) -> Tensor:
        """Return the indices of a fresh minibatch, (C, m) or one for all chains (1, m)."""
        first = torch.zeros(1, dtype=torch.int64, device=self.device) if self.common_batch else None
        return draws.index(self.n, m, replacement=self.replacement, rows=first)

    def pass_batch(self, draws: Draws, m: int) -> Tensor:
        """Return the indices of this step's piece (C, m) of a pass over all data in random order.

        A pass has n // m pieces, and leaves out what is left over.
        """
        number, piece = divmod(draws.step - 1, self.n // m)
        rows = torch.arange(draws.chains, device=self.device)
        order = draws.streams.at(
            number + 1, ahead=1
        )  # one order for a whole pass; steps' own minibatches have use 0
        return order.index(self.n, m, replacement=False, use=1, start=piece * m, rows=rows)

    def more(self, draws: Draws, start: int, stop: int, rows: Tensor) -> Tensor:
        """Return the data start..stop of a growing minibatch of some chains (R,): indices (R, stop - start)."""
        return draws.index(self.n, stop - start, replacement=False, start=start, rows=rows)

    def prior(self, theta: Tensor) -> Evaluation:
        """Return the evaluation at theta (C, D) that needs no data."""
        return Evaluation(theta, self.model.log_prior(theta).double())

    def _error(self, var: Tensor, m: int) -> Tensor:
        """Return the variance of a mean over minibatches of m; 0 of all data, whatever one datum's variance is."""
        share = self.error_share(m)
        return torch.zeros_like(var) if share == 0 else var / m * share

    def error_share(self, size: Tensor | int) -> Tensor | float:
        """Return what is left of the variance of a minibatch's mean, var / size, at this size.

        Without replacement it falls to 0 as the minibatch becomes all data.
        """
        return 1.0 if self.replacement else 1.0 - size / self.n

    def evaluate(self, theta: Tensor, index: Tensor, slope: Tensor | None = None) -> Evaluation:
        """Return the evaluation at theta (C, D) on the minibatch `index` (C or 1, m).

        `slope`: the temperature (C,) for a gradient from the same pass, see `gradient`; None for none.
        """
        rows, grad = self._rows(index), None
        if slope is None:
            log_lik = self.model.log_lik(theta, rows)
        else:
            log_lik, grad = self._with_slope(theta, rows)
            grad = self._add_prior(grad.mul_(self.n), theta, slope)
            self._n_grad += index.shape[-1]
        log_lik = _likelihoods(log_lik)
        mean, var = _moments(log_lik)
        self._n_lik += index.shape[-1]
        return self.prior(theta)._replace(
            log_lik_mean=mean, log_lik_var=var, batch=index, grad=grad, log_lik=log_lik
        )

    def _rows(self, index: Tensor) -> Rows:
        """Return the data at `index`; those of the last index are kept, as two points are scored on them."""
        if self._gathered is None or self._gathered[0] is not index:
            self._gathered = index, self.data.rows(index)
        return self._gathered[1]

    def with_gradient(self, point: Evaluation, slope: Tensor | None) -> Evaluation:
        """Return the point with its gradient on the data that it was scored on, if one is wanted and not there."""
        if slope is None or point.grad is not None:
            return point
        if point.batch is None:
            return point._replace(grad=self.gradient_full(point.theta, slope))
        return point._replace(grad=self.gradient(point.theta, point.batch, slope))

    def paired(self, origin: Evaluation, candidate: Evaluation) -> Difference:
        """Return the difference of two evaluations on one minibatch, datum by datum."""
        assert origin.log_lik is not None
        assert candidate.log_lik is not None
        mean, var = _moments(candidate.log_lik.double() - origin.log_lik)
        m = origin.log_lik.shape[-1]
        return Difference(mean, var, _sizes(m, mean), self._error(var, m))

    def difference(self, origin: Tensor, candidate: Tensor, index: Tensor) -> Difference:
        """Return log p(x | candidate) - log p(x | origin) over the same minibatch `index` (C, m)."""
        rows = self.data.rows(index)
        found = _likelihoods(self.model.log_lik(candidate, rows))
        mean, var = _moments(found - self.model.log_lik(origin, rows))
        m = index.shape[-1]
        self._n_lik += 2 * m
        return Difference(mean, var, _sizes(m, mean), self._error(var, m))

    def terms(self, origin: Tensor, candidate: Tensor, index: Tensor) -> Tensor:
        """Return log p(x | candidate) - log p(x | origin) of each datum of `index` (R, k), uncounted."""
        rows = self.data.rows(index)
        return _likelihoods(self.model.log_lik(candidate, rows)).double() - self.model.log_lik(origin, rows)

    def full_moments(self, origin: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (divisor n) over all data of the terms, each (C,), uncounted."""
        one = torch.zeros(len(origin), dtype=torch.float64, device=origin.device)
        two = torch.zeros_like(one)
        for rows, weights in self._weighted(origin):
            found = _likelihoods(self.model.log_lik(candidate, rows)).double()
            terms = found - self.model.log_lik(origin, rows)
            one += (terms * weights).sum(-1)
            two += (terms.square() * weights).sum(-1)
        mean = one / self.n
        return mean, (two / self.n - mean.square()).clamp_min(0.0)

    def _weighted(self, theta: Tensor) -> Iterable[tuple[Rows, Tensor | float]]:
        """Return all data in parts with weights, or the few weighted nodes that a model offers for them."""
        if self._nodes is None:
            offered = native_form(self.model, "nodes", "log_lik")
            self._nodes = [offered(self.data.fields)] if offered else []
        return self._nodes or ((rows, 1.0) for rows in self._parts(theta))

    def full_largest(self, origin: Tensor, candidate: Tensor) -> Tensor:
        """Return the largest absolute term over all data (C,), uncounted; exact or the model's own bound."""
        if self._largest is None:
            offered = native_form(self.model, "bound", "log_lik")
            self._largest = offered(self.data.fields) if offered else self._largest_pass
        return self._largest(origin, candidate).double()

    def _largest_pass(self, origin: Tensor, candidate: Tensor) -> Tensor:
        found = torch.zeros(len(origin), dtype=torch.float64, device=origin.device)
        for rows in self._parts(origin):
            terms = _likelihoods(self.model.log_lik(candidate, rows)).double() - self.model.log_lik(
                origin, rows
            )
            found = torch.maximum(found, terms.abs().amax(-1))
        return found

    def gap(self, origin: Evaluation, candidate: Evaluation, m: int) -> Difference:
        """Return the difference of two evaluations, each on a minibatch of m, or on all data at m = n."""
        assert origin.log_lik_mean is not None
        assert origin.log_lik_var is not None
        assert candidate.log_lik_mean is not None
        assert candidate.log_lik_var is not None
        mean = candidate.log_lik_mean - origin.log_lik_mean
        var = candidate.log_lik_var + origin.log_lik_var
        return Difference(mean, var, _sizes(m, mean), self._error(var, m))

    def evaluate_full(self, theta: Tensor, slope: Tensor | None = None) -> Evaluation:
        """Return the evaluation at theta (C, D) on all data; `slope` as in `evaluate`."""
        self._n_lik += self.n
        if slope is None:
            total, grad = self.full_log_lik(theta), None
        elif native_form(self.model, "full_slope", "log_lik") is not None:  # both from one pass
            total, grad = self._both(theta)
            grad = self._add_prior(grad, theta, slope)
        else:
            total, grad = self.full_log_lik(theta), self.gradient_full(theta, slope)
        mean = _likelihoods(total / self.n)
        return self.prior(theta)._replace(log_lik_mean=mean, log_lik_var=torch.zeros_like(mean), grad=grad)

    def full_log_lik(self, theta: Tensor) -> Tensor:
        """Return the log-likelihood of all data (C,), float64, uncounted: for kernels use `evaluate_full`."""
        if self._full is None:
            offered = native_form(self.model, "full_log_lik", "log_lik")
            self._full = offered(self.data.fields) if offered else self._full_pass
        return self._full(theta.double())

    def log_density(self, theta: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the log of the tempered density at theta (C, D), up to a constant, from all data."""
        t = torch.as_tensor(temperature, dtype=theta.dtype, device=theta.device)
        return self.full_log_lik(theta) / t + self.prior_power(t) * self.model.log_prior(theta)

    def gradient(self, theta: Tensor, index: Tensor, temperature: Tensor) -> Tensor:
        """Return the estimated gradient (C, D) of the full-data log posterior from a minibatch (C, m).

        With a likelihood tempered alone, the prior's part is multiplied by T, so that a dynamics that
        injects noise at temperature T has the target as its limit.
        """
        _, grad = self._with_slope(theta, self.data.rows(index))
        self._n_grad += index.shape[-1]
        return self._add_prior(grad.mul_(self.n), theta, temperature)

    def gradient_full(self, theta: Tensor, temperature: Tensor) -> Tensor:
        """Return the gradient (C, D) of the log posterior on all data; see `gradient`."""
        _, grad = self._both(theta)
        return self._add_prior(grad, theta, temperature)

    def _both(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-likelihood of all data (C,), uncounted, and its gradient (C, D), counted."""
        if self._full_slope is None:
            offered = native_form(self.model, "full_slope", "log_lik")
            self._full_slope = offered(self.data.fields) if offered else self._slope_pass
        self._n_grad += self.n
        return self._full_slope(theta)

    def _slope_pass(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        total, grad = theta.new_zeros(len(theta)), torch.zeros_like(theta)
        for rows in self._parts(theta):
            log_lik, mean = self._with_slope(theta, rows)
            total += log_lik.sum(-1)
            grad += mean * log_lik.shape[-1]
        return total, grad

    def _with_slope(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m) and the gradient (C, D) of their mean, from one pass."""
        if self._slope is None:
            self._slope = native_form(self.model, "log_lik_and_grad", "log_lik") or self._by_autograd
        return self._slope(theta, rows)

    def _by_autograd(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = theta.detach().requires_grad_()
            log_lik = self.model.log_lik(point, rows)
            (grad,) = torch.autograd.grad(log_lik.mean(-1).sum(), point)
        return log_lik.detach(), grad.contiguous()  # autograd may return one number for many parameters

    def _add_prior(self, grad: Tensor, theta: Tensor, temperature: Tensor) -> Tensor:
        """Return grad + T power grad log prior, the power being that of `prior_power`."""
        factor = (self.prior_power(temperature) * temperature)[:, None].to(grad.dtype)
        offered = native_form(self.model, "log_prior_grad", "log_prior")
        if offered is not None:
            slope = offered(theta)
            return grad if slope is None else grad.addcmul_(slope, factor)
        with torch.enable_grad():
            point = theta.detach().requires_grad_()
            log_prior = self.model.log_prior(point)
            if not log_prior.requires_grad:  # flat
                return grad
            (slope,) = torch.autograd.grad(log_prior.sum(), point)
        return grad.add_(factor * slope)

    def native(self, *, full: bool) -> NativeModel | None:
        """Return the model's pieces for a fused loop on this machine's CPU, or None.

        `full`: whether sums over all data will be asked for.
        """
        offered = native_form(self.model, "native", "log_prior", "log_lik")
        if offered is None or self.common_batch or self.device.type != "cpu" or not available():
            return None
        pieces: NativeModel = offered(self.data.fields, full=full)
        return pieces

    def roughen(self, grad: Tensor, draws: Draws) -> Tensor:
        """Return a gradient (C, D) with the noise that this target adds to it, in place."""
        if not self.gradient_noise:
            return grad
        z = draws.normal(Purpose.GRADIENT, grad.shape[1], dtype=grad.dtype)
        return grad.add_(z, alpha=self.gradient_noise**0.5)

    def blur(self, found: Difference, draws: Draws) -> Difference:
        """Return a difference of two energies, in units of one datum, with the noise that this target adds to each."""
        variance = 2 * self.energy_noise / self.n**2
        z = draws.normal(Purpose.EXCHANGE, 1)[:, 0]
        return found._replace(mean=found.mean + variance**0.5 * z, error=found.error + variance)

    def _parts(self, theta: Tensor) -> Iterator[Rows]:
        """Yield all data in parts that leave room for the log-likelihoods of every chain."""
        width = max(value[0].numel() for value in self.data.fields.values())
        part = max(1, min(_FULL_PASS // len(theta), _VALUES // max(1, width)))
        for start in range(0, self.n, part):
            yield self.data.part(start, min(start + part, self.n))

    def _full_pass(self, theta: Tensor) -> Tensor:
        total = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        for rows in self._parts(theta):
            total += self.model.log_lik(theta, rows).sum(-1, dtype=torch.float64)
        return total


def target_of(config: Mapping[str, Any]) -> Target:
    """Return the target of a resolved configuration; its data are loaded when they are asked for.

    Raises:
        UserError: parts that are unknown or settings that have no meaning.
    """
    device = str(config["device"])
    if device != "cpu" and not (device.split(":")[0] == "cuda" and torch.cuda.is_available()):
        raise UserError(
            f"device = '{device}' is not here; choose cpu{' or cuda' * torch.cuda.is_available()}."
        )
    look_in((config.get("runtime") or {}).get("data_dir"))
    model = build(config["model"], "model")
    source = build(config["data"], "data")
    for name, part, has in (("model", model, "log_prior"), ("data", source, "n")):
        if not hasattr(part, has):
            raise UserError(f"{name}: {type(part).__name__} is no {name}; choose one of conf/{name}.")
    settings = {"model": model, "data": source, "device": device} | dict(config["target"])
    return call(Target, settings, "the target", "target")


def _likelihoods(values: Tensor) -> Tensor:
    """Return values with NaN for +infinity, which is no likelihood: every rule rejects NaN, and it is counted."""
    return values.masked_fill(values == torch.inf, torch.nan)


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sample variance along the last axis, float64; one value has no variance: NaN."""
    values = values.double()
    return values.mean(-1), values.var(-1) if values.shape[-1] > 1 else torch.full_like(
        values[..., 0], torch.nan
    )


def _sizes(m: int, like: Tensor) -> Tensor:
    return torch.full_like(like, m, dtype=torch.int64)
