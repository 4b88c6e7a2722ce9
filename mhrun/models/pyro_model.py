"""A Pyro model with one data plate (optional: pip install 'mhrun[pyro]')."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from mhrun.build import trusted_object
from mhrun.errors import Refusal, UserError
from mhrun.models.axes import is_axis
from mhrun.models.explained import explained
from mhrun.models.function import FunctionModel
from mhrun.models.lkj import with_correct_draws
from mhrun.models.parameters import Parameters
from mhrun.random import derive_key

_ROWS = 2  # data in the traces that show what a model consists of: not 1, which broadcasts


class PyroModel(FunctionModel):
    """A Pyro model whose latent sites are parameters and whose one data plate has the data as rows.

    The model is a function of the data's fields, and its plate has as many rows as they have:

        def model(x, y):
            slopes = pyro.sample("slopes", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(x @ slopes, 1.0), obs=y)

    The log-likelihood of datum i is the sum of log p of the observed sites at row i of the plate; the log-prior is that
    of the latent sites, which may depend on each other, with log |Jacobian| of their transforms. Latents may be in
    plates of their own, such as the effects of groups. Chains start at draws from the prior.

    Args:
        model: the function, or its dotted name in a configuration.
        data: the data, or the shape of a row of each field: 1 for a number, k for a vector, [k, l] for a matrix. Fields
            are passed by name; those of floating point are converted to the type of the parameters.
        start: values of some parameters, by name, as `FunctionModel` takes them.

    Raises:
        Refusal: Pyro is not installed, or the model has no data plate or several, discrete latents, a latent for each
            datum, a subsampled plate, a support that depends on other parameters, or a prior that depends on the
            data.
        UserError: the model fails.
    """

    def __init__(
        self, model: Callable[..., Any] | str, data: Any, start: Mapping[str, Any] | None = None
    ) -> None:
        try:
            import pyro  # noqa: F401
        except ModuleNotFoundError as error:
            raise Refusal("PyroModel needs Pyro; install it with pip install 'mhrun[pyro]'.") from error
        function = trusted_object(model, "model") if isinstance(model, str) else model
        sites = _Sites(function, _prototype(data), _others(data))
        super().__init__(
            partial(_log_lik, sites),
            start,
            partial(_log_prior, sites),
            parameters=Parameters(sites.latents),
            simulate=partial(_simulate, sites) if all(sites.observed.values()) else None,
        )
        self._sites = sites

    @property
    def prior_summary(self) -> str:
        """The prior in a line, for run metadata."""
        return (
            f"the Pyro model {getattr(self._sites.model, '__name__', '')}: {', '.join(self._sites.latents)}"
        )

    def refuses_simulation(self) -> str | None:
        """Return why data cannot be drawn from the model, or None."""
        if self.simulate is None:
            return "the model changes a field before it is observed; pass the field itself as obs=."
        return None

    def draw_prior(self, chains: int, key: int, *, strict: bool = False) -> Tensor:
        """Return independent draws of theta (C, D) from the prior; chain c's depends on key and c alone."""
        assert self.parameters is not None
        drawn: dict[str, list[Tensor]] = {name: [] for name in self.parameters.shapes}
        with torch.random.fork_rng(devices=[]):
            for chain in range(chains):
                torch.manual_seed(derive_key(key, f"prior/{chain}") >> 1)
                trace = self._sites.prior_trace()
                for name, values in drawn.items():
                    values.append(trace.nodes[name]["value"].double())
        return self.parameters.theta({name: torch.stack(values) for name, values in drawn.items()}, "a draw")


class _Sites:
    """What a Pyro model consists of.

    Args:
        model: the function.
        prototype: two rows of each field.
        others: rows of other numbers and values, on which the prior must be the same.

    Raises:
        Refusal: the model does not fit.
    """

    def __init__(
        self, model: Callable[..., Any], prototype: dict[str, Tensor], others: Sequence[dict[str, Tensor]]
    ) -> None:
        self.model = model
        self.prototype = prototype
        with torch.random.fork_rng(devices=[]), explained("the Pyro model", prototype):
            traces = []
            for seed in (1, 2):
                torch.manual_seed(seed)
                traces.append(self.trace(prototype, {}))
        first, second = (
            {name: node for name, node in trace.nodes.items() if node["type"] in ("sample", "param")}
            for trace in traces
        )
        sampled = {name: node for name, node in first.items() if not _is_no_site(node)}
        for name, node in sampled.items():
            if node["type"] == "param":
                raise Refusal(
                    f"pyro.param '{name}' is optimised, not sampled; give it a prior with pyro.sample."
                )
        self.plate = _data_plate({n: s for n, s in sampled.items() if s["is_observed"]})
        self.observed = {
            name: next((field for field, rows in prototype.items() if node["value"] is rows), None)
            for name, node in sampled.items()
            if node["is_observed"]
        }
        self.latents: dict[str, Any] = {}
        for name, node in sampled.items():
            if not node["is_observed"]:
                if name not in second:
                    raise Refusal(
                        f"the site '{name}' is not in every run of the model; its sites must be fixed."
                    )
                self.latents[name] = _latent(name, node, second[name], self.plate)
        for setting in self.latents.values():  # an axis cannot have the name of a parameter
            if any(axis in self.latents for axis in setting.get("dims", ())):
                del setting["dims"]
        if not self.latents:
            raise Refusal("the Pyro model has no latent site, so that there is nothing to sample.")
        values = {name: first[name]["value"].detach() for name in self.latents}
        priors = self.log_priors(prototype, values)
        for rows in others:
            try:
                with explained("the Pyro model", rows):
                    changed = self.log_priors(rows, values)
            except UserError:  # ones may be no data of the model, or it fails later, at a minibatch
                continue
            for name, prior in priors.items():
                if not torch.allclose(prior, changed[name], rtol=1e-6, atol=1e-9, equal_nan=True):
                    raise Refusal(
                        f"the prior of '{name}' depends on the data that the model is given, which are a minibatch; "
                        "compute what it needs of all data outside of the model."
                    )

    def prior_trace(self) -> Any:
        """Return a trace with draws from the prior."""
        from pyro.poutine.messenger import Messenger

        class Correct(Messenger):  # type: ignore[misc]
            def _pyro_sample(self, message: Any) -> None:
                message["fn"] = with_correct_draws(message["fn"])

        with Correct():
            return self.trace(self.prototype, {})

    def log_priors(self, rows: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the log-prior of each latent site at some values, in a model that has these rows."""
        trace = self.trace(rows, values)
        nodes = {name: trace.nodes[name] for name in self.latents}
        return {name: _log_prob(node).sum() for name, node in nodes.items()}

    def trace(self, rows: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Any:
        """Return the trace of the model on some rows, with these values of latent sites."""
        from pyro import poutine

        model = poutine.condition(self.model, data=dict(values)) if values else self.model
        default = torch.get_default_dtype()
        torch.set_default_dtype(next(iter(values.values())).dtype if values else torch.float64)
        try:  # numbers in the model have the type of the parameters
            return poutine.trace(model).get_trace(**rows)
        finally:
            torch.set_default_dtype(default)


def _log_prior(sites: _Sites, theta: Mapping[str, Tensor]) -> Tensor:
    """Return the log-prior of the latent sites: one number."""
    rows = {name: _as(value, next(iter(theta.values()))) for name, value in sites.prototype.items()}
    return torch.stack(list(sites.log_priors(rows, theta).values())).sum()


def _log_lik(sites: _Sites, theta: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> Tensor:
    """Return the log-likelihood of each datum (m,)."""
    fields = {name: _as(value, next(iter(theta.values()))) for name, value in rows.items()}
    trace = sites.trace(fields, theta)
    nodes = [trace.nodes[name] for name in sites.observed]
    return torch.stack([_log_prob(node) for node in nodes]).sum(0)


def _log_prob(node: Mapping[str, Any]) -> Tensor:
    """Return log p of a site, 0 where `poutine.mask` masks it, times the factor of `poutine.scale`."""
    from pyro.distributions.util import scale_and_mask

    log_p: Tensor = node["fn"].log_prob(node["value"])
    masked: Tensor = scale_and_mask(log_p, node["scale"], node["mask"])
    return masked


def _simulate(sites: _Sites, theta: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return new values of the observed fields."""
    from pyro import poutine

    fields = {name: _as(value, next(iter(theta.values()))) for name, value in rows.items()}
    free = poutine.uncondition(sites.model)
    trace = poutine.trace(poutine.condition(free, data=dict(theta))).get_trace(**fields)
    return {str(field): trace.nodes[site]["value"] for site, field in sites.observed.items()}


def _as(value: Tensor, like: Tensor) -> Tensor:
    return value.to(like.dtype) if value.is_floating_point() else value


def _prototype(data: Any) -> dict[str, Tensor]:
    """Return two rows of each field: the first ones of the data, or zeros of these shapes.

    Raises:
        Refusal: neither data nor shapes.
    """
    return _rows_of(data, range(_ROWS), 0.0)


def _others(data: Any) -> list[dict[str, Tensor]]:
    """Return three rows: the last ones of the data, or zeros and ones of these shapes."""
    return [_rows_of(data, range(-_ROWS - 1, 0), fill) for fill in (0.0, 1.0)]


def _rows_of(data: Any, indices: range, fill: float) -> dict[str, Tensor]:
    """Return rows of each field, with indices modulo their number, and filled with a number where only shapes are."""
    data = getattr(data, "fields", data)
    if not isinstance(data, Mapping) or not data:
        raise Refusal(
            "data of PyroModel must be fields by name, or the shapes of their rows, such as {x: 7, y: 1}."
        )
    fields = {}
    for name, value in data.items():
        if isinstance(value, int | list | tuple):
            shape = () if value == 1 else tuple(value) if isinstance(value, list | tuple) else (value,)
            fields[str(name)] = torch.full((len(indices), *shape), fill, dtype=torch.float64)
            continue
        try:
            rows = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError, RuntimeError) as error:
            raise Refusal(f"field '{name}' of PyroModel's data holds no numbers.") from error
        if rows.dim() == 0 or not len(rows):
            raise Refusal(f"field '{name}' of PyroModel's data has no rows.")
        fields[str(name)] = _as(rows[torch.tensor(indices) % len(rows)], torch.zeros((), dtype=torch.float64))
    return fields


def _is_no_site(node: Mapping[str, Any]) -> bool:
    """Return whether a node is the index of a plate, or a ``pyro.deterministic``."""
    if node["type"] != "sample":
        return False
    return type(node["fn"]).__name__ == "_Subsample" or bool((node["infer"] or {}).get("_deterministic"))


def _data_plate(observed: Mapping[str, Any]) -> str:
    """Return the name of the one plate of the observed sites."""
    if not observed:
        raise Refusal("the Pyro model has no observed site; pass the data as obs= in a pyro.plate.")
    plates = set()
    for name, node in observed.items():
        frames = node["cond_indep_stack"]
        if not frames:
            raise Refusal(
                f"the observed site '{name}' is in no plate; put it in with pyro.plate('data', len(x)), so that its "
                "rows are the data."
            )
        if len(frames) > 1:
            raise Refusal(
                f"the observed site '{name}' is in the plates {', '.join(f.name for f in frames)}; the data have one "
                "plate, so make a datum a row of several numbers with to_event."
            )
        if not frames[0].vectorized:
            raise Refusal(f"the plate '{frames[0].name}' is a loop; write with pyro.plate(...) instead.")
        if frames[0].size != _ROWS:
            raise Refusal(
                f"the plate '{frames[0].name}' has {frames[0].size} rows when the model is given {_ROWS}; write "
                f"pyro.plate('{frames[0].name}', len(x)) with a field x, so that minibatches fit."
            )
        if not isinstance(node["scale"], int | float) or node["scale"] != 1:
            raise Refusal(f"the site '{name}' is scaled; leave subsampling and scales to mhrun.")
        shape = tuple(_log_prob(node).shape)
        if shape != (_ROWS,):
            raise Refusal(
                f"the log-likelihood of '{name}' has shape {shape} for {_ROWS} data; declare what belongs to a datum "
                "with to_event, and let the plate be the last dimension."
            )
        plates.add(frames[0].name)
    if len(plates) > 1:
        raise Refusal(
            f"the data have one plate, and the Pyro model has {', '.join(sorted(plates))}; keep one."
        )
    return str(plates.pop())


def _latent(name: str, node: Any, second_node: Any, plate: str) -> dict[str, Any]:
    """Return shape and constraint of a latent site."""
    if any(frame.name == plate for frame in node["cond_indep_stack"]):
        raise Refusal(
            f"the latent site '{name}' is in the data plate, one for each datum; sum it out, for mixtures with "
            "dist.MixtureSameFamily."
        )
    support: Constraint = node["fn"].support
    if support.is_discrete:
        raise Refusal(
            f"the latent site '{name}' is discrete, and parameters are continuous; sum it out, for mixtures with "
            "dist.MixtureSameFamily."
        )
    if (
        _bounds(support) != _bounds(second_node["fn"].support)
        or node["value"].shape != second_node["value"].shape
    ):
        raise Refusal(f"the support of '{name}' depends on other parameters; rescale it so that it does not.")
    shape = list(node["value"].shape)
    setting: dict[str, Any] = {"shape": shape or 1, "constraint": support}
    return setting | ({"dims": dims} if (dims := _plates(name, node)) else {})


def _plates(name: str, node: Any) -> list[str]:
    """Return the axes of a latent site, with the names of its plates; empty without plates."""
    batch = node["value"].dim() - node["fn"].event_dim
    axes = [f"{name}_dim_{k}" for k in range(node["value"].dim())]
    frames = [frame for frame in node["cond_indep_stack"] if frame.vectorized and is_axis(frame.name)]
    for frame in frames:
        axes[batch + frame.dim] = frame.name
    return axes if frames else []


def _bounds(support: Any) -> list[Any]:
    """Return what a support consists of, as plain values."""
    if isinstance(support, constraints.independent):
        return [*_bounds(support.base_constraint), support.reinterpreted_batch_ndims]
    values = [v.tolist() if isinstance(v, Tensor) else v for v in vars(support).values()]
    return [type(support).__name__, *map(str, values)]
