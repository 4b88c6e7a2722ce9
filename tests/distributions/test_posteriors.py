"""Ten posteriors with the defaults of `mhrun.sample`: right within Monte Carlo error, or with a warning.

The references in posteriors.json are by closed forms, quadrature and importance sampling (`benchmarks/
reference_posteriors.py`), with their errors. A right sampler is off by more than 4 errors in one of some 60 comparisons
with probability 0.4 %; seeds are fixed, so that the rate is that of a change of the code.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from mhrun.paths import PACKAGE

FOLDER = PACKAGE.parent / "benchmarks"
KNOWN = json.loads((Path(__file__).parent.parent / "posteriors.json").read_text())
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER.exists(), reason="the benchmarks are in the repository only"),
]
LIMIT = 4.0
DOUBTFUL = {"hierarchical", "network"}  # a funnel, and modes that no chain leaves: a warning is right


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("ten_posteriors")


def test_the_references_have_every_parameter(benchmark):
    assert set(KNOWN) == set(benchmark.POSTERIORS)
    for name, made in benchmark.POSTERIORS.items():
        posterior = made()
        given = benchmark.user_model(posterior.model, posterior.data, **posterior.settings)
        assert set(KNOWN[name]["names"]) == set(given.model.names), name
        for mean, sd, mean_error, sd_error in KNOWN[name]["names"].values():
            assert sd > 0
            assert max(mean_error, sd_error) < 0.01 * sd
            assert np.isfinite(mean)


@pytest.mark.slow
def test_defaults_are_right(benchmark):
    """With a tenth of the default steps, so that 4 errors are wide: of gross errors in transforms and proposals."""
    found = benchmark.sampled("simplex", benchmark.POSTERIORS["simplex"](), None, steps=200, warmup=50)
    assert found.off < LIMIT


def test_the_comparison_sees_a_wrong_posterior(benchmark):
    """Independent draws of the simplex posterior, and of those with Jeffreys's prior in place of the uniform one."""
    counts, rng = np.array([12, 7, 3, 1, 0]), np.random.default_rng(0)
    names = list(KNOWN["simplex"]["names"])
    assert benchmark.difference("simplex", names, rng.dirichlet(counts + 1.0, (4, 250))) < LIMIT
    assert benchmark.difference("simplex", names, rng.dirichlet(counts + 0.5, (4, 250))) > LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KNOWN))
def test_all_posteriors_with_all_defaults(benchmark, name):
    found = benchmark.sampled(name, benchmark.POSTERIORS[name](), None)
    if name not in DOUBTFUL:
        assert not found.lines
    assert found.lines or found.off < LIMIT
