"""Schedules: the values of the controls at each step. One per file; a `Plan` combines several."""

from mhrun.schedules.plan import Plan, Schedule

__all__ = ["Plan", "Schedule"]
