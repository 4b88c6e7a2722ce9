"""Targets: a model on data at a temperature. All access of kernels to the data is through a target.

`Target` evaluates the model at points. Its parts draw minibatches (`Batches`), and compute differences of the
log-likelihood (`Differences`) and gradients of the log posterior (`PosteriorGradients`). They are made of the model's
gradients (`Gradients`) and sums over all data (`AllData`). `target_of` builds a target from a configuration.
"""

from mhrun.target.configured import target_of
from mhrun.target.precision import Precision
from mhrun.target.source import Source
from mhrun.target.target import Target

__all__ = ["Precision", "Source", "Target", "target_of"]
