"""Methods of the command line in Python, by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import mhrun
from mhrun.arithmetic import register_arithmetic
from mhrun.build import build, trusted_object
from mhrun.engine.method_file import MISSING, is_method, method_file, method_names, missing, references
from mhrun.errors import UserError, cause, first_line, nearest
from mhrun.parts import Kernel
from mhrun.schedules import Schedule

STEP_SIZE = "step_size"
_NUTS = " The default method, hmc, is Hamiltonian Monte Carlo whose step size and trajectories a pilot finds."
_OF_CALL = frozenset(("chains", "warmup", "steps", "temperature", STEP_SIZE, "data.n", "target.temper"))
"""Settings of files that the arguments of `mhrun.sample` give."""
_OF_RUN = frozenset(("chains", "warmup", "steps", "data.n"))
"""Those that are known when it runs."""


def method(name: str, **settings: Any) -> NamedMethod:
    """Return a method of the command line, as the kernel of `mhrun.sample`.

    ``mhrun.sample(log_lik, data, mhrun.method("mhminibatch", m=50))`` takes kernel, schedules and surrogate from
    conf/method/mhminibatch.yaml; ``mhrun.sample(log_lik, data, "mhminibatch")`` takes them as they are.

    Args:
        name: of a file in conf/method, see `mhrun list methods`.
        settings: values of the settings that the file leaves to an experiment, such as `m`, or `ratio` and `rungs` of a
            ladder. The file's ``${oc.select:m,100}`` is 100 unless `m` is given, and its ``${ratio}`` must be.

    Returns:
        The method. Printed, it is what `mhrun.sample` is given without the name, in which any part can be changed.

    Raises:
        UserError: no such method, a setting that its file does not have, one that is missing, or one from which no
            part can be made.
    """
    if not isinstance(name, str) or not is_method(name):
        near = _NUTS if str(name).lower() == "nuts" else nearest(str(name).lower(), method_names())
        raise UserError(
            f"mhrun has no method {name!r}.{near} `mhrun list methods` shows all; methods of a project run from the "
            "command line alone."
        )
    found = {
        key: has_default for key, has_default in references(method_file(name)).items() if key not in _OF_CALL
    }
    if unknown := sorted(settings.keys() - found.keys()):
        has = f"it has {' and '.join(found)}" if found else "it has none"
        advice = (
            " step_size= and temperature= are arguments of mhrun.sample;" if _OF_CALL & set(unknown) else ""
        )
        raise UserError(
            f"{name} has no setting {unknown[0]}; {has}.{advice} print(mhrun.method('{name}')) shows its parts, in "
            "which any can be changed."
        )
    if needed := [key for key, has_default in found.items() if not has_default and key not in settings]:
        arguments = ", ".join(f"{key}=..." for key in needed)
        raise UserError(f"{name} needs {' and '.join(needed)}: mhrun.method('{name}', {arguments}).")
    named = NamedMethod(name, {key: _plain(key, value) for key, value in settings.items()})
    repr(named)  # computes what does not depend on the data or on the run
    return named


def _plain(name: str, value: Any) -> Any:
    """Return a number of NumPy's or of torch's as one of Python's.

    Raises:
        UserError: the value is neither a number nor a text without ``${...}``.
    """
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    if not isinstance(plain, str | int | float) or "${" in str(plain):
        raise UserError(f"{name} = {value!r} must be a number or auto.")
    return plain


@dataclass(frozen=True, repr=False)
class NamedMethod:
    """A method of conf/method; see `mhrun.method`.

    Args:
        name: of its file.
        settings: of an experiment.
    """

    name: str
    settings: Mapping[str, Any]

    def __repr__(self) -> str:
        """Return its kernel as a call of classes, and what else `mhrun.sample` is given to run it.

        Settings that are a class's defaults are left out, and those that depend on the data are ``...``.
        """
        file = method_file(self.name)
        given = [self._written(file["kernel"])]
        if STEP_SIZE in file["schedules"]:
            given.append(f"step_size={self._written(file['schedules'][STEP_SIZE])}")
        if (temperature := self._temperature()) != 1:
            given.append(f"temperature={temperature}")
        if self.surrogate != "none":
            given.append(f'surrogate="{self.surrogate}"')
        return ", ".join(given)

    def _temperature(self) -> Any:
        """Return the temperature, of a ladder that of each rung."""
        file = method_file(self.name)
        if "temperature" not in file["schedules"]:
            return 1
        of_one_ladder = {"chains": self._value(file["kernel"].get("rungs", 1))}
        return self.resolved("schedules.temperature", of_one_ladder)["temperature"]

    @property
    def surrogate(self) -> str:
        """The control variate of its target."""
        return str((method_file(self.name).get("target") or {}).get("surrogate", "none"))

    def kernel(self, settings: Mapping[str, Any]) -> Kernel:
        """Return its kernel, from steps, warmup and the number of data."""
        kernel: Kernel = build(self.resolved("kernel", settings), f"{self.name}.kernel")
        return kernel

    def reads(self, setting: str) -> bool:
        """Return whether one of its schedules is made from a setting of an experiment."""
        return setting in references(method_file(self.name)["schedules"])

    def schedules(self, settings: Mapping[str, Any], given: Mapping[str, Schedule]) -> dict[str, Schedule]:
        """Return its schedules.

        Args:
            settings: chains, steps, warmup, and of `step_size` and `temperature` those that its file reads.
            given: schedules in place of the file's.

        Raises:
            UserError: the file leaves something open that is not given.
        """
        schedules = dict(given)
        for quantity, node in method_file(self.name)["schedules"].items():
            if quantity in given:
                continue
            if open_settings := missing(node):
                schedule = str(node["_target_"]).rpartition(".")[2]
                raise UserError(
                    f"{self.name} leaves {' and '.join(open_settings)} of its {quantity} open: give "
                    f"{quantity}=mhrun.{schedule}(...)."
                )
            path = f"schedules.{quantity}"
            schedules[quantity] = build(self.resolved(path, settings), f"{self.name}.{path}")
        return schedules

    def has_schedule(self, quantity: str) -> bool:
        """Return whether its file has a schedule of a quantity."""
        return quantity in method_file(self.name)["schedules"]

    def check_temperature(self) -> None:
        """Refuse temperatures in place of the file's where its rungs have other settings that follow these.

        Raises:
            UserError: they have.
        """
        if "ratio" in references(method_file(self.name)["kernel"]):
            raise UserError(
                f"{self.name} sets other parts of its rungs by their temperatures: give "
                f"mhrun.method('{self.name}', ratio=..., rungs=...) in place of temperature=, or a kernel of your own."
            )

    def schedule_class(self, quantity: str) -> type:
        """Return the class of one of its schedules; `object` if it has none."""
        node = method_file(self.name)["schedules"].get(quantity)
        return object if node is None else trusted_object(str(node["_target_"]))

    def resolved(self, path: str, settings: Mapping[str, Any]) -> Any:
        """Return a node of its file, ``schedules.step_size``, with the values of ``${...}``.

        Raises:
            UserError: a value cannot be computed from the settings.
        """
        where = f"{self.name}.{path}"
        return _resolved({**settings, **self.settings, self.name: dict(method_file(self.name))}, where)

    def _written(self, node: Mapping[str, Any]) -> str:
        """Return a part as a call of its class."""
        target = str(node["_target_"])
        name = target.rpartition(".")[2]
        callee = f"mhrun.{name}" if name in mhrun.__all__ else target
        arguments, in_order = [], True
        for key, parameter in inspect.signature(trusted_object(target)).parameters.items():
            value = self._value(node.get(key, parameter.default))
            is_open = isinstance(value, str) and value == MISSING
            is_left_out = value == parameter.default or (is_open and parameter.default is not parameter.empty)
            if key not in node or is_left_out:
                in_order = False
                continue
            is_part = isinstance(value, Mapping) and "_target_" in value
            text = self._written(value) if is_part else "..." if is_open else repr(value)
            text = text.replace("'", '"') if isinstance(value, str) and not is_open else text
            text = 'float("inf")' if value == float("inf") else text
            arguments.append(text if in_order and is_part else f"{key}={text}")
        return f"{callee}({', '.join(arguments)})"

    def _value(self, value: Any) -> Any:
        """Return a setting without its ${...}; `MISSING` where that needs the data or the run."""
        if not isinstance(value, str) or "${" not in value:
            return value
        for key, has_default in references(value).items():
            if key in _OF_RUN or (not has_default and key not in self.settings):
                return MISSING
        return _resolved({**self.settings, self.name: [value]}, self.name)[0]


def _resolved(config: Mapping[str, Any], path: str) -> Any:
    """Return a list or a group of a configuration with the values of ``${...}``.

    Raises:
        UserError: a value cannot be computed.
    """
    register_arithmetic()
    try:
        return OmegaConf.to_container(OmegaConf.select(OmegaConf.create(dict(config)), path), resolve=True)
    except OmegaConfBaseException as error:
        # A function that ${...} calls has a readable message, which OmegaConf wraps in one.
        reason = str(cause(error) or first_line(error)).removesuffix(".")
        raise UserError(f"{path}: {reason}.") from error
