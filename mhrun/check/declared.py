"""What a rule of the user's declares, and checks deny."""

from __future__ import annotations

from collections.abc import Sequence

from mhrun.check.results import FAILS, CheckResult
from mhrun.check.subject import Subject
from mhrun.kernels.stationary import own_parts

_ALL_DATA = ("invariance", "detailed balance", "Geweke's joint test")
_MINIBATCHES = ("with minibatches",)
_DENIED_BY = {
    "keeps_ratio": (_ALL_DATA, "it has no detailed balance for the ratio that it receives"),
    "exact": ((*_ALL_DATA, *_MINIBATCHES), "the target is not stationary at every minibatch size"),
    "corrects_noise": (_MINIBATCHES, "it does not correct for minibatch noise"),
}
"""Attribute of a rule -> how the names of the checks begin that deny it, and what their failure means."""


def denials(subject: Subject, verdicts: Sequence[CheckResult]) -> list[str]:
    """Return a line for each attribute that a rule of the user's declares and that is not so.

    Without any where another part of the kernel is the user's too: it may be that one that fails.
    """
    kernel = subject.make(subject.n, subject.m)
    if subject.kind != "rule" or list(own_parts(kernel)) != [kernel.rule]:
        return []
    failed = [verdict.check for verdict in verdicts if verdict.outcome == FAILS and not verdict.crashed]
    return [
        f"{attribute} = True is declared and is not so: {meaning}. Leave it out, or fix the rule."
        for attribute, (checks, meaning) in _DENIED_BY.items()
        if getattr(kernel.rule, attribute) and any(check.startswith(checks) for check in failed)
    ]
