"""Declarations of a user's part that the checks contradict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mhrun.check.results import FAILS, CheckResult
from mhrun.check.subject import Subject
from mhrun.kernels.stationary import TARGET, user_parts
from mhrun.parts import Kernel, Pairing, Proposal, Rule

_INVARIANCE = ("invariance", "Geweke's joint test")
_BALANCE = ("detailed balance",)
_ALL_DATA = (*_INVARIANCE, *_BALANCE)
_MINIBATCHES = ("with minibatches",)
_DENIED_BY = {
    "keeps_ratio": (_ALL_DATA, "it has no detailed balance for the ratio that it receives"),
    "exact": ((*_ALL_DATA, *_MINIBATCHES), "the target is not stationary at every minibatch size"),
    "corrects_noise": (_MINIBATCHES, "it does not correct for minibatch noise"),
}
"""Attribute of a rule -> how the names of the checks begin that deny it, and what their failure means."""


def denials(subject: Subject, results: Sequence[CheckResult]) -> list[str]:
    """Return a line for each declared attribute of a user's part that a failed check contradicts.

    Returns none if the kernel has several parts of the user: any of them may be the one that fails.
    """
    of_user = list(user_parts(subject.make(subject.n, subject.m)))
    if len(of_user) != 1:
        return []
    failed = [result.check for result in results if result.outcome == FAILS and not result.crashed]
    return list(_denied(of_user[0], failed))


def _denied(part: object, failed: Sequence[str]) -> Iterator[str]:
    """Yield the lines on the only part that is the user's, given the names of the checks that fail."""

    def fails(checks: tuple[str, ...]) -> bool:
        return any(name.startswith(checks) for name in failed)

    if isinstance(part, Rule):
        for attribute, (checks, meaning) in _DENIED_BY.items():
            if getattr(part, attribute) and fails(checks):
                yield f"{attribute} = True is declared and is not so: {meaning}. Leave it out, or fix the rule."
    elif isinstance(part, Proposal):
        if part.keeps_balance and fails(_ALL_DATA):
            yield (
                "keeps_balance = True, the default, is not so: its densities are not those of its moves. Set it to "
                "False, or fix the proposal."
            )
    elif isinstance(part, Pairing):
        if part.stationary == "tempered" and part.m is None and fails((*_ALL_DATA, *_MINIBATCHES)):
            yield (
                'stationary = "tempered" is declared and is not so: the target is not stationary. Leave it out, or fix '
                "the pairing."
            )
    elif isinstance(part, Kernel):
        if part.stationary == TARGET and fails((*_INVARIANCE, *_MINIBATCHES)):
            yield (
                f"stationary = {TARGET} is declared and is not so: the target is not stationary. Leave it out, or fix "
                "the kernel."
            )
        elif part.reversible and fails(_BALANCE):  # else it may be reversible at another distribution
            yield (
                "reversible = True is declared and is not so: moves from one bin to another are not as many as back. "
                "Leave it out, or fix the kernel."
            )
