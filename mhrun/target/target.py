"""A target: a model on data at a temperature."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.data.transforms import Transforms
from mhrun.errors import Refusal, UserError, check_choice
from mhrun.native import NativeModel, available, native_form
from mhrun.target.all_data import AllData
from mhrun.target.batches import Batches, moments
from mhrun.target.bounded import BoundedTerms
from mhrun.target.differences import Differences
from mhrun.target.fields import unfit
from mhrun.target.gradients import Gradients, likelihoods
from mhrun.target.posterior_gradients import PosteriorGradients, prior_power
from mhrun.target.precision import FP32, Precision, check_precision, lowered
from mhrun.target.quadratic import Quadratic, quadratic_part
from mhrun.target.source import HasTransforms, Source, load
from mhrun.target.surrogate import Surrogate
from mhrun.target.surrogates import surrogate_of
from mhrun.types import BUFFER, Evaluation, Model, Rows, State
from mhrun.types.capabilities import HasBuffers, offers

TEMPERS = ("posterior", "likelihood")
"""Values of the target's setting `temper`."""

# Methods of a model in whose place loops use its compiled form.
_IN_LOOPS = (
    *("log_prior", "log_prior_grad", "prior_precision", "log_lik", "log_lik_and_grad"),
    *("full_log_lik", "full_value_and_grad"),
)


class Target:
    """The target density at temperature T:

    - ``temper="posterior"``: (prior(theta) prod_i p(x_i | theta))^(1/T),
    - ``temper="likelihood"``: prior(theta) (prod_i p(x_i | theta))^(1/T).

    A target evaluates the model at points; each result contains its cost (`Evaluation.n_lik`). The temperature T is not
    stored here: it is one of the controls of each step, one value per chain. The rest is in its parts:

    - `batches`: draws minibatches, see `Batches`;
    - `differences`: differences of the log-likelihood between two points, see `Differences`;
    - `gradients`: gradients of the log posterior, see `PosteriorGradients`;
    - `bounded`: terms with bounds, see `BoundedTerms`.

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
        check_choice("temper", temper, TEMPERS)
        # of the data in minibatches
        self.transforms = data.transforms if isinstance(data, HasTransforms) else None
        if surrogate != "none" and self.transforms is not None:
            raise Refusal("a surrogate expands about fixed data: leave out the transforms of the data.")
        for name, noise in (("gradient_noise", gradient_noise), ("energy_noise", energy_noise)):
            if not noise >= 0:
                raise Refusal(f"{name} = {noise:g} is a variance; it must be at least 0.")
        self.model = model
        self._buffered = model if offers(model, HasBuffers) else None
        self.n = data.n  # number of data
        if self.n >= 2**31:  # the integer arithmetic of the index draws overflows
            raise Refusal(f"n = {self.n:,} data are too many; minibatches can be drawn from fewer than 2^31.")
        self.source = data  # a data set, or what loads it
        self.temper = temper
        self.replacement = replacement
        self.common_batch = common_batch
        self.gradient_noise = gradient_noise
        self.energy_noise = energy_noise
        self.device = torch.device(device)
        self._settings: dict[str, Any] = {
            "temper": temper,
            "replacement": replacement,
            "common_batch": common_batch,
            "gradient_noise": gradient_noise,
            "energy_noise": energy_noise,
            "surrogate": surrogate,
            "device": device,
            "precision": precision,
        }
        check_precision(precision, self.device, model, surrogate)
        self.precision = Precision(precision)
        self._read = cache(self._loaded)  # which a copy shares
        self.surrogate = surrogate_of(surrogate, model, self._read)
        self._model_gradients = Gradients(model, precision, self.device)
        self._all = AllData(model, self._read, self._model_gradients, self.surrogate)
        self._transform(self.transforms)
        self.gradients = PosteriorGradients(
            self._model_gradients, self._read, self._all, self.surrogate, temper=temper, noise=gradient_noise
        )
        plain = not common_batch and self.device.type == "cpu"
        self.bounded = BoundedTerms(model, self._read, self._all, self.surrogate, native=plain)

    def _transform(self, transforms: Transforms | None) -> None:
        """Make the parts that draw minibatches, with these transforms."""
        self.transforms = transforms
        self.batches = Batches(self.n, self.replacement, self.common_batch, transforms)
        self.differences = Differences(
            self.model, self._read, self._all, self.batches, self.surrogate, self.energy_noise
        )

    @property
    def data(self) -> Dataset:
        """The data, on the device, loaded once.

        Raises:
            Refusal: they lack what the model needs.
            UserError: they cannot be loaded, are not what the source says, or do not fit in memory.
        """
        return self._read()

    def _loaded(self) -> Dataset:
        try:
            loaded = self.source if isinstance(self.source, Dataset) else load(self.source)
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
        """The quadratic part of the log density, from a Taylor surrogate and a normal prior.

        Raises:
            UserError: the prior is not normal, or no mode was found.
        """
        assert isinstance(self.surrogate, Surrogate)
        return quadratic_part(self.model, self.surrogate)

    def use_reference(self, stored: dict[str, Tensor]) -> None:
        """Expand the surrogate about a stored reference, and drop what was computed from another one."""
        assert self.surrogate is not None
        self.surrogate.unpack(stored)
        self.__dict__.pop("quadratic", None)
        self.bounded.forget()

    def on(self, data: Dataset | Source) -> Target:
        """Return the target of the same model, with the same settings, on other data.

        Raises:
            Refusal: the settings do not allow these data.
        """
        return type(self)(self.model, data, **self._settings)

    def with_surrogate(self, surrogate: str) -> Target:
        """Return this target, on the same data, with another surrogate; itself if it has that one.

        Raises:
            Refusal: the model does not allow it.
        """
        if surrogate == self._settings["surrogate"]:
            return self
        return type(self)(self.model, self.data, **self._settings | {"surrogate": surrogate})

    def with_ratio_in(self, precision: str) -> Target:
        """Return this target, on the same data, with the log-likelihoods of `evaluate` in another format."""
        if precision == self.precision.ratio:
            return self
        target = copy.copy(self)
        target.precision = self.precision._replace(ratio=precision)
        return target

    def with_passes_of(self, m: int | None) -> Target:
        """Return this target, whose labels are permuted anew after n // m steps; itself if they are not permuted."""
        if m is None or self.transforms is None or not self.transforms.permuted:
            return self
        target = copy.copy(self)
        target._transform(replace(self.transforms, pass_size=m))
        return target

    @property
    def dim(self) -> int:
        """The number of parameters D."""
        return self.model.dim

    @property
    def width(self) -> int:
        """The numbers of a point: D, and those of the model's buffers."""
        return self.model.dim if self._buffered is None else self._buffered.width

    @property
    def has_buffers(self) -> bool:
        """Whether the model has buffers beside theta, such as running statistics."""
        return self._buffered is not None and self._buffered.width > self.dim

    def first_buffers(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the initial buffers of the chains at theta (C, D), for `State.aux`."""
        return self._buffered.first_buffers(theta) if self._buffered is not None and self.has_buffers else {}

    def points(self, state: State) -> Tensor:
        """Return theta (C, D), or with buffers theta and the buffers after it (C, width)."""
        theta = state.evaluation.theta
        if self._buffered is None or not self.has_buffers:
            return theta
        names = self._buffered.buffer_names
        # A test changes none
        buffers = state.aux if BUFFER + names[0] in state.aux else self.first_buffers(theta)
        flat_buffers = [buffers[BUFFER + name].reshape(len(theta), -1).to(theta) for name in names]
        return torch.cat([theta, *flat_buffers], 1)

    def prior_power(self, temperature: Tensor) -> Tensor:
        """Return the exponent of the prior at these temperatures (C,): 1/T if it is tempered, else 1."""
        return prior_power(self.temper, temperature)

    def value(self, log_lik_mean: Tensor, log_prior: Tensor, temperature: Tensor) -> Tensor:
        """Return f = n mean log p(x | theta) + T prior_power(T) log prior, (C,), whose gradient evaluations have.

        Divided by T it is the log of the tempered target.
        """
        return self.n * log_lik_mean + self.prior_power(temperature) * temperature * log_prior

    def prior(self, theta: Tensor) -> Evaluation:
        """Return the evaluation at theta (C, D) with the log-prior only; reads no data."""
        return Evaluation(theta, self.model.log_prior(theta).double())

    def evaluate(
        self,
        theta: Tensor,
        index: Tensor,
        grad_temperature: Tensor | None = None,
        rows: Rows | None = None,
        *,
        with_moments: bool = True,
    ) -> Evaluation:
        """Return the evaluation at theta (C, D) on the minibatch `index` (C or 1, m), perhaps with a gradient.

        Args:
            theta: the points.
            index: indices of the minibatch.
            grad_temperature: the temperature (C,) of a gradient from the same pass, or None for no gradient.
            rows: the data at `index`, if already gathered.
            with_moments: whether `log_lik_mean` and `log_lik_var` are wanted; else they are None.
        """
        m, grad = index.shape[-1], None
        rows = self.data.rows(index) if rows is None else rows
        if grad_temperature is None:
            log_lik = self._ratio_log_lik(theta, rows)
        else:
            log_lik, grad = self._model_gradients.log_lik_and_grad(theta, rows)
            if self.precision.ratio != self.precision.gradients:
                log_lik = self._ratio_log_lik(theta, rows)
            grad = self.gradients.scaled(grad, theta, grad_temperature)
        log_lik = likelihoods(log_lik)
        mean, var = moments(log_lik) if with_moments else (None, None)
        return self.prior(theta)._replace(
            log_lik_mean=mean,
            log_lik_var=var,
            batch=index,
            grad=grad,
            grad_temperature=self.gradients.kept_temperature(grad_temperature),
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

    def evaluate_full(self, theta: Tensor, grad_temperature: Tensor | None = None) -> Evaluation:
        """Return the evaluation at theta (C, D) on all data, with a gradient if `grad_temperature` (C,) is given.

        Args:
            theta: the points.
            grad_temperature: as in `evaluate`.
        """
        if grad_temperature is None:
            total, grad = self.full_log_lik(theta), None
        elif self._all.in_one_pass(theta):
            total, grad = self._all.value_and_grad(theta)
            grad = self.gradients.add_prior(grad, theta, grad_temperature)
        else:
            total, grad = self.full_log_lik(theta), self.gradients.full(theta, grad_temperature)
        mean = likelihoods(total / self.n)
        return self.prior(theta)._replace(
            log_lik_mean=mean,
            log_lik_var=torch.zeros_like(mean),
            grad=grad,
            grad_temperature=self.gradients.kept_temperature(grad_temperature),
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

    def refuses_surrogate(self, part: str) -> str | None:
        """Return that a part has no use for the surrogate that the target has, or None if it has none."""
        if self.surrogate is None:
            return None
        return (
            f"{part} makes no use of a surrogate, which is for two points on the same data; choose "
            "surrogate=none (target.surrogate in a configuration), or pairing shared, growing, thinned or blocks."
        )

    def native(self, *, full: bool, plain: bool = False) -> NativeModel | None:
        """Return the model's pieces for a compiled CPU loop, or None.

        Args:
            full: whether the loop needs sums over all data.
            plain: whether it needs the pieces of the log-likelihood where there is a surrogate, which they do not use.
        """
        offered = native_form(self.model, "native", *_IN_LOOPS)
        usable = not self.common_batch and self.transforms is None  # what a loop's own indices can be
        usable = usable and (plain or self.surrogate is None)
        if offered is None or not usable or self.device.type != "cpu" or not available():
            return None
        pieces: NativeModel | None = offered(self.data.fields, full=full)
        return pieces
