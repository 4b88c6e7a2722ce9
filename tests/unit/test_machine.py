"""The description of the machine in a run's summary."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

from mhrun import cores
from mhrun.engine import machine


def test_libraries_of_matrix_products_are_named_with_their_kernels(monkeypatch):
    """Of OpenBLAS the processors that its kernels are for; libraries of threads are left out."""
    openblas = {"user_api": "blas", "internal_api": "openblas", "architecture": "SkylakeX"}
    libraries = [
        openblas | {"version": "0.3.31"},
        openblas | {"version": "0.3.30"},
        openblas | {"version": "0.3.30"},
        {"user_api": "blas", "internal_api": "mkl", "version": "2025.1"},
        {"user_api": "openmp", "internal_api": "openmp", "version": None},
    ]
    monkeypatch.setattr(machine, "threadpool_info", lambda: libraries)
    assert machine.machine("cpu")["matrix_products"] == (
        "mkl 2025.1, openblas 0.3.30 SkylakeX, openblas 0.3.31 SkylakeX"
    )


def test_a_library_of_matrix_products_that_is_not_found_is_the_one_that_numpy_was_built_with(monkeypatch):
    """Accelerate of macOS, which threadpoolctl does not know."""
    monkeypatch.setattr(machine, "threadpool_info", lambda: [{"user_api": "openmp"}])
    built = {"Build Dependencies": {"blas": {"name": "accelerate"}}}
    monkeypatch.setattr(machine.np, "show_config", lambda mode: built)
    assert machine.matrix_products() == "accelerate"
    built.clear()
    assert machine.matrix_products() == ""


def test_the_processor_of_macos_has_the_name_of_its_brand(monkeypatch):
    """Python knows it as "arm", and there is no /proc."""

    def read(key, text, size, *rest):
        assert (key, size._obj.value) == (b"machdep.cpu.brand_string", 256)
        ctypes.memmove(text, b"Apple M2 Pro\0", 13)
        return 0

    monkeypatch.setattr(cores.Path, "is_file", lambda path: False)
    monkeypatch.setattr(cores.platform, "processor", lambda: "arm")
    monkeypatch.setattr(cores.ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=read))
    assert cores.cpu_name.__wrapped__() == "Apple M2 Pro"
    monkeypatch.setattr(cores.ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=lambda *_: -1))
    assert cores.cpu_name.__wrapped__() == "arm"
    monkeypatch.setattr(cores.ctypes, "CDLL", lambda name: SimpleNamespace())
    assert cores.cpu_name.__wrapped__() == "arm"
