"""What a model offers is found by its attributes, however it has them, in all versions of Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mhrun.data import Dataset
from mhrun.models.logistic import Logistic
from mhrun.target import Target
from mhrun.target.configured import check_members
from mhrun.types import capabilities
from mhrun.types.capabilities import HasBounds, HasFields, HasLogLikOfOne, HasOutcomeMean, ReadsPixels, offers


class Wrapper:
    """A model that passes on what it does not have."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)


class Undecided:
    @property
    def fields(self):
        raise AttributeError("no fields yet")


@pytest.mark.parametrize("capability", [HasBounds, HasFields, HasOutcomeMean, ReadsPixels])
def test_a_model_that_wraps_another_offers_what_that_offers(capability):
    model = Logistic(2, 1.0)
    assert offers(model, capability)
    assert offers(Wrapper(model), capability)
    assert not offers(object(), capability)
    assert not offers(Wrapper(model), HasLogLikOfOne)


def test_a_property_that_has_no_value_is_no_member():
    assert not offers(Undecided(), HasFields)


def test_a_wrapped_model_is_a_part_with_bounds():
    wrapped = Wrapper(Logistic(2, 1.0))
    check_members("model", wrapped, ("dim", "names", "init", "log_prior", "log_lik"))
    data = Dataset.of({"x": np.ones((4, 2)), "y": np.array([1, -1, 1, 1])})
    plain, other = (Target(model, data).bounded.bounds.weights for model in (Logistic(2, 1.0), wrapped))
    assert torch.equal(plain, other)


def test_every_protocol_has_members():
    protocols = [
        one
        for one in vars(capabilities).values()
        if isinstance(one, type) and one.__module__ == capabilities.__name__
    ]
    assert len(protocols) > 20
    assert all(capabilities._members(one) for one in protocols)
