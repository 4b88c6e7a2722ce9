"""Structure of the package: no circles of imports, and abstract methods that are declared as such.

Layers are checked by import-linter.
"""

from __future__ import annotations

import ast
import subprocess
import sys

import grimp
import pytest

from mhrun.paths import PACKAGE


def circles(imported: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other in a circle: what is left when leaves are taken off."""
    left = {module: set(others) & set(imported) for module, others in imported.items()}
    while leaves := {module for module, others in left.items() if not others}:
        left = {module: others - leaves for module, others in left.items() if module not in leaves}
    # What is above a circle is left too: take off what nothing imports.
    while roots := left.keys() - set().union(*left.values()):
        left = {module: others for module, others in left.items() if module not in roots}
    return [set(left)] if left else []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]


def test_modules_do_not_import_each_other():
    graph = grimp.build_graph("mhrun", exclude_type_checking_imports=False, cache_dir=None)
    found = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert circles(found) == []


@pytest.mark.long
def test_numba_is_imported_when_a_loop_is_compiled_and_not_before():
    """It takes a second, and may be missing."""
    code = "import sys, mhrun.random, mhrun.compiled; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_methods_of_base_classes_are_abstract():
    """A method that raises NotImplementedError lets a class be made that cannot work."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            raised = node.exc if isinstance(node, ast.Raise) else None
            raised = raised.func if isinstance(raised, ast.Call) else raised
            if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
                found.append(f"{path.name}:{node.lineno}")
    assert found == []
