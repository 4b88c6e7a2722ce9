"""Warnings that chains have not converged, or that their effective draws are few: of reports and comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mhrun.diagnostics.grid import number_of
from mhrun.report.efficiency import ESS, RHAT, is_apart, named


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number, or an estimate of one; None is not."""
    return math.isfinite(number_of(value))


def convergence_warnings(
    records: Mapping[str, Mapping[str, Any]],
    label: Callable[[str], str] = str,
    *,
    except_rhats: Collection[str] = (),
    except_sizes: Collection[str] = (),
) -> list[str]:
    """Return a line each on methods with a high R-hat, a low ESS, and a low tail ESS where ESS is not low; worst first.

    Args:
        records: method -> the keys ``rhat``, ``ess`` and ``ess_tail`` of `efficiency`, None where undefined.
        label: method -> label.
        except_rhats: methods whose R-hat has been mentioned already.
        except_sizes: methods whose ESS has been mentioned already.
    """

    def column(key: str) -> dict[str, float]:
        return {name: number_of(record.get(key)) for name, record in records.items()}

    rhats = {name: rhat for name, rhat in column("rhat").items() if is_apart(rhat)}
    sizes = {name: size for name, size in column("ess").items() if size < ESS}
    tails = {name: size for name, size in column("ess_tail").items() if size < ESS and name not in sizes}
    lines = []
    if high := {name: rhat for name, rhat in rhats.items() if name not in except_rhats}:
        worst = sorted(high, key=lambda name: -high[name])
        lines.append(f"R-hat above {RHAT:g}: {named(worst, label, high)}. These chains have not converged.")
    if low := {name: size for name, size in sizes.items() if name not in except_sizes}:
        worst = sorted(low, key=lambda name: low[name])
        lines.append(f"ESS below {ESS:g}: {named(worst, label, low)}. Means and quantiles are imprecise.")
    if tails:
        worst = sorted(tails, key=lambda name: tails[name])
        lines.append(
            f"Tail ESS below {ESS:g}: {named(worst, label, tails)}. Standard deviations and the 5 % and 95 % "
            "quantiles are imprecise."
        )
    return lines


def single_chain_warnings(single: Sequence[str], label: Callable[[str], str] = str) -> list[str]:
    """Return a line on methods of one chain.

    Args:
        single: the methods.
        label: method -> label.
    """
    if not single:
        return []
    return [
        f"One chain: {named(single, label)}. R-hat compares its halves, and a mode that it never visited does not show."
    ]
