"""mhrun: Metropolis-Hastings with minibatches and stochastic-gradient MCMC.

From Python, `sample` runs any kernel on any model, `method` is one of the command line with settings, `predict` gives
the posterior predictive and `log_score` its density at data, `compare` judges draws against a reference, and `load`
opens a run of the command line; the other names are the parts that configurations name, and their base classes. They
are imported on first use, so that ``import mhrun`` is quick.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_WHERE = {
    "sample": "mhrun.engine.call.sample",
    "method": "mhrun.engine.named_method",
    "predict": "mhrun.engine.predictive.predict",
    "log_score": "mhrun.engine.predictive.log_score",
    "load": "mhrun.engine.loaded",
    "compare": "mhrun.report.comparison.traces",
    "rung": "mhrun.diagnostics.ladders",
    "Target": "mhrun.target",
    "FunctionModel": "mhrun.models.function",
    "GaussianLocation": "mhrun.models.gaussian_location",
    "GaussianMean": "mhrun.models.gaussian_mean",
    "GaussianMixture": "mhrun.models.gaussian_mixture",
    "Logistic": "mhrun.models.logistic",
    "MixtureMeans": "mhrun.models.mixture_means",
    "ModuleModel": "mhrun.models.module",
    "Parameters": "mhrun.models.parameters",
    "Perceptron": "mhrun.models.perceptron",
    "PoissonRegression": "mhrun.models.poisson_regression",
    "BinomialRegression": "mhrun.models.binomial_regression",
    "RobustRegression": "mhrun.models.robust_regression",
    "SoftmaxRegression": "mhrun.models.softmax_regression",
    "PyroModel": "mhrun.models.pyro_model",
    "TiedMeans": "mhrun.models.tied_means",
    "UserFunction": "mhrun.models.user_function",
    "Dataset": "mhrun.data.dataset",
    "DeformedPair": "mhrun.data.deformed",
    "GaussianSample": "mhrun.data.gaussian",
    "Images": "mhrun.data.images",
    "SquareImages": "mhrun.data.square_images",
    "Memmap": "mhrun.data.arrays",
    "MixtureSample": "mhrun.data.mixture",
    "MnistPair": "mhrun.data.mnist_pairs",
    "NoData": "mhrun.data.no_data",
    "Npz": "mhrun.data.arrays",
    "RegressionSample": "mhrun.data.regression_sample",
    "Statlog": "mhrun.data.statlog",
    "Cifar": "mhrun.data.cifar",
    "Table": "mhrun.data.table",
    "Convolutional": "mhrun.models.convolutional",
    "Recurrent": "mhrun.models.recurrent",
    "Residual": "mhrun.models.residual",
    "AdaptiveBackward": "mhrun.kernels",
    "EquiEnergy": "mhrun.kernels",
    "Firefly": "mhrun.kernels",
    "MetropolisHastings": "mhrun.kernels",
    "PlanarFlow": "mhrun.kernels",
    "ReplicaExchange": "mhrun.kernels",
    "Unadjusted": "mhrun.kernels",
    "ZigZag": "mhrun.kernels",
    "CrankNicolson": "mhrun.proposals.crank_nicolson",
    "HamiltonianProposal": "mhrun.proposals.hamiltonian",
    "LangevinProposal": "mhrun.proposals.langevin",
    "RandomWalk": "mhrun.proposals.random_walk",
    "ReversibleLangevinProposal": "mhrun.proposals.reversible_langevin",
    "Blocks": "mhrun.pairing.blocks",
    "Full": "mhrun.pairing.full",
    "Growing": "mhrun.pairing.growing",
    "Moving": "mhrun.pairing.moving",
    "Shared": "mhrun.pairing.shared",
    "Stored": "mhrun.pairing.stored",
    "Thinned": "mhrun.pairing.thinned",
    "Austere": "mhrun.rules.austere",
    "Barker": "mhrun.rules.barker",
    "Compensated": "mhrun.rules.compensated",
    "MHMinibatch": "mhrun.rules.mh_minibatch",
    "MHSS": "mhrun.rules.mh_ss",
    "MHSubLhd": "mhrun.rules.subsampling",
    "Metropolis": "mhrun.rules.metropolis",
    "Penalty": "mhrun.rules.penalty",
    "PoissonMH": "mhrun.rules.poisson_mh",
    "PseudoMarginal": "mhrun.rules.pseudo_marginal",
    "SMH": "mhrun.rules.smh",
    "TunaMH": "mhrun.rules.tunamh",
    "Adagrad": "mhrun.dynamics.adagrad",
    "Adam": "mhrun.dynamics.adam",
    "Badodab": "mhrun.dynamics.badodab",
    "Momentum": "mhrun.dynamics.momentum",
    "RMSprop": "mhrun.dynamics.rmsprop",
    "SGBD": "mhrun.dynamics.sgbd",
    "SGHMC": "mhrun.dynamics.sghmc",
    "SGLD": "mhrun.dynamics.sgld",
    "SGNHT": "mhrun.dynamics.sgnht",
    "TACTHMC": "mhrun.dynamics.tact_hmc",
    "Banded": "mhrun.schedules.banded",
    "Cosine": "mhrun.schedules.cosine",
    "Fixed": "mhrun.schedules.fixed",
    "Polynomial": "mhrun.schedules.polynomial",
    "Schedule": "mhrun.schedules",
    "Stairs": "mhrun.schedules.stairs",
    "Switched": "mhrun.schedules.switched",
    "Tuned": "mhrun.schedules.tuned",
    "Decay": "mhrun.priors.decay",
    "GammaPrecision": "mhrun.priors.gamma",
    "Calibration": "mhrun.monitors.calibration",
    "GradientNoise": "mhrun.monitors.gradient_noise",
    "HeldOut": "mhrun.monitors.held_out",
    "Monitor": "mhrun.monitors",
    "Predictive": "mhrun.monitors.predictive",
    "Uncertainty": "mhrun.monitors.uncertainty",
    # Base classes of users' parts, and what rules see.
    "Kernel": "mhrun.parts",
    "Proposal": "mhrun.parts",
    "Pairing": "mhrun.parts",
    "Rule": "mhrun.parts",
    "Dynamics": "mhrun.parts",
    "Bias": "mhrun.parts",
    "Contest": "mhrun.types",
    "Verdict": "mhrun.types",
    "Purpose": "mhrun.random",
    "UserError": "mhrun.errors",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    from mhrun.errors import nearest

    raise AttributeError(f"module 'mhrun' has no attribute '{name}'.{nearest(name, _WHERE)}")


def __dir__() -> list[str]:
    return sorted(__all__)
