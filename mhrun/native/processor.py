"""The processor features that numba compiles for."""

from __future__ import annotations

from functools import cache

# LLVM prefers vectors of 256 bits on all of Intel's processors that have longer ones, as the first of these lowered
# their clock for long vectors. These hardly do, and loops took 1 to 28 % less time (Emerald Rapids).
_KEEP_THEIR_CLOCK = frozenset({"sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d"})


@cache
def use_long_vectors() -> None:
    """Let numba compile for vectors of 512 bits, where these pay and nobody has chosen (``NUMBA_CPU_FEATURES``).

    Numba has one setting for a process, which the first function that is compiled in it fixes. If that was another
    package's, nothing changes.
    """
    import llvmlite.binding as llvm
    from numba import config
    from numba.core.codegen import get_host_cpu_features
    from numba.core.registry import cpu_target

    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return
    if llvm.get_host_cpu_name() not in _KEEP_THEIR_CLOCK or not config.ENABLE_AVX:
        return
    try:
        config.CPU_FEATURES = f"{get_host_cpu_features()},-prefer-256-bit"
        cpu_target.target_context  # noqa: B018 - made at its first use, with the features of that moment
    finally:
        config.CPU_FEATURES = None


@cache
def vector_registers() -> int:
    """Return the number of vector registers that numba's code has: 32 with AVX-512, otherwise 16 is assumed."""
    from numba.core.codegen import get_host_cpu_features

    return 32 if "+avx512vl" in get_host_cpu_features().split(",") else 16
