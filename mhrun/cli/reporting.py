"""``mhrun report``: make the reports again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mhrun.cli.places import outputs_of
from mhrun.errors import UserError, nearest
from mhrun.store.folder import runs, sweeps


def make_reports(words: Sequence[str]) -> int:
    """Make the reports of all complete runs and sweeps, or of those of the named experiments.

    Returns 1 if one of them, or a part of one, could not be made.
    """
    outputs, names = outputs_of(words)
    known = {folder.experiment for folder in runs(outputs)}
    known |= {place.parent.parent.name for place in sweeps(outputs)}
    for name in names:
        if name not in known:
            raise UserError(f"There is no run of '{name}' in {outputs}.{nearest(name, known)}")
    if not known:
        raise UserError(f"There is no run in {outputs} yet; begin with mhrun experiment=NAME.")
    from mhrun.report.build import build_report
    from mhrun.report.sweep import build_sweep_report

    failures: list[str] = []

    def tell(line: str) -> None:
        failures.append(line)
        print(f"mhrun: {line}", file=sys.stderr, flush=True)

    for folder in runs(outputs):
        if names and folder.experiment not in names:
            continue
        if not folder.is_complete():
            print(f"skipped {folder.path} (not complete)", file=sys.stderr)
            continue
        try:
            built = build_report(folder, lambda message: print(message, file=sys.stderr, flush=True))
            print(f"report  {built.page}", flush=True)
            for line in built.failures:
                tell(line)
        except UserError as error:  # one bad report should not keep the others from being made
            tell(f"{folder.path}: {error}")
    for place in sweeps(outputs):
        if not names or place.parent.parent.name in names:
            print(f"sweep   {build_sweep_report(place, tell)}", flush=True)
    return 1 if failures else 0
