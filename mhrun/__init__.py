"""mhrun: Metropolis-Hastings with minibatches and stochastic-gradient MCMC.

From Python, `sample` runs any kernel on any model; the other names are the parts of kernels. They are
imported on first use, so that ``import mhrun`` is quick.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_WHERE = {
    "sample": "mhrun.engine.sample",
    "Target": "mhrun.target",
    "Dataset": "mhrun.data.dataset",
    "FunctionModel": "mhrun.models.function",
    "ModuleModel": "mhrun.models.module",
    "Perceptron": "mhrun.models.perceptron",
    "GaussianMixture": "mhrun.models.gaussian_mixture",
    "NoData": "mhrun.data.no_data",
    "Predictive": "mhrun.monitors.predictive",
    "TiedMeans": "mhrun.models.tied_means",
    "MixtureSample": "mhrun.data.mixture",
    "MetropolisHastings": "mhrun.kernels",
    "Unadjusted": "mhrun.kernels",
    "ReplicaExchange": "mhrun.kernels",
    "RandomWalk": "mhrun.proposals.random_walk",
    "LangevinProposal": "mhrun.proposals.langevin",
    "ReversibleLangevinProposal": "mhrun.proposals.reversible_langevin",
    "Shared": "mhrun.pairing.shared",
    "Stored": "mhrun.pairing.stored",
    "Full": "mhrun.pairing.full",
    "Metropolis": "mhrun.rules.metropolis",
    "Barker": "mhrun.rules.barker",
    "Penalty": "mhrun.rules.penalty",
    "SGLD": "mhrun.dynamics.sgld",
    "SGHMC": "mhrun.dynamics.sghmc",
    "SGNHT": "mhrun.dynamics.sgnht",
    "SGBD": "mhrun.dynamics.sgbd",
    "TACTHMC": "mhrun.dynamics.tact_hmc",
    "Momentum": "mhrun.dynamics.momentum",
    "Fixed": "mhrun.schedules.fixed",
    "Stairs": "mhrun.schedules.stairs",
    "Tuned": "mhrun.schedules.tuned",
    "Polynomial": "mhrun.schedules.polynomial",
    "Cosine": "mhrun.schedules.cosine",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'mhrun' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
