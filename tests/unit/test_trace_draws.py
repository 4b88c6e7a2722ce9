"""Which steps the draws of a trace are of, and which of them follow the target."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from mhrun.errors import UserError
from mhrun.store.draws import places_of_draws, steps_of_draws, validity


def trace_of(draws, kept, valid, *, warmup, thin, thin_stats, listed=None):
    """Return a trace of two chains whose draws and statistics are rows `draws` and `kept` after burn-in."""
    coords = {"chain": [0, 1], "draw": draws} | ({"step": ("draw", listed)} if listed is not None else {})
    theta = ("chain", "draw", "parameter"), np.zeros((2, len(draws), 1))
    groups = {
        "posterior": xr.Dataset({"theta": theta}, coords=coords),
        "sample_stats": xr.Dataset(
            {"valid": (("chain", "draw"), np.asarray(valid, np.int8))}, coords={"chain": [0, 1], "draw": kept}
        ),
    }
    about = {"warmup": warmup, "thin": thin, "thin_stats": thin_stats}
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=about), **groups})


def test_draws_are_found_among_statistics_that_are_kept_more_often():
    # After 5 steps of burn-in, statistics of steps 6, 8, ..., 24 and draws of steps 8, 16, 24.
    valid = [[step % 16 != 0 for step in range(6, 25, 2)], [True] * 10]
    trace = trace_of(range(3), range(10), valid, warmup=5, thin=8, thin_stats=2)
    assert steps_of_draws(trace).tolist() == [8, 16, 24]
    assert places_of_draws(trace).tolist() == [1, 5, 9]
    assert validity(trace).tolist() == [[True, False, True], [True] * 3]


def test_a_trace_that_was_cut_keeps_the_steps_of_what_is_left():
    valid = [[step % 16 != 0 for step in range(6, 25, 2)], [True] * 10]
    whole = trace_of(range(3), range(10), valid, warmup=5, thin=8, thin_stats=2)
    whole["posterior"] = xr.DataTree(whole["posterior"].to_dataset().isel(draw=[1, 2]))
    assert steps_of_draws(whole).tolist() == [16, 24]
    assert validity(whole).tolist() == [[False, True], [True, True]]


def test_a_schedule_lists_the_steps_that_it_collects():
    valid = [[step == 9 for step in range(1, 11)], [True] * 10]
    trace = trace_of(range(3), range(10), valid, warmup=0, thin=1, thin_stats=1, listed=[2, 9, 10])
    assert steps_of_draws(trace).tolist() == [2, 9, 10]
    assert validity(trace).tolist() == [[False, True, False], [True] * 3]


def test_unknown_validity_is_refused_where_it_matters():
    some = trace_of(range(6), range(8), [[False] * 8] * 2, warmup=0, thin=4, thin_stats=3)
    with pytest.raises(UserError, match="multiple of thin_stats = 3"):
        validity(some)
    every = trace_of(range(6), range(8), [[True] * 8] * 2, warmup=0, thin=4, thin_stats=3)
    assert validity(every).all()
