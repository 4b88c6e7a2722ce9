"""What ``mhrun check`` checks, and what its command line sets."""

from __future__ import annotations

WHOLE = ("kernel", "method", "dynamics")
"""The first of these that is given is checked alone; a method, for its kernel."""
PARTS = (*WHOLE, "rule", "pairing", "proposal")
"""The first of these that is given is checked; what completes it to a kernel is given too, or the plainest."""
CLASSES = tuple(part for part in PARTS if part != "method")
"""Those whose classes have a base class in `mhrun.parts`."""
NAMED = tuple(part for part in PARTS if part != "kernel")
"""Those with a folder in conf/."""

SETTINGS = ("checks", "seed", "chains", "step_size", "n", "m", "effective")
"""What the checks themselves read."""
