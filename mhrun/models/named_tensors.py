"""Named tensors, as user functions receive parameters and data."""

from __future__ import annotations

from typing import Any


class Named(dict[str, Any]):
    """Tensors by name, as items and as attributes; a name equal to that of a dict method hides the method."""

    def __getattribute__(self, name: str) -> Any:
        return self[name] if dict.__contains__(self, name) else super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(f"there is no '{name}' here, but {', '.join(self)}") from error
