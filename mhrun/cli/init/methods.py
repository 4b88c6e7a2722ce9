"""The methods that a new project compares, and the experiment that runs them."""

from __future__ import annotations

from collections.abc import Sequence

from mhrun.cli.init.models import flow

# The largest table of which a method on all data is the reference of a model with bounds: in rows, and in numbers, as
# HMC reads all of them thousands of times.
_MOST_FULL_ROWS = 200_000
_MOST_FULL_NUMBERS = 50 * _MOST_FULL_ROWS
_MOST_SGLD_ROWS = 20_000  # above which SGLD needs control variates: its effective draws fall as 1 / n
_MHMINIBATCH_ABOVE_ROWS = 200  # of fewer MHminibatch reads most: its first minibatch has 100

# Numbers of parameters.
_WALK_UP_TO_DIM = 10  # where a random walk is the reference
_HMC_UP_TO_DIM = 200  # where HMC is, whatever the table
# Up to which a pilot finds the length of HMC's trajectories: there HMC is the reference on up to _MOST_FULL_NUMBERS.
_PILOT_UP_TO_DIM = 1_000
# From which the bounds of SMH-2 and of zig-zag are too wide to save data: a draw of zig-zag of 30 parameters reads 52
# data, of 60 430, and of 90 2,150. MH-SS reads fewer.
_SMH2_BELOW_DIM, _ZIG_ZAG_BELOW_DIM = 50, 64

_QUICK_STEPS = 10_000  # at scale=quick
_MOST_QUICK_STEPS = 3 * _QUICK_STEPS
_WALK_STEPS_PER_DIM = 1_500  # so that four chains of a random walk converge (R-hat below 1.01)
# Steps of HMC, each a trajectory of gradients on all data, and its burn-in; of multilevel models.
_HMC_STEPS, _HMC_WARMUP = {"smoke": 100, "quick": 500, "long": 2000}, 100
_HMC_STEPS_OF_GROUPS, _HMC_WARMUP_OF_GROUPS = {"smoke": 100, "quick": 1000, "long": 4000}, 500


def compared_methods(has_bounds: bool, n: int, dim: int, width: int, *, may_walk: bool) -> list[str]:
    """Return the methods that are compared: a reference first, where there is one for so many rows.

    The reference is a random walk, which is the fastest for few parameters, or HMC: the walk's effective draws per
    step are at most 0.33 / dim (Roberts and Rosenthal 2001).
    SMH-2, MH-SS and zig-zag are exact and read few data, if parameters are not too many for their bounds; of many rows
    MH-SS, the default from Python, is the reference. The linear model is a function in torch without bounds, on which
    the tests that read most of the data take many times as long.
    """
    exact = ["smh2"] * (dim < _SMH2_BELOW_DIM)
    dynamics = "sgld" if n <= _MOST_SGLD_ROWS else "sgld_cv"
    if has_bounds and (n > _MOST_FULL_ROWS or n * dim > _MOST_FULL_NUMBERS):
        return ["mh_ss", *["zig_zag"] * (dim < _ZIG_ZAG_BELOW_DIM), dynamics]
    walks = may_walk and dim <= _WALK_UP_TO_DIM and (has_bounds or n <= _MOST_FULL_ROWS)
    hmc_pays = dim <= _HMC_UP_TO_DIM or (dim <= _PILOT_UP_TO_DIM and n * width <= _MOST_FULL_NUMBERS)
    reference = "mcmc" if walks else "hmc" if hmc_pays else "mala"
    minibatch = ["mint"] + ["mhminibatch"] * (n > _MHMINIBATCH_ABOVE_ROWS)
    return [reference, *exact, *minibatch, dynamics] if has_bounds else [reference, dynamics]


def is_exact(name: str, n: int) -> bool:
    """Return whether the target is the stationary distribution of a method on n data."""
    from mhrun.engine.named_method import method
    from mhrun.kernels.stationary import TARGET

    run = {"steps": 1, "warmup": 0, "chains": 4, "data": {"n": n}, "target": {"temper": "posterior"}}
    return method(name).kernel(run).stationary == TARGET


def describe(methods: Sequence[str], n: int) -> list[str]:
    """Return lines on the methods for n data: which of them are exact, and a hint if HMC would read very many data."""
    exact = [method for method in methods if is_exact(method, n)]
    approximate = [method for method in methods if method not in exact]
    sentence = f"{', '.join(exact)} (exact)" if exact else ""
    judged = f"{', '.join(approximate)} (approximate: judge them)"
    lines = [f"methods {'; '.join(part for part in (sentence, judged) if part)}"]
    if "hmc" in methods and n > _MOST_FULL_ROWS:
        lines.append(
            "        hmc reads all data: --dry-run says how long it takes, and '~methods.hmc' leaves it out"
        )
    return lines


def quick_steps(dim: int, *, has_bounds: bool) -> int:
    """Return the steps at scale=quick for a model of `dim` parameters: half as many without bounds."""
    return min(max(_QUICK_STEPS, _WALK_STEPS_PER_DIM * dim), _MOST_QUICK_STEPS) // (1 if has_bounds else 2)


def experiment_file(name: str, title: str, methods: Sequence[str], steps: int, *, has_groups: bool) -> str:
    """Return the YAML of an experiment; `steps` are those at scale=quick."""
    hmc_steps, burn = (
        (_HMC_STEPS_OF_GROUPS, _HMC_WARMUP_OF_GROUPS) if has_groups else (_HMC_STEPS, _HMC_WARMUP)
    )
    counts_by_scale = {
        "smoke": {"warmup": 100, "steps": 300},
        "quick": {"warmup": 500, "steps": steps},
        "long": {"warmup": 2000, "steps": 5 * _QUICK_STEPS},
    }
    return _EXPERIMENT.format(
        name=name,
        methods="\n".join(f"  - /method@methods.{method}: {method}" for method in methods),
        title=flow(title),
        kept=", ".join(methods),
        temperature=_temperature(methods),
        own=_own_steps(methods, burn),
        **{
            scale: flow(counts | ({"hmc_steps": hmc_steps[scale]} if "hmc" in methods else {}))
            for scale, counts in counts_by_scale.items()
        },
    )


def _temperature(methods: Sequence[str]) -> str:
    """Return the line of an experiment that sets the temperature of the methods that have one."""
    from mhrun.engine.named_method import method

    tempered = [name for name in methods if method(name).reads("temperature")]
    if not tempered:
        return ""
    others = [name for name in methods if name not in tempered]
    rest = f"; {' and '.join(others)} stay{'s' * (len(others) == 1)} at 1" if others else ""
    return f"temperature: 1.0  # of {', '.join(tempered)}{rest}\n"


def _own_steps(methods: Sequence[str], burn: int) -> str:
    """Return the part of an experiment that gives methods other numbers of steps than the experiment's."""
    chosen = {method: _OWN_STEPS[method] for method in methods if method in _OWN_STEPS}
    if "hmc" not in methods:
        chosen.pop("sgld", None)
    lines = "".join(f"  {method}: {text.replace('BURN', str(burn))}\n" for method, text in chosen.items())
    return f"\nmethods:\n{lines}" if lines else ""


_EXPERIMENT = """\
# @package _global_
# The methods {kept} on one posterior. Pilot runs find step sizes, minibatch sizes and scales.
defaults:
  - /data: {name}
  - /model: {name}
{methods}
  - _self_

title: {title}
{temperature}chains: 4
warmup: ${{scales.${{scale}}.warmup}}
steps: ${{scales.${{scale}}.steps}}
{own}
scales:
  smoke: {smoke}
  quick: {quick}
  long: {long}
"""
_OWN_STEPS = {
    "hmc": '{steps: "${scales.${scale}.hmc_steps}", warmup: BURN}  # fewer: a step is a trajectory on all data',
    "mh_ss": '{steps: "${times:4,${steps}}"}  # more: its steps read few data',
    "sgld": '{steps: "${times:2,${steps}}"}  # more: its steps are cheap, and become shorter',
}
