"""The arguments that docstrings describe are those that classes and functions take."""

from __future__ import annotations

import ast
import re

from mhrun.paths import PACKAGE

_ARGS = re.compile(r"^Args:\n((?:    .*\n|\n)+)", re.MULTILINE)
_NAMES = re.compile(r"^    ([*`\w][\w, *`]*):", re.MULTILINE)


def described(docstring):
    """Return the names in the section ``Args:`` of a docstring."""
    found = _ARGS.search(docstring + "\n")
    lines = _NAMES.findall(found[1]) if found else []
    return {name.strip(" *`") for line in lines for name in line.split(",")}


def taken(node):
    """Return the arguments of a function, or of a class that declares them; None of a class that inherits them."""
    if isinstance(node, ast.FunctionDef):
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        return {one.arg for one in every if one is not None} - {"self", "cls"}
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return taken(part)
    fields = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
    return fields if any("dataclass" in ast.unparse(each) for each in node.decorator_list) else None


def test_names_of_arguments_are_found():
    assert described("Do it.\n\nArgs:\n    a, b: two\n        lines: of text\n    **c: more\n") == {
        "a",
        "b",
        "c",
    }
    first, second = ast.parse("def f(a, *b, c=1): pass\n@dataclass\nclass D:\n    x: int").body
    assert (taken(first), taken(second)) == ({"a", "b", "c"}, {"x"})


def test_docstrings_describe_the_arguments_that_there_are():
    wrong, seen = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            documented, names = described(ast.get_docstring(node) or ""), taken(node)
            if not documented or names is None:
                continue
            seen += 1
            missing = {name for name in names - documented if not name.startswith("_")}
            if documented - names or missing:
                wrong.append((path.name, node.name, documented - names, missing))
    assert wrong == []
    assert seen > 150
