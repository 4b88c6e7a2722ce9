"""A method that is ready to run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from mhrun.engine.cost import compiling_pays
from mhrun.engine.model_checks.properties import check_model
from mhrun.engine.model_checks.starting_density import check_start, rows_not_finite
from mhrun.engine.starts import Starts
from mhrun.errors import Refusal, UserError
from mhrun.kernels.stationary import describe_kind, kind_of, samples
from mhrun.models.module import ModuleModel
from mhrun.models.module_evaluation import COMPILED
from mhrun.monitors import Monitor
from mhrun.native import available
from mhrun.numbers import rounded
from mhrun.parts import Kernel
from mhrun.random import MANY, Draws, Streams, derive_key
from mhrun.schedules import Plan
from mhrun.store.identity import method_digest
from mhrun.store.netcdf import FIELDS, KIND, LAYERS, N_DATA, PILOT_FOUND, SEPARATE, TEMPER, TEMPERATURE, Shape
from mhrun.store.pilot_facts import PilotFacts
from mhrun.store.sharing import ANY_STEPS_DIGEST, DIGEST
from mhrun.target import Target
from mhrun.target.fields import fields_read
from mhrun.target.precision import FP32, TF32, exact_products
from mhrun.types import BUFFER, Model, State, prior_summary_of
from mhrun.types.capabilities import HasBuffers, batch_norms_of, offers

# Seconds that torch takes for an index without replacement, and from which the compiled generator pays.
_PLAIN_INDEX, _NUMBERS_PAY = 1.2e-7, 1.0
_CHECKED: WeakSet[Target] = WeakSet()  # whose module has a prior at a start: methods share a target
# Data on which starting points are evaluated before a run, and log-likelihoods of all chains together.
_TRIED, _TRIED_IN_ALL = 256, 1 << 20


@dataclass(frozen=True)
class Method:
    """A kernel on a target, with its schedules and its counts.

    Args:
        name: for messages, and the name of its random streams.
        kernel: how the chains move.
        target: the target density.
        plan: the schedules.
        shape: chains, steps and what is kept.
        seed: of all random numbers.
        dtype: of the state.
        starts: starting points; None for those of the model.
        monitor: computes metrics during the run.
        precondition: the scale of proposals and dynamics that a pilot finds: dense, diagonal, none; None: auto
            where the step size is open, else none.
        pilot: what a pilot found, for users; None without one.
    """

    name: str
    kernel: Kernel
    target: Target
    plan: Plan
    shape: Shape
    seed: int
    dtype: torch.dtype = torch.float64
    starts: Starts | None = None
    monitor: Monitor | None = None
    precondition: str | None = None
    pilot: PilotFacts | None = None

    def check(self) -> None:
        """Check that the parts are compatible.

        Raises:
            Refusal: they are not.
            UserError: the model does not return a log-prior for each chain.
        """
        self._check_kept_steps()
        self._check_ladder()
        if self.target.precision.gradients != FP32 and self.dtype != torch.float32:
            raise Refusal(
                f"precision = {self.target.precision.gradients} is for a state in float32, and dtype is "
                f"{str(self.dtype).removeprefix('torch.')}; choose dtype=float32, or precision=fp32."
            )
        self._check_evaluation()
        if reason := self.kernel.refuses(self.target) or self._refuses_buffers():
            raise Refusal(reason)
        if self.monitor is not None and (reason := self.monitor.refuses(self.target)):
            raise Refusal(f"monitor: {reason}")
        if self.kernel.needs_noise and self.plan.lowest()[1] == 0:
            raise Refusal(
                "its schedules set the noise temperature to 0, and its moves need noise; choose another schedule or "
                "another kernel."
            )
        if self.plan.adapts and not self.kernel.decides:
            raise Refusal(
                "a step size cannot be tuned to an acceptance rate: its steps have no acceptance test."
            )
        self._check_prior()

    def _check_ladder(self) -> None:
        """Check that the rungs of a ladder have different temperatures."""
        rungs = self.kernel.rungs
        if rungs == 1 or self.shape.chains % rungs:
            return
        temperature = self.plan.collected_controls.temperature.reshape(-1, rungs)
        if (temperature == temperature[:, :1]).all():
            at = rounded(float(temperature[0, 0]))
            example = ", ".join(str(2**rung) for rung in range(min(rungs, 4))) + ", ..." * (rungs > 4)
            raise Refusal(
                f"the {rungs} rungs of its ladder all have the temperature {at}, so that they gain nothing from one "
                f"another; give each its own, the coldest first, such as [{example}]."
            )

    def _check_evaluation(self) -> None:
        """Check that a loop that is to evaluate a module can."""
        model, device = self.target.model, self.target.device
        if not isinstance(model, ModuleModel) or model.evaluation != COMPILED:
            return
        if device.type != "cpu":
            raise Refusal(
                f"evaluation = compiled is for a CPU, and device = {device}; choose evaluation=auto."
            )

    def _check_kept_steps(self) -> None:
        """Check which steps the trace has."""
        shape = self.shape
        thin = shape.thin if isinstance(shape.thin, int) else 1
        for name, count in (("thin", thin), ("thin_stats", shape.stats_thin)):
            if count < 1:
                raise Refusal(f"{name} = {count} must be at least 1.")
        for name, interval in (("thin", thin), ("thin_stats", shape.stats_thin)):
            if shape.steps < interval:
                raise Refusal(f"{name} = {interval} keeps none of {shape.steps} steps.")
        if isinstance(shape.thin, tuple):
            steps = list(shape.thin)
            if not steps or steps != sorted(set(steps)) or not 1 <= steps[0] <= steps[-1] <= shape.total:
                raise Refusal(f"thin = {steps} must be increasing steps between 1 and {shape.total}.")

    def _check_prior(self) -> None:
        """Check that the starting points have a log-prior, and that it is finite."""
        with torch.no_grad():
            # All starting points may need much memory.
            only_one = self.starts is None and self.target.dim >= MANY
            # The prior of a module is normal or flat, and that of its first point like that of any other.
            is_module = only_one and isinstance(self.target.model, ModuleModel)
            if is_module and self.target in _CHECKED:
                return
            theta = self.first_points(1 if only_one else None)
            log_prior: Any = self.target.model.log_prior(theta)
        if not isinstance(log_prior, Tensor) or log_prior.shape != theta.shape[:1]:
            found = (
                tuple(log_prior.shape) if isinstance(log_prior, Tensor) else f"a {type(log_prior).__name__}"
            )
            raise UserError(
                f"log_prior of {type(self.target.model).__name__} must return a tensor (C,), here ({len(theta)},), and "
                f"returned {found}."
            )
        outside = ~log_prior.isfinite()
        if outside.any():
            raise Refusal(
                f"chain {int(outside.nonzero()[0])} starts where the prior is 0; choose another start."
            )
        if is_module:
            _CHECKED.add(self.target)

    def _refuses_buffers(self) -> str | None:
        """Return why a model whose likelihood depends on the rest of a minibatch cannot be tested, or None."""
        norms = batch_norms_of(self.target.model)
        if not norms or self.kernel.keeps_buffers:
            return None
        # A layer of a Sequential is a number
        where = f"layer {norms[0]}" if norms[0] else "the module itself"
        return (
            f"BatchNorm in training mode ({where}) makes a datum's likelihood depend on its minibatch, so that "
            f"{type(self.kernel).__name__} has no acceptance ratio; use GroupNorm or FRN, put the layer into "
            "evaluation mode, or choose a dynamics without a test."
        )

    def check_data(self) -> None:
        """Load the data, and evaluate the starting points on a few of them.

        Raises:
            Refusal: the data do not fit the model, or the density is not finite at a starting point.
            UserError: the data cannot be loaded, or the model does not return a log-likelihood for each datum.
        """
        data, model = self.target.data, self.target.model
        theta = self.first_points(1 if self.starts is None and self.target.dim >= MANY else None)
        count = max(1, min(data.n, _TRIED, _TRIED_IN_ALL // len(theta)))
        # In integers: in float32 the last of more than 2^24 rows would round to one beyond the end.
        places = torch.arange(count, device=data.device) * (data.n - 1) // max(1, count - 1)
        places = torch.cat((places, rows_not_finite(data.fields, len(theta)).to(data.device)))
        index, count = places[None], len(places)
        with torch.no_grad():
            log_lik: Any = model.log_lik(theta, data.rows(index))
        label = f"log_lik of {type(model).__name__}"
        if not isinstance(log_lik, Tensor):
            raise UserError(f"{label} must return a tensor (C, m), and returned a {type(log_lik).__name__}.")
        if tuple(log_lik.shape) != (len(theta), count) or not log_lik.is_floating_point():
            raise UserError(
                f"{label} must return floating-point numbers (C, m), here ({len(theta)}, {count}), and returned "
                f"{log_lik.dtype} {tuple(log_lik.shape)}."
            )
        check_start(self.target, theta, log_lik)
        if self.target.has_buffers and not self.kernel.keeps_buffers:
            buffers = self.target.first_buffers(theta)
            assert offers(model, HasBuffers)
            after = model.train(theta, buffers, data.rows(index))[2]
            changed = [name for name, value in buffers.items() if not torch.equal(value, after[name])]
            if changed:
                raise Refusal(
                    f"the module changes its buffer {changed[0].removeprefix(BUFFER)} in training mode, so that "
                    f"{type(self.kernel).__name__} has no acceptance ratio; put that layer into evaluation mode, or "
                    "choose a dynamics without a test."
                )

    @property
    def key(self) -> int:
        """The key of its random numbers."""
        return derive_key(self.seed, self.name)

    def first_state(self) -> State:
        """Return the state before the first step, whose evaluation is not counted.

        Raises:
            Refusal: the log-likelihood is not finite at a starting point, or a user's model contradicts itself there.
        """
        draws = Draws(self.streams(), 0)
        with torch.no_grad():
            state = self.kernel.start(self.target, self.first_points(), draws)
        if state.evaluation.log_lik_mean is not None:
            check_start(self.target, state.evaluation.theta, state.evaluation.log_lik_mean)
        takes_gradients = self.kernel.of_a_chain.takes_gradients
        check_model(self.target, self.first_points()[:1], takes_gradients=takes_gradients)
        return state

    @property
    def has_ratio(self) -> bool:
        """Whether its steps have acceptance ratios, of moves or of exchanges."""
        return self.kernel.decides or self.kernel.rungs > 1

    def exact_products(self) -> AbstractContextManager[Any]:
        """Return the context of its evaluations: TF32 off, and deterministic convolutions if it has ratios."""
        return exact_products(self.target.device, self.has_ratio)

    @property
    def arithmetic(self) -> str:
        """The formats of its numbers, in words for reports."""
        gradients, ratio = self.target.precision
        state = str(self.dtype).removeprefix("torch.")
        if gradients == FP32 and self.target.device.type == "cpu":
            return state
        words = {FP32: f"{state} without TF32", TF32: "float32 with TF32"}
        formats = [f"state in {state}", f"gradients in {words.get(gradients, 'bfloat16')}"]
        if self.has_ratio:
            formats.append(f"acceptance ratios in {words.get(ratio, 'bfloat16')}")
            if self.target.device.type != "cpu":
                formats.append("deterministic convolutions")
        return ", ".join(formats)

    @property
    def reads(self) -> int:
        """How many data all steps of all chains read, as far as it is known beforehand."""
        return self.shape.total * self.shape.chains * self.kernel.reads(self.target)

    def streams(self, chains: int | None = None, compiled: bool = True) -> Streams:
        """Return the random numbers of all chains or of the first few; `compiled`: whether they may be compiled."""
        device = self.target.device
        pays = compiling_pays(self) or self.target.dim >= MANY or self.reads * _PLAIN_INDEX > _NUMBERS_PAY
        compiled = compiled and device.type == "cpu" and pays and available()
        return Streams(self.key, self.shape.chains if chains is None else chains, device, compiled=compiled)

    def first_points(self, chains: int | None = None) -> Tensor:
        """Return the starting points (C, D) of all chains, or of the first few."""
        streams = self.streams(chains)
        start = self.target.model.init if self.starts is None else self.starts
        theta = start(streams.chains, Draws(streams, 0))
        return theta.to(device=self.target.device, dtype=self.dtype)


def prior_attribute(model: Model) -> dict[str, str]:
    """Return the prior of a model as an attribute of its traces; none if the model does not describe it."""
    summary = prior_summary_of(model)
    return {} if summary is None else {"prior": summary}


def model_attributes(target: Target) -> dict[str, str]:
    """Return what traces keep of a model: its prior, its layers, and the fields of the data that it reads, if known."""
    fields = fields_read(target.model, target.data)
    attributes = {} if fields is None else {FIELDS: " ".join(fields)}
    if isinstance(target.model, ModuleModel):
        attributes[LAYERS] = target.model.layers
    return prior_attribute(target.model) | attributes


def target_attributes(method: Method) -> dict[str, Any]:
    """Return what traces keep of how a method follows its target.

    They are its kind, T, what it acts on, the number of data, the share of gradients, and what a pilot found, as JSON.
    """
    sampled = samples(method.kernel, method.plan)
    return {
        KIND: describe_kind(sampled, kind_of(sampled, method.target.energy_noise)),
        TEMPERATURE: sampled.temperature,
        TEMPER: method.target.temper,
        N_DATA: method.target.n,
        SEPARATE: method.kernel.separate_gradients(),
    } | ({} if method.pilot is None else {PILOT_FOUND: json.dumps(method.pilot, sort_keys=True)})


def trace_attributes(config: Mapping[str, Any], run: str, method: Method, digest: str) -> dict[str, str]:
    """Return the attributes of a method's trace: experiment, method, digests of run and method, and of the model."""
    attributes = {
        "experiment": str(config["experiment"]),
        "method": method.name,
        "digest": run,
        DIGEST: digest,
        ANY_STEPS_DIGEST: method_digest(config, method.name, any_steps=True),
    }
    return attributes | model_attributes(method.target)
