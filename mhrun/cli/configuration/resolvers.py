"""OmegaConf's resolvers for configurations: arithmetic, and replacements of those that could do harm."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from mhrun.arithmetic import register_arithmetic
from mhrun.cli.configuration.parse_cache import keep_parse_trees
from mhrun.cli.configuration.resolution import decoded, environment, name_part
from mhrun.errors import UserError


def register_resolvers() -> None:
    """Register what ``${...}`` in configurations may call."""
    keep_parse_trees()
    register_arithmetic()
    OmegaConf.register_new_resolver("name_part", name_part, replace=True)
    OmegaConf.register_new_resolver("oc.env", environment, replace=True)
    OmegaConf.register_new_resolver("oc.decode", decoded, replace=True)
    OmegaConf.register_new_resolver("oc.create", _no_create, replace=True)


def _no_create(text: Any) -> Any:
    raise UserError("oc.create is not one of mhrun's resolvers; write the values themselves.")
