"""Kernels as compiled loops over chains and steps, for a CPU with numba.

A loop has the stationary distribution and the random numbers of the kernel's own step. `compile_loop` puts it together
from the compiled forms that the parts state (`mhrun.native`). Executors choose it; kernels do not know of it.
"""

from mhrun.compiled import equi_energy, metropolis, replica_exchange, unadjusted  # noqa: F401  (they register)
from mhrun.compiled.loop import Builder, Loop, compile_loop, register
from mhrun.compiled.update import with_compiled_update

__all__ = ["Builder", "Loop", "compile_loop", "register", "with_compiled_update"]
