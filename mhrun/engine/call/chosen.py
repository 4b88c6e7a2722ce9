"""The method of a call of `mhrun.sample`: its kernel, surrogate, schedules and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mhrun.engine.assemble import check_kind
from mhrun.engine.call.settings import is_scalar, step_size_schedule, temperature_schedule
from mhrun.engine.defaults import default_counts, default_kernel, default_of, default_surrogate
from mhrun.engine.named_method import STEP_SIZE, NamedMethod, method
from mhrun.errors import Refusal
from mhrun.kernels import MetropolisHastings
from mhrun.numbers import whole_number
from mhrun.pairing.full import Full
from mhrun.parts import Kernel
from mhrun.schedules import Schedule
from mhrun.schedules.cosine import Cosine
from mhrun.schedules.plan import is_auto
from mhrun.schedules.tuned import Tuned
from mhrun.target import Target

_NO_SURROGATE, _POSTERIOR = "none", 1.0  # where a call gives no surrogate and no temperature


class Arguments(NamedTuple):
    """Arguments of `mhrun.sample` that a named or a default method fills in where they are not given."""

    surrogate: str | None
    temper: str
    step_size: float | str | Schedule
    acceptance: float | None
    temperature: float | Sequence[float] | Schedule | None
    chains: int | None
    warmup: int | None
    steps: int | None


class Chosen(NamedTuple):
    """The method of a call."""

    kernel: Kernel
    target: Target
    surrogate: str
    schedules: Mapping[str, Schedule]
    chains: int
    warmup: int
    steps: int
    reason: str  # why it is the default; empty if it was named


def choose(kernel: Any, arguments: Arguments, with_surrogate: Callable[..., Target]) -> Chosen:
    """Choose the method of a call: of a kernel, of a name of the command line, or the default.

    Args:
        kernel: as it was given.
        arguments: the others.
        with_surrogate: returns the target with a surrogate.

    Raises:
        UserError: no kernel and no name of a method, or invalid settings.
    """
    if isinstance(kernel, str):
        kernel = method(kernel)
    if isinstance(kernel, NamedMethod):
        return _named(kernel, arguments, with_surrogate)
    surrogate, name, reason = arguments.surrogate or _NO_SURROGATE, None, ""
    target = with_surrogate(surrogate=surrogate)
    if kernel is None:
        name, reason, target = default_of(target, arguments.surrogate)
        kernel = default_kernel(name, target)
        surrogate = default_surrogate(name) if arguments.surrogate is None else arguments.surrogate
    check_kind("kernel", kernel, Kernel, "sample: kernel")
    _check_surrogate(arguments.surrogate, kernel)
    step_size = step_size_schedule(arguments.step_size, arguments.acceptance, kernel)
    steps, warmup = _counts(arguments, name, target.dim, type(step_size))
    chains = _chains(arguments, kernel)
    temperature = temperature_schedule(_temperature(arguments), kernel.rungs, chains)
    schedules = {"temperature": temperature, STEP_SIZE: step_size}
    return Chosen(kernel, target, surrogate, schedules, chains, warmup, steps, reason)


def _named(named: NamedMethod, arguments: Arguments, with_surrogate: Callable[..., Target]) -> Chosen:
    """Return a method of the command line. Arguments of the call come before what its file has."""
    surrogate = named.surrogate if arguments.surrogate is None else arguments.surrogate
    target = with_surrogate(surrogate=surrogate)
    given_size = type(arguments.step_size) if isinstance(arguments.step_size, Schedule) else None
    size_schedule = given_size or named.schedule_class(STEP_SIZE)
    steps, warmup = _counts(arguments, named.name, target.dim, size_schedule)
    settings: dict[str, Any] = {"steps": steps, "warmup": warmup}
    settings |= {"data": {"n": target.n}, "target": {"temper": arguments.temper}}
    kernel = named.kernel(settings)
    _check_surrogate(arguments.surrogate, kernel)
    settings["chains"] = chains = _chains(arguments, kernel)
    given: dict[str, Schedule] = {}
    if not is_auto(arguments.step_size) or arguments.acceptance is not None:
        schedule = step_size_schedule(arguments.step_size, arguments.acceptance, kernel)
        # Of a method with cycles a number is the step size at their beginning; of one that tunes it, that of all steps.
        is_read = named.reads(STEP_SIZE) and not issubclass(named.schedule_class(STEP_SIZE), Tuned)
        if is_scalar(arguments.step_size) and arguments.acceptance is None and is_read:
            settings[STEP_SIZE] = float(arguments.step_size)
        else:
            given[STEP_SIZE] = schedule
    if arguments.temperature is not None:
        named.check_temperature()
    if arguments.temperature is not None or not named.has_schedule("temperature"):
        given["temperature"] = temperature_schedule(_temperature(arguments), kernel.rungs, chains)
    schedules = named.schedules(settings, given)
    return Chosen(kernel, target, surrogate, schedules, chains, warmup, steps, "")


def _check_surrogate(surrogate: str | None, kernel: Kernel) -> None:
    """Refuse a surrogate where it has no effect: with a kernel that reads all data.

    Raises:
        Refusal: a call gives one to such a kernel.
    """
    of_a_chain = kernel.of_a_chain
    # Not Firefly, whose bounds a surrogate is.
    reads_all = type(of_a_chain) is MetropolisHastings and isinstance(of_a_chain.pairing, Full)
    if surrogate not in (None, _NO_SURROGATE) and reads_all and isinstance(kernel.pairing, Full):
        raise Refusal(
            f"surrogate = {surrogate!r} is a control variate of minibatches, and this kernel reads all data at each "
            "step; leave it out, or choose a method with minibatches, such as smh2."
        )


def _counts(arguments: Arguments, name: str | None, dim: int, step_size: type) -> tuple[int, int]:
    """Return how many steps count, and how many come before them: none where cycles begin with exploration."""
    steps, warmup = default_counts(name, dim)
    warmup = 0 if issubclass(step_size, Cosine) else warmup
    return (
        steps if arguments.steps is None else whole_number("steps", arguments.steps),
        warmup if arguments.warmup is None else whole_number("warmup", arguments.warmup),
    )


def _temperature(arguments: Arguments) -> float | Sequence[float] | Schedule:
    return _POSTERIOR if arguments.temperature is None else arguments.temperature


def _chains(arguments: Arguments, kernel: Kernel) -> int:
    return 4 * kernel.rungs if arguments.chains is None else whole_number("chains", arguments.chains)
