"""The processor features that numba compiles for."""

from __future__ import annotations

import pytest

llvm = pytest.importorskip("llvmlite.binding")
numba = pytest.importorskip("numba")

from numba.core import registry  # noqa: E402

from mhrun.native.processor import use_long_vectors  # noqa: E402


class _Target:
    """Stands for numba's target, which reads the features when its context is first made."""

    def __init__(self) -> None:
        self.features: list[str | None] = []

    @property
    def target_context(self) -> None:
        self.features.append(numba.config.CPU_FEATURES)


@pytest.mark.parametrize(
    ("cpu", "chosen", "is_set"),
    [
        ("emeraldrapids", None, True),
        ("skylake-avx512", None, False),
        ("znver4", None, False),
        ("emeraldrapids", "+avx2", False),
    ],
)
def test_long_vectors_where_they_pay_and_nobody_has_chosen(
    monkeypatch: pytest.MonkeyPatch, cpu: str, chosen: str | None, is_set: bool
) -> None:
    """Numba's target is made with the feature, which does not stay in numba's settings."""
    target = _Target()
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: cpu)
    monkeypatch.setattr(registry, "cpu_target", target)
    monkeypatch.setattr(numba.config, "CPU_FEATURES", chosen)
    use_long_vectors.__wrapped__()
    has_feature = [str(features).endswith(",-prefer-256-bit") for features in target.features]
    assert has_feature == [True] * is_set
    kept = numba.config.CPU_FEATURES
    assert kept == chosen
