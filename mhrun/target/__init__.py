"""The one door to the data: a model on data at a temperature.

`Target` draws minibatches and evaluates; `Slopes` has the gradients of its model, `AllData` the sums over all
data; `target_of` makes one of a configuration.
"""

from mhrun.target.configured import target_of
from mhrun.target.target import Source, Target

__all__ = ["Source", "Target", "target_of"]
