"""The import graph has no circles, imports for type checking included; layers are checked by import-linter."""

from __future__ import annotations

import grimp


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
