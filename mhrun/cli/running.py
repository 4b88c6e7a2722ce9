"""Run one configuration, then make its report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhrun.cli.compose import compose_config
from mhrun.store.folder import RunFolder


def run_once(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Run what the words say and print where the report is."""
    folder = compute(compose_config(words, folders))
    print(f"run     {folder.path}")
    if (folder.report / "index.html").exists():
        print(f"report  {folder.report / 'index.html'}")
    return 0


def compute(config: Mapping[str, Any]) -> RunFolder:
    """Run a resolved configuration and make its report, or find both done.

    Raises:
        UserError: a mistake of the user's.
        Interrupted: the user stopped it.
    """
    from mhrun.cli.progress import watcher
    from mhrun.engine.experiment import run_experiment

    place = RunFolder.of(config)
    if place.is_complete() and not config["runtime"]["force"]:
        print(f"This run is there already ({place.digest}); runtime.force=true begins anew.", file=sys.stderr)
    folder = run_experiment(config, watcher())
    if config["runtime"]["report"] and not _reported(folder):
        from mhrun.report.build import build_report

        print("report: metrics, claims, tables, figures ...", file=sys.stderr, flush=True)
        build_report(folder)
    return folder


def _reported(folder: RunFolder) -> bool:
    page, summary = folder.report / "index.html", folder.path / "summary.json"
    return page.exists() and page.stat().st_mtime >= _finished(folder, summary)


def _finished(folder: RunFolder, summary: Path) -> float:
    done = [p.stat().st_mtime for p in (folder.path / "methods").glob("*/done.json")]
    return max(done, default=summary.stat().st_mtime)
