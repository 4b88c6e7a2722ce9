"""The temperature of the momenta of a network, which shows what adds energy to its chains."""

from __future__ import annotations

import numpy as np

from mhrun.engine.method import Method
from mhrun.kernels import Unadjusted
from mhrun.target.function_space import is_network
from mhrun.types import Controls, State

_MIN_MOMENTA = 100  # momenta of a single state, at least: a standard error of 14 %


def kinetic_temperature(method: Method, state: State, controls: Controls) -> float | None:
    """Return the temperature of the momenta after the last step over that of the noise, the mean over the chains.

    It is 1 where momenta have the distribution that they should have, and above 1 where minibatch noise of the
    gradients, or the error of too large steps, adds energy (Wenzel et al. 2020, "How good is the Bayes posterior in
    deep neural networks really?", section 4.3). Momenta forget in about 1 / friction steps, so that this is known of a
    network whose weights are far from their distribution.

    Args:
        method: whose steps have ended.
        state: after its last step.
        controls: of its last step.

    Returns:
        None for a model without hidden units, whose draws are judged by `excess_variance`; for a dynamics without
        momenta, or with a thermostat; and where step sizes change, as momenta lag behind.
    """
    kernel = method.kernel
    if not isinstance(kernel, Unadjusted) or not is_network(method.target.model) or kernel.optimises:
        return None
    step_size, temperature, _ = method.plan.collected_controls
    if not (temperature > 0).all() or not bool((step_size == step_size[0]).all()):
        return None
    device = method.target.device  # controls are on the host
    found = kernel.dynamics.kinetic_temperature(state.aux, controls.each(lambda value: value[0].to(device)))
    if found is None or len(found) * method.target.dim < _MIN_MOMENTA:
        return None
    ratio = found.double().cpu().numpy() / temperature
    return float(np.mean(ratio)) if np.isfinite(ratio).all() else None
