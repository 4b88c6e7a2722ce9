"""mhrun: Metropolis-Hastings with minibatches and stochastic-gradient MCMC.

From Python, `sample` runs any kernel on any model, `method` is one of the command line with settings, `predict` gives
the posterior predictive and `log_score` its density at data, `compare` judges draws against a reference, and `load`
opens a run of the command line; the other names are the parts that configurations name, and their base classes. They
are imported on first use, so that ``import mhrun`` is quick.
"""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

__version__ = "0.2.0"

_WHERE = {  # besides the parts of conf/
    "sample": "mhrun.engine.call.sample",
    "method": "mhrun.engine.named_method",
    "predict": "mhrun.engine.predictive.predict",
    "log_score": "mhrun.engine.predictive.log_score",
    "load": "mhrun.engine.loaded",
    "compare": "mhrun.report.comparison.traces",
    "rung": "mhrun.diagnostics.ladders",
    "Target": "mhrun.target",
    "FunctionModel": "mhrun.models.function",
    "ModuleModel": "mhrun.models.module",
    "Parameters": "mhrun.models.parameters",
    "PyroModel": "mhrun.models.pyro_model",
    "Dataset": "mhrun.data.dataset",
    "Schedule": "mhrun.schedules",
    "Monitor": "mhrun.monitors",
    # Base classes of users' parts, and what rules see.
    "Kernel": "mhrun.parts",
    "Proposal": "mhrun.parts",
    "Pairing": "mhrun.parts",
    "Rule": "mhrun.parts",
    "Dynamics": "mhrun.parts",
    "Bias": "mhrun.parts",
    "Contest": "mhrun.types",
    "Verdict": "mhrun.types",
    "Purpose": "mhrun.random",
    "UserError": "mhrun.errors",
}


@cache
def _where() -> dict[str, str]:
    """Return the module of each name that is exported: those above, and the parts that conf/ names."""
    from mhrun.paths import CONF

    texts = (path.read_text(encoding="utf-8") for path in sorted(CONF.glob("*/*.yaml")))
    parts = (
        match for text in texts for match in re.findall(r"^ *_target_: (mhrun[\w.]*)\.(\w+)", text, re.M)
    )
    return _WHERE | {name: module for module, name in parts}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_where()]
    where = _WHERE if name in _WHERE or name.startswith("__") else _where()
    if name in where:
        return getattr(importlib.import_module(where[name]), name)
    from mhrun.errors import nearest

    raise AttributeError(f"module 'mhrun' has no attribute '{name}'.{nearest(name, where)}")


def __dir__() -> list[str]:
    return ["__version__", *sorted(_where())]
