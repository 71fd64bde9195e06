"""`__all__` of every public module is what is public: nothing missing, nothing that isn't there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.repository.paths import ROOT

PACKAGE = ROOT / "milepost"


def public_modules() -> list[Path]:
    paths = sorted(PACKAGE.rglob("*.py"))
    relative = [path.relative_to(PACKAGE) for path in paths]
    # A module whose own name starts with `_` is private; `__init__` and `__main__` are looked at apart.
    return [path for path in relative if not path.name.startswith("_")]


def defined_names(tree: ast.Module) -> set[str]:
    """Public classes and functions that the module itself defines."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")}


def bound_names(tree: ast.Module) -> set[str]:
    """Every name that the module binds at its top level."""
    names = defined_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def declared_all(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return None


@pytest.mark.parametrize("module", public_modules(), ids=str)
def test_all_is_what_is_public(module: Path) -> None:
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    declared = declared_all(tree)
    assert declared is not None, f"{module} has no __all__"
    assert len(declared) == len(set(declared))
    assert set(declared) <= bound_names(tree), "__all__ names something that the module doesn't bind"
    assert defined_names(tree) <= set(declared), "a public class or function is not in __all__"


@pytest.mark.parametrize(
    "module", sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")), ids=str
)
def test_a_package_lists_what_it_re_exports(module: Path) -> None:
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    if any(isinstance(node, ast.ImportFrom) for node in tree.body) or defined_names(tree):
        declared = declared_all(tree)
        if module != Path("__init__.py") or declared is not None:
            assert declared is not None, f"{module} has no __all__"
            assert set(declared) <= bound_names(tree)
