"""An import-linter contract that reads the design's import table as it is written: one line a package.

import-linter's own contract types need every module that they name to exist. This one takes rows for
packages that are still to come, and breaks when a package that exists has no row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

__all__ = ["ImportTableContract", "Row", "find_violations", "parse_row"]

ROOT = "milepost"
EVERYTHING = "*"


@dataclass(frozen=True)
class Row:
    """One line of the table: a package and what it may import."""

    package: str
    internal: frozenset[str]
    external: frozenset[str]

    def allows_internal(self, module: str) -> bool:
        """Whether `module` (without the root's name) is allowed."""
        if EVERYTHING in self.internal:
            return True
        return any(_is_within(module, name) for name in (self.package, *self.internal))

    def allows_external(self, package: str) -> bool:
        """Whether the third-party `package` is allowed."""
        return EVERYTHING in self.external or package in self.external


def parse_row(line: str, data: Iterable[str]) -> Row:
    """Read ``name | internal ... | external ...``; ``data`` stands for the plain-data modules."""
    package, internal, external = (cell.split() for cell in line.split("|"))
    names = set(internal)
    if "data" in names:
        names = names - {"data"} | set(data)
    return Row(package[0], frozenset(names), frozenset(external))


def find_violations(rows: Iterable[Row], imports: Iterable[tuple[str, str]]) -> list[str]:
    """Every import of the graph that no row allows, as sentences.

    Args:
        rows: the table.
        imports: pairs (importer, imported) of full module names; the root's importers only.
    """
    table = {row.package: row for row in rows}
    found: set[str] = set()
    for importer, imported in imports:
        if importer == ROOT:
            continue
        package = importer.split(".")[1]
        row = table.get(package)
        if row is None:
            found.add(f"{ROOT}.{package} has no line in the import table of pyproject.toml.")
        elif not _allowed(row, imported):
            found.add(f"{importer} imports {imported}: not in the line of `{package}`.")
    return sorted(found)


def _allowed(row: Row, imported: str) -> bool:
    if imported == ROOT:  # the version number
        return True
    top = imported.split(".", maxsplit=1)[0]
    if top == ROOT:
        return row.allows_internal(imported.removeprefix(f"{ROOT}."))
    return top in sys.stdlib_module_names or row.allows_external(top)


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


class ImportTableContract(Contract):
    """Keeps the design's import table: direct imports, of our own and of third-party packages."""

    data = fields.ListField(subfield=fields.StringField())
    data_external = fields.ListField(subfield=fields.StringField())
    rows = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare the import graph with the table."""
        data, external = self._lines("data"), self._lines("data_external")
        table = [parse_row(line, data) for line in self._lines("rows")]
        table += [Row(name, frozenset(data), frozenset(external)) for name in data]
        imports = [
            (importer, imported)
            for importer in graph.modules
            if _is_within(importer, ROOT)
            for imported in graph.find_modules_directly_imported_by(importer)
        ]
        packages = [(module, ROOT) for module in graph.modules if module.startswith(f"{ROOT}.")]
        violations = find_violations(table, [*imports, *packages])
        return ContractCheck(kept=not violations, metadata={"violations": violations})

    def _lines(self, option: str) -> list[str]:
        # Through the options, as a field's type is the field and not what it parses to.
        return [str(line) for line in self.contract_options[option]]

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print each import that the table does not allow."""
        for violation in check.metadata["violations"]:
            output.print_error(f"- {violation}")
