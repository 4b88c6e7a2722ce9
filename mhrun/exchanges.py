"""The codes of exchanges between rungs, in `mhrun.types.Info` and in traces."""

from __future__ import annotations

NEVER, REFUSED, MADE = 0, 1, 2  # none proposed, rejected, accepted
