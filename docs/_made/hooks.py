"""What MkDocs calls while it builds the site: it fills in what is made from the repository, and draws formulas.

A line ``<!-- made: WORD ... -->`` in a page, with all up to ``<!-- /made -->`` where there is one, is replaced by what
`MAKERS` has for the word; in the repository the block holds the same, or what `PLAIN` has. Values of the results that a
page quotes are brought up to date (refresh.py).
"""

from __future__ import annotations

import html
import logging
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
import claims
import gallery
import parts
import plain
from formulas import drawn
from refresh import MADE, with_values, without_values
from values import UnknownValue

log = logging.getLogger("mkdocs.hooks")


def on_config(config: Any) -> Any:
    """Put pages that `nav` does not name at the end of their section, so that a new page costs one file."""
    named, folder = str(config["nav"]), Path(config["docs_dir"])
    for title, pattern in (("Use", "*.md"), ("Algorithms", "algorithms/*.md")):
        section = next(entry[title] for entry in config["nav"] if title in entry)
        pages = (page.relative_to(folder).as_posix() for page in sorted(folder.glob(pattern)))
        section += [page for page in pages if f"'{page}'" not in named]
    return config


def on_files(files: Any, config: Any) -> None:
    """Find out which page each method is on, and say which methods are on none."""
    _pages.cache_clear()
    for method in parts.names("method"):
        if method not in _pages():
            log.warning(
                "conf/method/%s.yaml is on no page; name it under `methods:` at the head of one.", method
            )
    for method in set(_pages()) - set(parts.names("method")):
        log.warning("%s is about the method '%s', which is not in conf/method.", _pages()[method], method)
    for paper in claims.papers():
        for line in claims.stale(paper):
            log.warning(line)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in what is made."""

    def made(found: re.Match[str]) -> str:
        if found[1] not in MAKERS:
            log.warning(
                "%s: nothing makes '%s'; there is %s.", page.file.src_uri, found[1], ", ".join(MAKERS)
            )
            return ""
        return MAKERS[found[1]](page, *found[2].split())

    try:
        return MADE.sub(made, without_values(with_values(markdown)))
    except UnknownValue as error:
        log.warning("%s: %s", page.file.src_uri, error)
        return markdown


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Draw the formulas."""
    return drawn(content)


@cache
def _pages() -> dict[str, str]:
    """Return the page that each method is on: its head names the method."""
    found, folder = {}, parts.ROOT / "docs"
    for path in sorted(folder.rglob("*.md")):
        head = re.match(r"---\n(.*?)\n---\n", path.read_text(encoding="utf-8"), re.DOTALL)
        for method in (yaml.safe_load(head[1]) or {}).get("methods", []) if head else []:
            found[method] = path.relative_to(folder).as_posix()
    return found


def _knobs(page: Any, *names: str) -> str:
    """Return a table of the settings of some methods: those of the first, then what others have besides."""
    rows, there = [], set()
    for name in names or page.meta["methods"]:
        for path, node in parts.nodes(parts.composed("method", name)):
            target = str(node["_target_"])
            if (path, target) in there:
                continue
            there.add((path, target))
            rows.append(f"| **`{path}`** | `{target.rpartition('.')[2]}` | {_cell(parts.summary(target))} |")
            for knob in _own(node):
                meaning = _cell(knob.meaning or _QUANTITIES.get(knob.name, ""))
                rows.append(f"| `{path}.{knob.name}` | {_value(knob.value)} | {meaning} |")
    return "\n".join(["| setting | default | what it is |", "|---|---|---|", *rows])


_QUANTITIES = {  # that schedules set by name, and sizes
    "temperature": "Temperature T; 1 is the posterior. A list has one for each chain",
    "noise_temperature": "Temperature of the proposal's noise",
    "step_size": "Step size of the proposal or dynamics; `auto`: a pilot finds it",
    "m": "Data in a minibatch; `auto`: a pilot finds it",
}


def _own(node: Any) -> list[parts.Knob]:
    return [knob for knob in parts.knobs(node) if knob.value is not None or knob.meaning]


def _methods(page: Any) -> str:
    """Return a row for each method."""
    rows = ["| method | target | what it is | parts |", "|---|---|---|---|"]
    for name in parts.names("method"):
        found = parts.composed("method", name)["kernel"]
        kinds = ("proposal", "dynamics", "pairing", "rule")
        inner = found.get("kernel", found)
        kinds_of = [str(inner[kind]["_target_"]).split(".")[-2] for kind in kinds if kind in inner]
        where = _pages().get(name)
        link = f"[`{name}`]({where.rpartition('/')[2]})" if where else f"`{name}`"
        what, own = _cell(parts.first_comment("method", name)), ", ".join(f"`{part}`" for part in kinds_of)
        rows.append(f"| {link} | {parts.kinds()[name]} | {what} | {own} |")
    return "\n".join(rows)


def _yaml(page: Any, *names: str) -> str:
    """Return the files of some methods."""
    shown = [
        (name, (parts.CONF / "method" / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in names or page.meta["methods"]
    ]
    return "\n\n".join(f'```yaml title="conf/method/{name}.yaml"\n{text}```' for name, text in shown)


def _group(page: Any, group: str) -> str:
    """Return what a group of configuration offers, each with its settings."""
    lines = [f"{parts.GROUPS[group]}\n"]
    for name in parts.names(group):
        node = parts.composed(group, name)
        lines.append(
            f"\n### `{group}={name}` {{ #{group}-{name} }}\n\n{_cell(parts.first_comment(group, name))}\n"
        )
        rows = [f"| `{knob.name}` | {_value(knob.value)} | {_cell(knob.meaning)} |" for knob in _own(node)]
        if rows:
            lines += ["", "| setting | default | what it is |", "|---|---|---|", *rows]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _experiments(page: Any) -> str:
    rows = ["| experiment | what it is | reproduces |", "|---|---|---|"]
    for name in parts.names("experiment"):
        head = yaml.safe_load((parts.CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")) or {}
        rows.append(f"| `{name}` | {_cell(head.get('title', ''))} | {_cell(head.get('reproduces', '–'))} |")
    return "\n".join(rows)


def _info(page: Any) -> str:
    rows = [f"| `{name}` | {_cell(meaning)} |" for name, meaning in parts.info_fields()]
    return "\n".join(["| statistic | what it is |", "|---|---|", *rows])


def _floors(page: Any) -> str:
    floors = [
        "".join(f'<div class="room"><strong>{room}</strong>{html.escape(what)}</div>' for room, what in floor)
        for floor in parts.floors()
    ]
    return (
        '<div class="floors">' + "".join(f'<div class="floor">{rooms}</div>' for rooms in floors) + "</div>"
    )


def _fields(page: Any, name: str) -> str:
    """Return the fields of a named tuple of the package, from the comments beside them."""
    rows = [f"| `{field}` | `{kind}` | {_cell(meaning)} |" for field, kind, meaning in parts.fields(name)]
    return "\n".join(["| field | type | what it is |", "|---|---|---|", *rows])


def _members(page: Any, name: str, *only: str) -> str:
    """Return what a class has, or some of it, from docstrings and comments; see `parts.members`."""
    members = parts.members(name, only)
    rows = [f"| `{member}` | {_cell(what)} |" for member, what in members]
    attributes = any(" = " in member for member, _ in members)
    head = (
        "attribute, property or method | what it is" if attributes else "property or method | what it returns"
    )
    return "\n".join([f"| {head} |", "|---|---|", *rows])


def _parts_of(page: Any, group: str) -> str:
    """Return a row for each file of a group: its name and description."""
    rows = [f"| `{name}` | {_cell(parts.first_comment(group, name))} |" for name in parts.names(group)]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def _config(page: Any) -> str:
    return f'```yaml title="conf/config.yaml"\n{(parts.CONF / "config.yaml").read_text(encoding="utf-8")}```'


def _classes_of(group: str) -> list[str]:
    """Return the classes of a group: those that its files name, and those that `mhrun` exports."""
    targets = parts.targets(group)
    if not targets:
        raise LookupError(f"There is no group '{group}' in conf/.")
    packages = {target.split(".")[1] for target in targets}
    targets += [target for target in _exports() if target.split(".")[1] in packages]
    by_name = {target.rpartition(".")[2]: target for target in targets}
    return list(by_name.values())


def _crossed(targets: list[str]) -> str:
    """Return the lines that mkdocstrings replaces by signatures and docstrings."""
    return "\n\n".join(f"::: {target}" for target in targets)


def _docstrings(targets: list[str]) -> str:
    return plain.docstrings(targets, {target: target.rpartition(".")[2] for target in _exports()})


def _exports() -> list[str]:
    import mhrun

    return [f"{where}.{name}" for name, where in mhrun._where().items()]


def _exported(page: Any) -> str:
    """Return a row for each name that the package offers."""
    rows = [f"| `mhrun.{name.rpartition('.')[2]}` | {_cell(parts.summary(name))} |" for name in _exports()]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def _help(page: Any) -> str:
    from mhrun.cli.help import HELP, PAGES

    pages = [f"## mhrun {name}\n\n```text\n{text.rstrip()}\n```" for name, text in PAGES.items()]
    return "\n\n".join([f"```text\n{HELP}```", *pages])


def _entry_points() -> list[str]:
    """Return what the package exports and no group of parts has."""
    packages = {
        target.split(".")[1] for group in (*parts.GROUPS, "kernel") for target in parts.targets(group)
    }
    return [target for target in _exports() if target.split(".")[1] not in packages]


def _value(value: Any) -> str:
    """Return a default as a cell has it; what refers to the experiment's settings says so."""
    if value == "???":
        return "*needed*"
    if isinstance(value, str) and (name := re.fullmatch(r"\$\{([\w.]+)\}", value)):
        return f"the experiment's `{name[1]}`"
    if isinstance(value, str) and (name := re.fullmatch(r"\$\{oc\.select:([\w.]+),([\w.]+)\}", value)):
        return f"the experiment's `{name[1]}`, else `{name[2]}`"
    if isinstance(value, list) and len(str(value)) > 60:
        return "see the file"
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f"`{text}`"


def _cell(text: Any) -> str:
    """Return a docstring's words as a cell has them."""
    plain = re.sub(r"``(.+?)``", r"`\1`", str(text)).replace("|", r"\|").replace("*", r"\*")
    return re.sub(r"(?<!`)<(?!`)", "&lt;", plain)


MAKERS: dict[str, Callable[..., str]] = {
    "knobs": _knobs,
    "methods": _methods,
    "yaml": _yaml,
    "group": _group,
    "experiments": _experiments,
    "info": _info,
    "floors": _floors,
    "help": _help,
    "config": _config,
    "api": lambda page: _crossed(_entry_points()),
    "classes": lambda page, group: _crossed(_classes_of(group)),
    "exported": _exported,
    "fields": _fields,
    "members": _members,
    "parts": _parts_of,
    "gallery": lambda page: gallery.cards(),
    "scoreboard": lambda page, folder="": claims.scoreboard(folder),
    "claims": lambda page, paper: claims.tables(paper),
    "claims-overview": lambda page, folder="": claims.overview(folder),
    "claims-overview-exact": lambda page, folder="": claims.overview(folder, claims.EXACT),
}
PLAIN: dict[str, Callable[..., str]] = {
    "api": lambda page: _docstrings(_entry_points()),
    "classes": lambda page, group: _docstrings(_classes_of(group)),
    "floors": lambda page: plain.layers(),
    "gallery": lambda page: plain.gallery_tables(),
    "group": lambda page, group: re.sub(
        r"^### (.+) \{ #(.+) \}$", r'<a id="\2"></a>\n### \1', _group(page, group), flags=re.MULTILINE
    ),
    "claims": lambda page, paper: plain.claim_tables(paper),
}
"""What the pages in the repository have instead (refresh.py): text that reads well without the site."""
