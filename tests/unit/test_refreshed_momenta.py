"""Momenta that are drawn anew: by how much they narrow theta."""

from __future__ import annotations

import numpy as np
import pytest

import mhrun
from mhrun.dynamics.refresh import temperature_of_theta
from mhrun.dynamics.sgnht import stationary_thermostat
from mhrun.dynamics.tact_hmc import TACTHMC


@pytest.mark.parametrize(
    ("friction", "noise", "every"),
    [(0.1, 0.1, 20), (0.1056, 0.1, 7), (0.3, 0.3, 1), (1.0, 1.0, 3), (0.1, 0.1, 0)],
)
def test_theta_is_narrowed_by_the_share_of_its_exact_moments(friction, noise, every):
    """The moments of a normal target, step by step through a cycle, at a step size at which its own error is 1e-6."""
    e = 1e-6
    # Of (theta, v), v' = (1 - s) v - e theta + noise
    move = np.array([[1 - e, 1 - friction], [-e, 1 - friction]])
    cycle, added = np.eye(2), np.zeros((2, 2))
    for _ in range(every or 1):
        cycle, added = move @ cycle, move @ added @ move.T + 2 * noise * e
    if every:  # the old v is forgotten: theta alone goes on
        variance = (cycle[0, 1] ** 2 * e + added[0, 0]) / (1 - cycle[0, 0] ** 2)
    else:
        variance = np.linalg.solve(np.eye(4) - np.kron(cycle, cycle), added.ravel())[0]
    assert temperature_of_theta(friction, noise, every) == pytest.approx(variance, rel=1e-4)


def test_dynamics_declare_it():
    assert mhrun.SGHMC(0.1).bias.in_small_steps == pytest.approx(0, abs=1e-12)
    assert mhrun.SGHMC(0.1, refresh=20).bias.in_small_steps == pytest.approx(-0.0480, abs=1e-4)
    assert mhrun.SGNHT(0.1).bias.in_small_steps == pytest.approx(-stationary_thermostat(0.1) / 2)
    assert mhrun.SGNHT(0.1, refresh=20).bias.in_small_steps == pytest.approx(-0.0849, abs=1e-4)
    # `mhrun check dynamics=tact_hmc dynamics.refresh=5` finds -0.180 +- 0.013 in the limit of small steps
    for every, bound in ((50, -0.0635), (20, -0.0849), (5, -0.1916)):
        assert TACTHMC(0.1, refresh=every).bias.in_small_steps == pytest.approx(bound, abs=1e-4)
