"""What a pilot found, as the summary of a run and the attributes of a trace keep it."""

from __future__ import annotations

from typing import TypedDict


class HeavyTail(TypedDict):
    """A direction along which the posterior falls off too slowly to have a variance."""

    direction: str  # in words
    power: float  # of the distance, with which the density falls off


class KnownMode(TypedDict):
    """A mode of the posterior."""

    at: dict[str, float]  # parameter -> value
    theta: list[float] | tuple[float, ...]  # (D,), where chains move
    share: float  # of its mass in that of all known modes, by Laplace's approximation
    begins: bool  # whether a chain begins there


class MassBeyond(TypedDict):
    """Mass far from the highest mode."""

    at: dict[str, float]  # parameter -> value, of the mode
    theta: list[float]  # (D,), the mode where chains move
    radius: float  # in standard deviations by the curvature there
    share: float  # of the posterior that is estimated to be beyond it


class LowModes(TypedDict):
    """What became of searches that ended at modes with hardly a share of the posterior."""

    ascents: int
    of: int  # all searches
    nats: float  # minus the log of the share of the largest of these modes


class PilotFacts(TypedDict, total=False):
    """What a pilot found, why, and what it cost. Keys are there where they apply."""

    why: str  # what the settings rest on, as sentences
    n_lik: int  # evaluations of single data
    n_grad: int

    # the settings
    step_size: float  # the geometric mean of the chains
    step_size_by_chain: list[float]
    given: bool  # whether the step size was given
    scheduled: bool  # whether it was, by a schedule that varies it
    m: int | None  # the minibatch size, if it was open
    scale: str  # dense or diagonal, if there is one
    condition: float  # its condition number
    rounds: int  # in which draws changed it
    leapfrog_steps: int
    control_variate: bool  # whether gradients have one

    # where chains begin
    doubt: str | None  # why the scale may be far off
    flat_along: str  # a direction in which the log posterior does not fall off, in words
    is_density: bool  # whether it levels off at 0 in all directions, as if no logarithm had been taken
    beyond: MassBeyond
    heavy: HeavyTail
    modes: list[KnownMode]  # that are known and matter, if there are several
    moved: LowModes
    neck: float  # nats by which the highest mode has less mass than the starting points
    whole: bool  # whether a part of the data has hardly any of what matters, so that all were read

    # of acceptance tests
    acceptance: float | None  # the rate that the step size is tuned to
    aim: float  # the rate that was aimed at
    acceptance_found: float
    noise_sd: float  # of the log-ratio, by minibatches
    settled: bool
    windows: int  # of steps in which it was tuned

    # of dynamics, if the posterior is normal
    stability_bound: float  # step size
    variance_error: float  # by how much its stationary variance is too large at most, relative
    variance_bias: float  # likewise in small steps, as of a thermostat
    mean_error: float  # by how much a mean is off, in posterior standard deviations
    mean_error_of: str  # the parameter
    expected_ess: float
