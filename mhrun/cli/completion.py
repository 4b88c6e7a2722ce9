"""``mhrun completion``: scripts for shells, and completions of a command line. Imports no heavy modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mhrun.cli.checked import NAMED, SETTINGS
from mhrun.cli.commands import COMMANDS, COMMON, OPTIONS
from mhrun.cli.exit_status import OK
from mhrun.cli.listing.key_tree import KeyTree, key_tree
from mhrun.cli.listing.methods import METHODS
from mhrun.cli.listing.outline import Outline, method_parts, outline
from mhrun.cli.places import experiments, outputs_of
from mhrun.errors import UserError, nearest
from mhrun.names import SCALES
from mhrun.paths import CONF
from mhrun.store.folder import runs
from mhrun.store.projects import project

BASH = r"""# bash completion for mhrun:  source <(mhrun completion bash)
_mhrun() {
    local line="${COMP_LINE:0:COMP_POINT}" word tail found
    word="${line##*[[:space:]]}"
    tail="${word##*[$COMP_WORDBREAKS]}"    # bash replaces only what follows the last of these
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("${found#"${word%"$tail"}"}")
    done < <("${COMP_WORDS[0]}" completion --line "$line" 2>/dev/null)
}
complete -o nospace -o default -F _mhrun mhrun
"""

ZSH = r"""#compdef mhrun
# zsh completion for mhrun:  source <(mhrun completion zsh), after compinit
_mhrun() {
    local -a found open closed
    found=(${(f)"$("${words[1]}" completion --line "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
    open=(${(M)found:#*[=.]})
    closed=(${${found:#*[=.]}% })
    (( ${#found} )) || _files
    (( ${#open} )) && compadd -Q -S '' -- $open
    (( ${#closed} )) && compadd -Q -- $closed
    return 0
}
compdef _mhrun mhrun
"""

FISH = r"""# fish completion for mhrun:  mhrun completion fish > ~/.config/fish/completions/mhrun.fish
function __mhrun_words
    set -l tokens (commandline -opc)
    $tokens[1] completion --line (commandline -cp | string collect) 2>/dev/null | string trim --right
end
complete -c mhrun -f -a '(__mhrun_words)'
complete -c mhrun -n 'string match -qr -- "^--(project|config-dir)\$" (commandline -opc)[-1]' -F
complete -c mhrun -n 'string match -qr "^(init|compare)\$" -- (commandline -opc)' -F
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

_VALUES: dict[str, tuple[str, ...]] = {
    "device": ("cpu", "cuda"),
    "dtype": ("float64", "float32"),
    "precision": ("fp32", "tf32", "bf16"),
    "executor": ("auto", "compiled", "torch", "graph"),
    "hydra/launcher": ("basic", "joblib", "submitit_local", "submitit_slurm", "ray"),
    "runtime.force": ("true", "false"),
    "runtime.report": ("true", "false"),
    "target.replacement": ("true", "false"),
    "target.common_batch": ("true", "false"),
    "target.temper": ("posterior", "likelihood"),
}
_KEYS = (
    *("scale", "seed", "chains", "warmup", "steps", "thin", "thin_stats", "data", "model", "+monitor"),
    *(
        "runtime.outputs",
        "runtime.threads",
        "runtime.jobs",
        "runtime.block_seconds",
        "runtime.data_dir",
        *_VALUES,
    ),
)
_GROUPS = ("data", "methods", "model", "monitor", "runtime", "target")
_TAKES_A_PATH = ("--project", "--config-dir", "-cd", "--trust")


def completion(arguments: Sequence[str]) -> int:
    """Print the script of a shell, or the completions of a line, one per line; complete words end in a space.

    Raises:
        UserError: an unsupported shell.
    """
    if arguments[:1] == ["--line"] and len(arguments) == 2:
        for candidate in candidates(arguments[1]):
            print(candidate if candidate[-1] in "=." else f"{candidate} ")
        return OK
    if len(arguments) != 1 or arguments[0] not in SCRIPTS:
        hint = nearest(arguments[0], SCRIPTS) if len(arguments) == 1 else ""
        raise UserError(f"completion is for bash, zsh and fish: use mhrun completion bash.{hint}")
    print(SCRIPTS[arguments[0]], end="")
    return OK


def candidates(line: str) -> list[str]:
    """Return completions of the last word of a command line, which ends at the cursor.

    A candidate that ends in ``=`` or ``.`` is incomplete: more follows without a space.
    """
    arguments = line.split()[1:]
    current = "" if not line or line[-1].isspace() else (arguments.pop() if arguments else "")
    try:
        return sorted({argument for argument in _all(arguments, current) if argument.startswith(current)})
    except (UserError, OSError):  # the command itself reports an unreadable file
        return []


class _Line(NamedTuple):
    """A command line before its last word."""

    command: str
    arguments: list[str]  # without options
    conf: list[Path]  # folders of the user's configurations

    def experiment(self) -> str:
        """The named experiment; empty without one."""
        names = (argument.removeprefix("experiment=") for argument in self.arguments)
        paths = experiments(self.conf)
        return next((name for name in names if name in paths), "")

    def outline(self) -> Outline | None:
        """The outline of the named experiment; None if the arguments name none."""
        name = self.experiment()
        return outline(experiments(self.conf)[name]) if name else None

    def keys(self) -> KeyTree:
        """The keys of the named experiment, with the parts that the arguments choose."""
        pairs = (argument.lstrip("+").partition("=") for argument in self.arguments)
        choices = {key: name for key, _, name in pairs if (CONF / key.partition("@")[0]).is_dir()}
        choices.pop("experiment", None)
        return key_tree(self.experiment(), choices, self.conf)


def _all(arguments: list[str], current: str) -> Iterator[str]:
    last = arguments[-1] if arguments else ""
    if last in _TAKES_A_PATH:
        return
    if last in ("--cfg", "-c"):
        yield "job"
        return
    line = _line(arguments)
    if current.startswith("-"):
        yield from (option for option in OPTIONS.get(line.command, COMMON) if option.startswith("--"))
    elif line.command == "run":
        yield from _of_run(line, current)
    else:
        yield from _OF_COMMAND.get(line.command, lambda line, current: iter(()))(line, current)


def _line(arguments: Sequence[str]) -> _Line:
    command, rest, conf, waiting = "run", list[str](), list[Path](), list(arguments)
    while waiting:
        argument = waiting.pop(0)
        key, has_value, value = argument.partition("=") if argument.startswith("-") else (argument, "", "")
        if key in (*_TAKES_A_PATH, "--cfg", "-c"):
            value = value if has_value else waiting.pop(0) if waiting else ""
            if key == "--project":
                conf.append(project(value).conf)
            elif key in ("--config-dir", "-cd"):
                conf.append(Path(value))
        elif argument in COMMANDS and command == "run" and not rest:
            command = argument
        elif not argument.startswith("-"):
            rest.append(argument)
    return _Line(command, rest, conf)


def _of_run(line: _Line, current: str) -> Iterator[str]:
    """Yield values after an ``=``; before it, commands and experiments, or settings."""
    key, has_value, value = current.partition("=")
    head = line.outline()
    if has_value:
        before = value.rpartition(",")[0]  # of a sweep, several values
        start = f"{key}={before}," if before else f"{key}="
        yield from (
            f"{start}{option}" for option in _values(line, head, key) if option not in before.split(",")
        )
        return
    if head is None:
        yield from experiments(line.conf)
        yield "experiment="
        if not line.arguments:
            yield from COMMANDS
        return
    yield from (f"{key}=" for key in (*_KEYS, *head.settings))
    if current.startswith("~"):
        yield from (f"~methods.{name}" for name in head.methods)
    if current.startswith("+"):
        yield from (f"+method@methods.{name}={name}" for name in _files(line, "method"))
    yield from _keys_below(line, key) if "." in key else (f"{group}." for group in _GROUPS)
    for name, file in head.methods.items():
        yield from (f"{group}@methods.{name}.{place}=" for group, place in method_parts(file))


def is_setting(key: str, arguments: Sequence[str], conf: Sequence[Path]) -> bool:
    """Return whether a key is a setting of the experiment that the arguments name, or of all experiments."""
    line = _Line("run", list(arguments), list(conf))
    settings = {"experiment=", *(f"{name}=" for name in _KEYS), *_of_run(line, key)}
    return f"{key}=" in settings


def _keys_below(line: _Line, key: str) -> Iterator[str]:
    """Yield the keys of the group in which a key is."""
    group = key.rpartition(".")[0]
    node: KeyTree | None = line.keys()
    for part in group.split("."):
        node = (node or {}).get(part)
    for name, below in (node or {}).items():
        if not name.startswith("_"):
            yield f"{group}.{name}{'.' if below else '='}"


def _values(line: _Line, head: Outline | None, key: str) -> Iterator[str]:
    key = key.lstrip("+~")
    group = key.partition("@")[0]
    if key == "experiment":
        yield from experiments(line.conf)
    elif key == "scale":
        yield from head.scales if head else SCALES
    elif key in _VALUES:
        yield from _VALUES[key]
    elif (CONF / group).is_dir():
        yield from _files(line, group)


def _files(line: _Line, group: str) -> list[str]:
    return sorted({path.stem for place in (CONF, *line.conf) for path in (place / group).glob("*.yaml")})


def _of_list(line: _Line, current: str) -> Iterator[str]:
    yield from experiments(line.conf)
    yield METHODS
    yield "runtime.outputs="


def _of_runs(line: _Line, current: str) -> Iterator[str]:
    """Yield experiments with runs; after a colon, the methods of a run."""
    outputs, _ = outputs_of(
        [argument for argument in line.arguments if argument.startswith("runtime.outputs=")]
    )
    name, colon, _ = current.partition(":")
    folders = runs(outputs, name if colon else None)
    if colon and line.command == "compare":
        yield from (
            f"{name}:{method}" for folder in folders for method in (folder.summary() or {}).get("methods", {})
        )
        return
    yield from (folder.experiment for folder in folders)
    yield "runtime.outputs="


def _of_check(line: _Line, current: str) -> Iterator[str]:
    key, has_value, _ = current.partition("=")
    if has_value:
        yield from (f"{key}={name}" for name in (_files(line, key) if key in NAMED else ()))
    else:
        yield from (f"{key}=" for key in (*NAMED, *SETTINGS))


def _fixed(choices: Sequence[str], line: _Line, current: str) -> Iterator[str]:
    yield from (() if line.arguments else choices)


_OF_COMMAND: dict[str, Callable[[_Line, str], Iterator[str]]] = {
    "list": _of_list,
    "report": _of_runs,
    "compare": _of_runs,
    "check": _of_check,
    "completion": partial(_fixed, tuple(SCRIPTS)),
    "help": partial(_fixed, COMMANDS),
}
