"""``mhrun report``: make the reports again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mhrun.cli.places import outputs_of
from mhrun.errors import UserError, nearest
from mhrun.store.folder import runs, sweeps


def make_reports(words: Sequence[str]) -> int:
    """Make the reports of all complete runs and sweeps, or of those of the named experiments."""
    outputs, names = outputs_of(words)
    known = {folder.experiment for folder in runs(outputs)}
    for name in names:
        if name not in known:
            raise UserError(f"There is no run of '{name}' in {outputs}.{nearest(name, known)}")
    if not known:
        raise UserError(f"There is no run in {outputs} yet; begin with mhrun experiment=NAME.")
    from mhrun.report.build import build_report
    from mhrun.report.sweep import build_sweep_report

    failed = 0
    for folder in runs(outputs):
        if names and folder.experiment not in names:
            continue
        if not folder.is_complete():
            print(f"skipped {folder.path} (not complete)", file=sys.stderr)
            continue
        try:
            print(f"report  {build_report(folder)}", flush=True)
        except UserError as error:  # one bad report should not keep the others from being made
            failed += 1
            print(f"mhrun: {folder.path}: {error}", file=sys.stderr)
    for place in sweeps(outputs):
        if not names or place.parent.parent.name in names:
            print(f"sweep   {build_sweep_report(place)}", flush=True)
    return 1 if failed else 0
