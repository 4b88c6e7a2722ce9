"""Does a kernel sample its target when it reads minibatches?

Variance and mean of its draws are compared with those of a normal target. They are judged where a part declares that
they are right, and otherwise measured.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mhrun.check.case import Case
from mhrun.check.draws import draw
from mhrun.check.results import MEASURED, NO_POWER, NONE, CheckResult, Z, by_excess, mean_and_error
from mhrun.check.subject import Subject, of_the_target
from mhrun.check.targets import gaussian_mean
from mhrun.kernels.stationary import is_declared_exact
from mhrun.parts import Kernel

_SHORTER = 8  # times as short steps as the largest at which a dynamics is stable
_TOLERATED = 0.02  # error of variance and mean with a rule that corrects for noise as if it were normal
_DOUBTFUL = 3.0  # standard errors


@of_the_target("with minibatches")
def minibatches(subject: Subject, check_name: str) -> Iterator[CheckResult]:
    """Variance and mean of the draws with minibatches, relative to the target's.

    It is judged if the rule is `exact`, or the kernel declares its target as stationary, whatever it reads; and to 2 %
    if the rule `corrects_noise`, with half as long steps too, where the noise differs. Else it is measured.
    """
    known = gaussian_mean(subject.n)
    target = subject.target(known)
    kernel = subject.made(subject.n, subject.m, target)
    base = subject.n / subject.effective if kernel.decides else 1.0
    case = Case(kernel, known, target, base)
    step = subject.step_for(case) / (1 if kernel.decides else _SHORTER)
    if not kernel.decides and subject.adds_no_noise(case, step):
        yield CheckResult(check_name, NONE, "it adds no noise: an optimiser")
        return
    yield _with_minibatches(subject, case, check_name, step)
    if _is_tolerated(kernel):
        yield _with_minibatches(subject, case, f"{check_name}, shorter steps", step / 2)


def _is_tolerated(kernel: Kernel) -> bool:
    return kernel.rule is not None and kernel.rule.corrects_noise and not kernel.rule.exact


def _with_minibatches(subject: Subject, case: Case, check_name: str, step: float) -> CheckResult:
    kernel, known, _, base = case
    chains = subject.whole(subject.chains // (20 if kernel.is_sequential else 8))
    of_chains, _, sizes = draw(subject, case, chains, 300, step)
    draws = of_chains[..., 0]
    if (draws == draws[:, :1]).all():
        return CheckResult(
            check_name, NO_POWER, f"no chain moves in {draws.shape[1]} steps of size {step:.2g}"
        )
    cold = subject.temperatures(chains) == 1
    scaled = (draws[cold] - known.centre[0]) / (known.scale * base**0.5)
    scaled = scaled[np.isfinite(scaled).any(1)]
    if len(scaled) < 2:
        return CheckResult(check_name, NONE, f"no chain had draws of its target at step {step:.2g}")
    mean, mean_error = mean_and_error(np.nanmean(scaled, axis=1))
    ratio, error = mean_and_error(np.nanmean(scaled**2, axis=1))
    error, mean_error = max(error, 1e-300), max(mean_error, 1e-300)
    deviation = max(abs(ratio - 1) / error, abs(mean) / mean_error)
    finding = "biased" if deviation > Z else "no bias seen"
    if Z >= deviation > _DOUBTFUL:
        finding = f"perhaps biased, as chains={10 * subject.chains} would show"
    where = f"c = n/T = {subject.n / base:g} data" if base != 1 else "T = 1"
    tolerant = _is_tolerated(kernel)
    excess = max((abs(ratio - 1) - _TOLERATED) / error, (abs(mean) - _TOLERATED) / mean_error)
    if tolerant and deviation > Z >= excess:
        size = "perhaps more" if excess > _DOUBTFUL else "no more"
        finding = f"biased by {size} than the {_TOLERATED:.0%} allowed"
    detail = (
        f"variance {ratio:.3f} ± {error:.3f} of the target's, mean {mean:+.3f} ± {mean_error:.3f} of its sd: "
        f"{finding} (n = {subject.n:,}, {sizes:.3g} data a step, {where}, step {step:.2g})"
    )
    reads_all_data = kernel.decides and sizes >= subject.n
    if subject.kind == "proposal" and not reads_all_data:
        detail += "; with a correct proposal too, as Metropolis's rule reads minibatches here"
    # A rule declares it for every minibatch size, and a kernel with the data that it reads. Reports then call a method
    # exact, so that a bias is an error.
    is_exact = is_declared_exact(kernel)
    if not (is_exact or tolerant):
        return CheckResult(check_name, MEASURED, detail, (ratio - 1) / error)
    return by_excess(
        check_name, detail, deviation if is_exact else excess, 2, error, 0.0 if is_exact else _TOLERATED
    )
