"""The description of the machine in a run's summary."""

from __future__ import annotations

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
