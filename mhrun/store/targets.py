"""The targets of a configuration: that of the experiment, and those of its methods."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from mhrun.store.identity import parts_of
from mhrun.target import Target, target_of


class Targets:
    """Targets of a resolved configuration; methods with equal model, data and target settings share one.

    Args:
        config: resolved.
        device: of the targets; None: that of the configuration.
        check: called before a target is made.
    """

    def __init__(
        self, config: Mapping[str, Any], device: str | None = None, check: Callable[[], None] | None = None
    ) -> None:
        self._config = {**config, "device": config["device"] if device is None else device}
        self._check = check
        self._made: dict[str, Target] = {}

    def of_experiment(self) -> Target:
        """Return the target of the experiment.

        Raises:
            UserError: an unknown part or an invalid setting.
        """
        return self._of({})

    def of(self, method: str) -> Target:
        """Return the target of a method, see `parts_of`.

        Raises:
            UserError: an unknown part or an invalid setting.
        """
        return self._of(parts_of(self._config, method))

    def _of(self, parts: Mapping[str, Any]) -> Target:
        replaced = {part: value for part, value in parts.items() if value != self._config.get(part)}
        key = json.dumps(replaced, sort_keys=True, default=str)
        if key not in self._made:
            if self._check is not None:
                self._check()
            self._made[key] = target_of({**self._config, **replaced})
        return self._made[key]
