"""Kernels as compiled loops over chains and steps, for a CPU with numba.

A loop has the stationary distribution and the random numbers of the kernel's torch step. `compile_loop` builds it from
the compiled forms of the parts (`mhrun.native`). Executors use it; kernels do not import it.
"""

from mhrun.compiled import (  # noqa: F401  (they register)
    equi_energy,
    firefly,
    metropolis,
    replica_exchange,
    unadjusted,
    zig_zag,
)
from mhrun.compiled.loop import Loop, compile_loop, register
from mhrun.compiled.update import with_compiled_update

__all__ = ["Loop", "compile_loop", "register", "with_compiled_update"]
