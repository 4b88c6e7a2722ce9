"""How long a run will take, measured before it starts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from mhrun.engine.chains import Settings
from mhrun.engine.drivers import choose
from mhrun.engine.method import Method
from mhrun.store.blocks import steps_done
from mhrun.store.files import read_json

_TRIED = 1.0  # seconds that a method is tried for
_LONG = 30.0  # seconds of a step that is not tried a second time; at the first, compilers and data take less
_WORTH = 60.0  # seconds that a run must be guessed to take to be tried


def estimate(methods: Sequence[tuple[Method, Path]], settings: Settings) -> list[str]:
    """Return a line for each method that has steps left and one for all, from a few steps that are done and forgotten.

    A run that is guessed to be short is not tried: then there are no lines.
    """
    left = [(m, max(0, m.shape.total - steps_done(folder)), folder) for m, folder in methods]
    if sum(m.guess() * steps for m, steps, _ in left) < _WORTH:
        return []
    lines, total = [], 0.0
    for method, steps, folder in left:
        if steps == 0:
            continue
        begun = (read_json(folder / "driver.json") or {}).get("driver")
        each = _seconds_per_step(method, settings, begun)
        total += steps * each
        chains = f"{method.shape.chains:,} chain{'s' * (method.shape.chains > 1)}"
        lines.append(f"{method.name}: {steps:,} steps of {chains}, about {in_words(steps * each)}")
    return [*lines, f"in all about {in_words(total)}"] if lines else []


def _seconds_per_step(method: Method, settings: Settings, begun: str | None) -> float:
    driver, state = choose(method, settings.native, begun, settings.threads), method.first_state()
    driver.prepare(state)
    memory, count, spent, again = method.plan.start(), 1, 0.0, True
    first = min(
        2, method.shape.total
    )  # what a kernel does before the first step of all is no measure of the rest
    while spent < _TRIED:
        size = min(count, method.plan.horizon(first) or count, method.shape.total - first + 1)
        controls = method.plan.controls(memory, first, size)
        began = time.perf_counter()
        driver.advance(state, first, controls)
        spent = time.perf_counter() - began
        if again and spent < _LONG:  # the first time of all may have had to wait for a compiler
            spent, again = 0.0, False
            continue
        if size < count:
            break
        count *= 4
    method.target.spent()
    return spent / size


def in_words(seconds: float) -> str:
    """Return seconds as a person would say them."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return (
                f"{seconds / size:.2g} {unit}" if seconds < 99.5 * size else f"{seconds / size:,.0f} {unit}"
            )
    return f"{seconds:.0f} s"
