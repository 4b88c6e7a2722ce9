"""Builds the subject of ``mhrun check``: a kernel with the user's part, its target and its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun.build import build
from mhrun.cli.checked import PARTS
from mhrun.cli.configuration.resolution import bounded
from mhrun.errors import UserError, cause, reason
from mhrun.numbers import is_number, is_whole

if TYPE_CHECKING:
    from mhrun.check.subject import Subject
    from mhrun.parts import Kernel


_UNUSED = (
    "These checks are without the method's target.surrogate={chosen}: their targets have no bounds on the remainders "
    "of an expansion. Compare its draws with those of hmc or mcmc, too (mhrun compare)."
)
_LOWER_BOUND = "lower_bound"  # how the names of these surrogates begin
_LOWER_LIMITS = {
    "seed": 0,
    "chains": 200,  # fewer cannot show a distribution
    "n": 1,
    "m": 1,
    "effective": 1,
}


def _number(config: DictConfig, key: str) -> Any:
    value, whole = config[key], key != "effective"
    if (
        not is_number(value)
        or not _LOWER_LIMITS[key] <= value < float("inf")
        or (whole and not is_whole(value))
    ):
        form = "a whole number" if whole else "a number"
        raise UserError(f"{key} = {value!r} must be {form}, at least {_LOWER_LIMITS[key]}.")
    return int(value) if whole else float(value)


def subject_of(config: DictConfig, name: str) -> Subject:
    """Return what the settings of a check describe, called `name`.

    Raises:
        UserError: invalid or incompatible settings.
    """
    from mhrun.check.subject import Subject

    settings = {key: _number(config, key) for key in _LOWER_LIMITS}
    step = config.step_size
    if step is not None and (isinstance(step, bool | str) or not 0 < step < float("inf")):
        raise UserError(f"step_size = {step!r} must be a positive number, or null for a search.")

    def make(n: int, m: int) -> Kernel:
        """Return the kernel for n data and minibatches of m; the exact one for m = n."""
        sized_config = OmegaConf.merge(config, {"n": n, "m": m})
        assert isinstance(sized_config, DictConfig)
        return _kernel(sized_config, exact=m == n)

    kernel = make(settings["n"], settings["m"])  # a mistake is reported before any check runs
    size = None if step is None else float(step)
    # What is named first here decides the others, as in `_kernel`.
    kind = next((part for part in PARTS if config.get(part)), "kernel").replace("method", "kernel")
    chosen = str(OmegaConf.select(config, "method.target.surrogate", default="none"))
    surrogate = _surrogate(chosen, kernel, settings["n"])
    notes = (_UNUSED.format(chosen=chosen),) if surrogate != chosen else ()
    return Subject(name, make, step_size=size, surrogate=surrogate, kind=kind, notes=notes, **settings)


def _surrogate(surrogate: str, kernel: Kernel, n: int) -> str:
    """Return the surrogate of the checks' targets: the method's own, a lower bound if the kernel needs one, or none.

    Bounds on terms are of log-likelihoods and not of the remainders of a Taylor polynomial, so that methods that need
    both are checked without the polynomial. The gradients of a dynamics need no bounds.

    Raises:
        UserError: there is no such surrogate, or the kernel does not run without it.
    """
    from mhrun.check.targets import gaussian_mean
    from mhrun.parts import ARRIVALS
    from mhrun.types import BOUND_KINDS

    gaussian = gaussian_mean(n)
    with_surrogate = gaussian.target(surrogate)
    needs_no_bounds = kernel.rule is not None and kernel.rule.wants != ARRIVALS
    if kernel.dynamics is not None or (needs_no_bounds and kernel.refuses(with_surrogate) is None):
        return surrogate
    if kernel.refuses(gaussian.target()) is None:
        return "none"
    bounds = [surrogate] if surrogate.startswith(_LOWER_BOUND) else [_LOWER_BOUND, f"{_LOWER_BOUND}_untuned"]
    for name in bounds:
        if kernel.refuses(gaussian.target(name)) is None:
            return name
    if surrogate in BOUND_KINDS:
        raise UserError(
            f"it needs target.surrogate={surrogate}, and the checks have no targets with bounds on the remainders "
            "of an expansion; compare its draws with those of hmc or mcmc on a small target (mhrun compare)."
        )
    return "none"


def _kernel(config: DictConfig, *, exact: bool) -> Kernel:
    from mhrun.kernels import MetropolisHastings, Unadjusted
    from mhrun.pairing.full import Full
    from mhrun.pairing.growing import Growing
    from mhrun.pairing.shared import Shared
    from mhrun.pairing.thinned import Thinned
    from mhrun.parts import ARRIVALS, SUPPLY
    from mhrun.proposals.random_walk import RandomWalk
    from mhrun.rules.metropolis import Metropolis
    from mhrun.rules.mh_minibatch import MHMinibatch

    def part(name: str) -> Any:
        node = _plain(config, name)
        return build(node, name) if node else None

    kernel = part("kernel") or _of_method(config)
    if kernel is not None:
        return kernel
    if (dynamics := part("dynamics")) is not None:
        return Unadjusted(dynamics, None if exact else int(config.m))
    proposal, pairing, rule = (part(name) for name in ("proposal", "pairing", "rule"))
    if proposal is pairing is rule is None:
        raise UserError("this names no part; give rule=, proposal=, pairing=, dynamics= or method=NAME.")
    if rule is None:
        rule = MHMinibatch(config.m) if pairing is not None and pairing.offers == SUPPLY else Metropolis()
    if pairing is None and rule.wants == ARRIVALS:
        pairing = Thinned()
    if pairing is None:
        pairing = Growing() if rule.wants == SUPPLY else Full() if exact else Shared(int(config.m))
    return MetropolisHastings(proposal or RandomWalk(), pairing, rule)


def _of_method(config: DictConfig) -> Any:

    node = _plain(config, "method.kernel")
    return build(node, "method.kernel") if node else None


def _plain(config: DictConfig, path: str) -> dict[str, Any]:
    """Return a node of the settings, resolved."""
    try:
        node = OmegaConf.select(config, path)
        if not node:
            return {}
        if missing := sorted(OmegaConf.missing_keys(node)):
            raise UserError(f"{path}.{missing[0]} must be given; add {path}.{missing[0]}=VALUE.")
        with bounded():
            settings: dict[str, Any] = OmegaConf.to_container(node, resolve=True)  # type: ignore[assignment]
        return settings
    except RecursionError as error:
        raise UserError(f"{path} is too deep: groups, lists or ${{...}} in one another.") from error
    except OmegaConfBaseException as error:
        if (user_error := cause(error)) is not None:
            raise user_error from error
        raise UserError(f"{path}: {reason(error)}; add it as +KEY=VALUE.") from error
