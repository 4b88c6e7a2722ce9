"""Targets: a model on data at a temperature. All access of kernels to the data is through a target.

`Target` draws minibatches and evaluates the model. `Gradients` computes the model's gradients, `AllData` its sums over
all data. `target_of` builds a target from a configuration.
"""

from mhrun.target.configured import target_of
from mhrun.target.precision import Precision
from mhrun.target.target import Source, Target

__all__ = ["Precision", "Source", "Target", "target_of"]
