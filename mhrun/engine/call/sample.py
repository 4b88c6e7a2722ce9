"""Sampling from Python."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mhrun.engine.announced import announced
from mhrun.engine.call.call import Call
from mhrun.engine.call.chosen import Arguments, choose
from mhrun.engine.call.folder import begin_anew, check_call, digests_of, locked, recorded_steps
from mhrun.engine.call.progress import Progress
from mhrun.engine.call.settings import check_device
from mhrun.engine.call.trace_warnings import warn_of_trace
from mhrun.engine.call.until import Until, check_goes_on, until_of
from mhrun.engine.call.user_model import user_model
from mhrun.engine.longer import is_slower
from mhrun.engine.method import Method
from mhrun.engine.named_method import NamedMethod
from mhrun.engine.pilot import piloted
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Silent, Watcher
from mhrun.keywords import known_keywords
from mhrun.messages import say
from mhrun.monitors import Monitor
from mhrun.numbers import whole_number
from mhrun.parts import AUTO, Kernel
from mhrun.paths import expanded
from mhrun.schedules import Schedule
from mhrun.store.netcdf import open_trace
from mhrun.target import Target
from mhrun.target.precision import FP32
from mhrun.types import Model

if TYPE_CHECKING:
    import xarray as xr


_OTHER_NAMES = {
    name: f"It is called {own} here."
    for own, names in {
        "steps": ("draws", "num_samples", "n_samples", "iterations", "iter_sampling", "n_steps"),
        "warmup": ("tune", "num_warmup", "iter_warmup", "burn_in", "burnin"),
        "chains": ("num_chains", "n_chains", "nchains"),
        "seed": ("random_seed", "rng_key"),
        "start": ("init", "inits", "initvals", "init_params"),
        "acceptance": ("target_accept", "target_accept_prob", "adapt_delta"),
        "parameters": ("priors", "prior"),
        "step_size": ("lr", "learning_rate", "stepsize", "epsilon"),
    }.items()
    for name in names
} | dict.fromkeys(
    ("m", "batch_size", "minibatch"), 'It is a setting of a method: mhrun.method("mint", m=100).'
)


@known_keywords(_OTHER_NAMES)
def sample(
    model: Model | torch.nn.Module | Callable[..., torch.Tensor],
    data: Any,
    kernel: Kernel | NamedMethod | str | None = None,
    *,
    step_size: float | str | Schedule = AUTO,
    steps: int | None = None,
    ess: float | None = None,
    max_steps: int | None = None,
    warmup: int | None = None,
    chains: int | None = None,
    temperature: float | Sequence[float] | Schedule | None = None,
    start: Any = None,
    parameters: Mapping[str, Any] | None = None,
    log_prior: Callable[[Any], torch.Tensor] | None = None,
    acceptance: float | None = None,
    precondition: str | None = None,
    temper: str = "posterior",
    replacement: bool = False,
    surrogate: str | None = None,
    seed: int = 0,
    thin: int | None = 1,
    device: str = "cpu",
    executor: str = "auto",
    dtype: torch.dtype = torch.float64,
    precision: str = FP32,
    monitor: Monitor | None = None,
    threads: int | None = None,
    folder: str | Path | None = None,
    progress: bool = True,
) -> xr.DataTree:
    """Sample with any kernel and return the trace, as ArviZ and xarray open it.

    Args:
        model: a `Model`, or a function ``(theta, batch) -> (m,)`` that returns the log-likelihood of each datum.
            `theta` has the `parameters` by name, ``theta.scale``, or is a tensor (D,) without them; `batch` holds the
            rows of a minibatch, as the data were given: one tensor, or a mapping of them, ``batch.x`` or
            ``batch["x"]``. A torch module is a classifier with a flat prior (see `ModuleModel` for others); each chain
            begins with fresh parameters, drawn as its layers draw theirs, unless `start` says otherwise.
        data: an array, a mapping of arrays with one length, a pandas DataFrame (each column is a field), or a
            `Dataset`. None for a density without data: then the function is its logarithm, ``theta -> ()``, and a
            minibatch is m = 1.
        kernel: how the chains move; or the name of a method of the command line, ``"mhminibatch"``, or `mhrun.method`
            with settings, whose schedules and surrogate are taken too. None: the default for the number of data and of
            parameters, which is printed in one line (`mhrun.engine.defaults`).
        step_size: a number, a schedule that governs the step size, or "auto": a pilot finds it, with a scale for
            the moves, and the chains begin where the pilot leaves them. What it found is printed in one line and kept
            in the attribute ``pilot`` of the trace. Of a named method "auto" is its own schedule, and a number that of
            a constant one, or at the beginning of its cycles.
        steps: steps that count; every chain does them. None: 10,000, or 2,000 with HMC as the default or by name, or
            with MH-SS 1,000 for each parameter if those are more.
        ess: go on after `steps`, until R-hat is at most 1.01 and every coordinate has this effective sample size, bulk
            and tail (of a network, its predictions). The draws are those of a call with as many steps.
        max_steps: steps at which a call with `ess` ends in any case. None: 32 times `steps`.
        warmup: steps of burn-in before them. None: 1,000, or 500 with HMC as the default or by name, or none with a
            `Cosine` schedule, whose cycles begin with exploration.
        chains: how many chains C, run together. None: 4, or with a ladder 4 ladders, 4 times its rungs.
        temperature: T of the target, or a schedule of it; with `ReplicaExchange` a list, T of each rung, the coldest
            first. None: 1, or what a named method has.
        start: where chains begin: (D,) or (C, D), needed with a function without `parameters`; or name -> values, with
            them. Parameters that have no value start at draws from their priors. With a module: a trained one, its
            state dict, or a list of either, one for each chain.
        parameters: with a function, name -> prior (a `torch.distributions.Distribution` or its text, such as
            ``"HalfNormal(1.0)"``), size, or ``{"shape": ..., "prior": ..., "constraint": ...}``. Constraints follow
            from the priors' supports; see `mhrun.models.parameters.Parameters`.
        log_prior: ``theta -> ()``, with a function, added to the priors of `parameters`; flat if None.
        acceptance: tune the step size in burn-in to this acceptance rate, from `step_size` on. With
            ``step_size="auto"``, None is the most efficient rate of the kernel.
        precondition: the scale of proposals or of a dynamics: dense, diagonal or none. None: where the step
            size or the number of leapfrog steps is auto, dense for up to 50 parameters, and for up to 1,000 (200 of
            a network) diagonal, or dense if they are strongly correlated; else none.
        temper: what T acts on: posterior or likelihood.
        replacement: draw minibatches with replacement.
        surrogate: control variate of log-likelihood differences and gradients: none, taylor1, taylor2, lower_bound or
            lower_bound_untuned, see `mhrun.target.Target`. None: that of a named method or of the default, else none.
        seed: of all random numbers.
        thin: keep every thin-th step, or every thin-th draw that a schedule collects; None keeps no draws, for models
            with very many parameters.
        device: cpu or cuda.
        executor: auto (compiled loops for long runs), compiled, torch, or graph: the step as a CUDA graph
            on a GPU, else by torch.compile. A trace that has begun in `folder` keeps its executor.
        dtype: of the parameters; float32 for networks.
        precision: of the products of gradients, with dtype=torch.float32: fp32, tf32 or bf16, see
            `mhrun.target.Precision`.
        monitor: computes metrics while the chains run, such as `Predictive`: group ``monitor`` of the trace.
        threads: of torch and of compiled loops; None: all cores for compiled loops, and for torch one, or all where a
            long step is measured to be faster with them.
        folder: where to keep the trace; the same call resumes what is there, and one with more `steps` goes on from
            it; another is refused. None keeps it in memory.
        progress: print a line every ten seconds to stderr, with the steps that are done and the seconds that are left.

    Returns:
        A DataTree with the groups ``posterior`` and ``sample_stats`` (and ``warmup_...``). The posterior has a variable
        for each of the `parameters`, within its constraint, or ``theta``. Where a method has draws at
        some steps only, ``sample_stats["valid"]`` says which they are. With a ladder it holds all rungs:
        ``mhrun.rung(trace, 0)`` has the coldest.

    Raises:
        UserError: parts that do not fit together, invalid settings, or a folder that holds the
            trace of another call.
    """
    check_device(device, dtype)
    folder = expanded(folder) if folder else folder
    threads = None if threads is None else whole_number("threads", threads, least=1, other="None")
    inputs = user_model(model, data, start=start, log_prior=log_prior, parameters=parameters)
    with_surrogate = partial(
        Target,
        inputs.model,
        inputs.data,
        temper=temper,
        replacement=replacement,
        device=device,
        precision=precision,
    )
    arguments = Arguments(surrogate, temper, step_size, acceptance, temperature, chains, warmup, steps)
    with announced("the search for a mode, which decides on the default method,", _print):
        chosen = choose(kernel, arguments, with_surrogate)
    call = Call(
        model=inputs.model if isinstance(model, torch.nn.Module) else model,
        fields=inputs.data.fields,
        log_prior=log_prior,
        start=start,
        parameters=parameters,
        chosen=chosen,
        starts=inputs.starts(chosen.chains),
        thin=thin,
        seed=seed,
        dtype=dtype,
        monitor=monitor,
        precondition=precondition,
    )
    until = until_of(ess, max_steps, chosen.steps, thin)
    steps = chosen.steps
    if until is not None:
        check_goes_on(call.method(until.most), steps)
        steps = max(steps, 0 if folder is None else recorded_steps(folder))
    method = call.method(steps)
    method.check_data()
    if chosen.reason:
        _print(f"no kernel was named: {chosen.reason}.")
    settings = Settings(executor=executor, threads=threads)
    watcher = Progress(is_kept=folder is not None) if progress else Silent()
    with _place(folder) as place:
        digests = {} if folder is None else digests_of(call.identity(method))
        method, summary = _run(call, method, place, digests, until, settings, watcher)
        trace = open_trace(place)
        if folder is None:
            with trace as opened:
                trace = opened.load()
    warn_of_trace(method, summary, trace, until)
    if (rungs := chosen.kernel.rungs) > 1:  # whose means would be those of no target
        _print(
            f"the trace has the chains of all {rungs} rungs; mhrun.rung(trace) returns those of the coldest."
        )
    return trace


def _run(
    call: Call,
    method: Method,
    place: Path,
    digests: Mapping[str, str],
    until: Until | None,
    settings: Settings,
    watcher: Watcher,
) -> tuple[Method, dict[str, Any]]:
    """Run a method in a folder, with more steps where `until` needs them; return the last one and its summary."""
    attributes = call.attributes(method)
    while True:
        check_call(place, digests, method)
        method = piloted(method, place, _print)
        summary = run_method(method, place, settings, watcher, lambda: False, attributes)
        if until is None or (more := until.more(method, summary, place)) is None:
            return method, summary
        _print(more.in_words())
        method = call.method(more.steps)
        if is_slower(method, place, settings.executor):
            begin_anew(place)


@contextmanager
def _place(folder: str | Path | None) -> Iterator[Path]:
    """Yield the folder of a trace, which no other process writes to; for None a temporary one."""
    if folder is not None:
        with locked(folder) as place:
            try:
                yield place
            except KeyboardInterrupt:
                _print(
                    f"interrupted: what {folder} has of the run is kept, and the same call goes on from there"
                )
                raise
    else:
        with tempfile.TemporaryDirectory(prefix="mhrun-") as temporary:
            yield Path(temporary)


def _print(line: str) -> None:
    say(line.removeprefix("sample: "))
