"""Kinds of parts, and the packages with their classes."""

from __future__ import annotations

PACKAGES = {
    "model": "models",
    "data": "data",
    "kernel": "kernels",
    "proposal": "proposals",
    "dynamics": "dynamics",
    "prior": "priors",
    "pairing": "pairing",
    "rule": "rules",
    "schedule": "schedules",
    "monitor": "monitors",
}
"""Kind -> package of mhrun. Only classes in these may be named by a configuration."""

OF_A_PART = tuple(kind for kind in PACKAGES if kind not in ("model", "data", "kernel"))
"""Kinds with a folder in conf/ that other parts take as settings, as a kernel its rule."""
