"""Runs of the command line, opened from Python: traces, model, data, and predictions for new rows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mhrun.build import TRUST
from mhrun.data import Dataset
from mhrun.data.arrays import Memmap, Npz
from mhrun.data.table import Table
from mhrun.engine.predictive.log_score import log_score
from mhrun.engine.predictive.predict import predict
from mhrun.errors import UserError, nearest
from mhrun.models.function import FunctionModel
from mhrun.paths import FOLDERS, expanded
from mhrun.store.blocks import damage
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import open_trace
from mhrun.store.projects import Project, configurations, shown
from mhrun.store.projects import project as project_at
from mhrun.store.sources import sources
from mhrun.store.targets import Targets
from mhrun.target import Target
from mhrun.types import Model
from mhrun.types.capabilities import Simulates, offers

if TYPE_CHECKING:
    import xarray as xr


class LoadedRun:
    """A complete run of the command line; see `load`."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], own: Project | None) -> None:
        self._folder, self._config, self._own = folder, config, own
        self._targets = Targets(config, device="cpu", check=self._check_files)
        self._verified: set[str] = set()  # methods whose traces are as they were written

    def __repr__(self) -> str:
        return f"LoadedRun({str(self._folder.path)!r}, methods={self.methods})"

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self._folder.path

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved settings of the run."""
        return self._config

    @property
    def methods(self) -> list[str]:
        """The names of the methods."""
        return list(self._config["methods"])

    @property
    def model(self) -> Model:
        """The model of the experiment."""
        return self.target().model

    @property
    def data(self) -> Dataset:
        """The data of the run, prepared as the methods read them; ``data.facts`` has means and scales of a table."""
        with self._trusted():
            return self.target().data

    def target(self, method: str | None = None) -> Target:
        """Return the target of a method, or that of the experiment."""
        name = None if method is None else self._checked_method(method)
        with self._trusted():
            return self._targets.of_experiment() if name is None else self._targets.of(name)

    def trace(self, method: str) -> xr.DataTree:
        """Return the trace of a method, as `mhrun.sample` returns one.

        Its checksum is compared at the first call: a second for each 1 to 2 GB.

        Raises:
            UserError: an unknown method, or a trace that was changed or cannot be read.
        """
        folder = self._folder.method(self._checked_method(method))
        if method not in self._verified:
            if (reason := damage(folder)) is not None:
                raise UserError(f"{folder}: {reason}; run the same command again to recompute it.")
            self._verified.add(method)
        try:
            return open_trace(folder)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"The trace in {folder} cannot be read: {type(error).__name__}.") from error

    def rows(self, new: Any, method: str | None = None, *, outcome: bool = False) -> Dataset:
        """Return new rows prepared as the run's: of a table, the raw columns are standardised by the run's own means.

        Args:
            new: for data of a table: a DataFrame, a mapping from the table's columns to values, or a file; other
                columns are ignored. For other data: what `Dataset.of` takes, as the model reads it, or an .npz file;
                bytes are pixels if those of the run are.
            method: whose data; None: the experiment's.
            outcome: of a table, whether the outcome is read too, as the field ``y`` in the model's units.

        Raises:
            UserError: a column is missing, or a value does not fit.
        """
        with self._trusted():
            source = self.target(method).source
            if isinstance(source, Table):
                return source.prepared(new, outcome=outcome)
            pixels = isinstance(source, Npz | Memmap) and source.pixels
            if isinstance(new, str | os.PathLike):
                return Npz(os.fspath(new), source.fields if isinstance(source, Npz) else None, pixels).load()
            return Dataset.of(new, pixels=pixels)

    def predict(
        self,
        method: str,
        new: Any,
        function: Callable[..., Tensor] | None = None,
        *,
        original_units: bool = True,
        every: int = 1,
        each: bool = False,
        seed: int = 0,
        outcomes: bool = False,
    ) -> xr.DataArray:
        """Return the posterior predictive of a method for new rows: (1/S) sum_s f(theta_s, x_i), as `mhrun.predict`.

        f is `function`, if given. Otherwise it is, of a logistic regression, the probability of the positive outcome;
        of a Poisson, binomial or robust regression, the mean of the outcome; of a model function, its `mean`, else a
        new outcome by its `simulate`; of a classifier, the probability of each class.

        Args:
            method: of the run.
            new: as for `rows`.
            function: ``(theta, batch)`` -> (m, ...), with theta and the fields of the prepared rows.
            original_units: if the outcome was standardised: whether f is an outcome or a mean of it, and is returned in
                the units of the table.
            every: use every so many draws only.
            each: return f at each draw, not the mean.
            seed: of the random numbers of f.
            outcomes: whether f is a new outcome, by the `simulate` of a model function or of a regression, whose means
                or probabilities are predicted otherwise. Of a table with two outcomes it is 1 for the positive one and
                0 for the other; of one with classes their place in ``data.facts["classes"]``, which needs `each`.

        Returns:
            (datum, ...), with `each` (chain, draw, datum, ...). The dimension ``class`` of a table's outcome has its
            values as coordinates.

        Raises:
            UserError: an unknown method, data that do not fit, a model that predicts nothing, or the mean of classes.
        """
        target, trace = self.target(method), self.trace(method)
        rows = self.rows(new, method)
        with self._trusted():
            facts = target.data.facts
            if function is None and outcomes and not each and "classes" in facts:
                raise UserError(
                    "the mean of classes is no class; give each=True, or leave out outcomes=True."
                )
            f = function if function is not None else _prediction(target.model, outcomes=outcomes)
            prediction = predict(trace, f, rows, every=every, each=each, seed=seed)
        if function is None and outcomes and "positive" in facts:
            prediction = (prediction + 1) / 2  # the model's outcomes are +1 and -1
        if original_units and "target_mean" in facts:
            prediction = prediction * facts["target_sd"] + facts["target_mean"]
        if "class" in prediction.dims and prediction.sizes["class"] == len(facts.get("classes", ())):
            prediction = prediction.assign_coords({"class": list(facts["classes"])})
        return prediction

    def log_score(self, method: str, new: Any, *, every: int = 1, each: bool = False) -> xr.DataArray:
        """Return log (1/S) sum_s p(y_i | theta_s, x_i), the log score of each new row, as `mhrun.log_score`.

        Its sum over rows that were held out is higher for the method, or the model, that predicts them better.

        Args:
            method: of the run.
            new: rows with their outcomes, as for `rows`.
            every: use every so many draws only.
            each: return log p(y_i | theta_s, x_i) of each draw.

        Returns:
            (datum,); with `each`, (chain, draw, datum). Of an outcome that was standardised p is the density of the
            outcome in the units of the table.

        Raises:
            UserError: an unknown method, data that do not fit, or without outcomes.
        """
        target, trace = self.target(method), self.trace(method)
        rows = self.rows(new, method, outcome=True)
        with self._trusted():
            score = log_score(trace, target.model, rows, every=every, each=each)
        return score - math.log(target.data.facts.get("target_sd", 1.0))

    def _checked_method(self, method: str) -> str:
        if method not in self._config["methods"]:
            raise UserError(
                f"The run has no method '{method}'; it has {', '.join(self.methods)}.{nearest(method, self.methods)}"
            )
        return method

    def _check_files(self) -> None:
        """Refuse data and Python files that have changed since the run: its draws belong to others."""
        recorded = self._config.get("sources") or {}
        try:
            digests = sources(self._config)
        except UserError as error:
            self._refuse_another_project()
            hint = "" if self._own else " Give load the project of the run, project=DIR."
            raise UserError(f"{error}{hint}") from error
        changed = [name for name in recorded if digests.get(name) != recorded[name]]
        if changed:
            self._refuse_another_project()
            raise UserError(
                f"'{changed[0]}' is not as it was when the run was made; repeat the run."
                if self._own
                else f"'{changed[0]}' belongs to the run; give load its project, project=DIR."
            )

    def _refuse_another_project(self, *, unless_alike: bool = False) -> None:
        """Refuse a project that is not the run's: projects from tables of one name share their folder of runs.

        A project that was moved or copied is the run's if its configurations are the same: see `unless_alike`.

        Raises:
            UserError: it is another project.
        """
        folders = self._folder.projects()
        mine = None if self._own is None else self._own.folder
        if mine is not None and folders and mine not in folders:
            if unless_alike and not any(
                f.is_dir() and configurations(f) != configurations(mine) for f in folders
            ):
                return
            raise UserError(
                f"{self._folder.path} is a run of project {shown(folders)}, not of {shown([mine])}; "
                f"give load project={shown(folders[:1])!r}, or another run."
            )

    @contextmanager
    def _trusted(self) -> Iterator[None]:
        """Trust the project's files, and search them, inside the context."""
        if self._own is None:
            yield
            return
        before = {name: os.environ.get(name) for name in (TRUST, FOLDERS)}
        additions = {TRUST: (self._own.modules, ","), FOLDERS: ([str(self._own.folder or "")], os.pathsep)}
        for name, (entries, separator) in additions.items():
            os.environ[name] = separator.join(filter(None, [before[name] or "", *entries]))
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def load(run: str | os.PathLike[str], *, project: str | os.PathLike[str] | None = None) -> LoadedRun:
    """Return a complete run of the command line: its traces, its model, and predictions for new rows.

    Args:
        run: the folder of the run, as printed at its end; ``<outputs>/<experiment>/latest`` is the newest.
        project: the project that the run was made with, as in ``mhrun --project``. Its Python files are trusted:
            without it, no code but mhrun's is executed.

    Raises:
        UserError: there is no such run, it is not complete, or the project does not exist or is not the run's.
    """
    path = expanded(run)
    folder = RunFolder(path.resolve())
    if not (folder.path / "config.yaml").is_file():
        raise UserError(
            f"'{path}' is not a run: it has no config.yaml. mhrun prints the folder at the end of a run, and "
            "OUTPUTS/EXPERIMENT/latest is the newest."
        )
    if (reason := folder.incomplete()) is not None:
        raise UserError(reason)
    loaded = LoadedRun(folder, folder.config(), None if project is None else project_at(os.fspath(project)))
    loaded._refuse_another_project(unless_alike=True)
    return loaded


def _prediction(model: Model, *, outcomes: bool) -> Any:
    """Return the prediction of a model: a function of theta and the rows, or the model itself.

    Raises:
        UserError: `outcomes` of a model without `simulate`.
    """
    is_function = isinstance(model, FunctionModel)
    simulate = model.simulate if offers(model, Simulates) else None
    if outcomes and simulate is None:
        what = "the model function" if is_function else type(model).__name__
        raise UserError(
            f"outcomes=True needs a model with simulate, which {what} lacks; give predict a function (theta, batch) "
            "that draws outcomes."
        )
    if isinstance(model, FunctionModel) and model.mean is not None and not outcomes:
        return model.mean
    if simulate is None or not (outcomes or is_function):
        return model

    def outcome(theta: Any, batch: Any) -> Tensor:
        fields = dict(simulate(theta, batch))
        if "y" not in fields:
            raise UserError(
                f"simulate returns {', '.join(fields)}, no y; give predict a function (theta, batch)."
            )
        return torch.as_tensor(fields["y"])

    return outcome
