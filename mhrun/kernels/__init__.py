"""Kernels: they combine the parts and move all chains by one step."""

from mhrun.kernels.adaptive_backward import AdaptiveBackward
from mhrun.kernels.equi_energy import EquiEnergy
from mhrun.kernels.firefly import Firefly
from mhrun.kernels.metropolis_hastings import MetropolisHastings
from mhrun.kernels.planar_flow import PlanarFlow
from mhrun.kernels.replica_exchange import ReplicaExchange
from mhrun.kernels.unadjusted import Unadjusted
from mhrun.kernels.zig_zag import ZigZag

__all__ = [
    "AdaptiveBackward",
    "EquiEnergy",
    "Firefly",
    "MetropolisHastings",
    "PlanarFlow",
    "ReplicaExchange",
    "Unadjusted",
    "ZigZag",
]
