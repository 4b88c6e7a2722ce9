"""Schedules: what the controls are at each step. One per file; several together make a `Plan`."""

from mhrun.schedules.plan import Plan, Schedule

__all__ = ["Plan", "Schedule"]
