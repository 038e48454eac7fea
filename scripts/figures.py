"""Print how large the source is and how it hangs together: `scripts/figures.py [--json] [ROOT]`.

Code the protobuf compiler wrote is left out everywhere. An import counts wherever it stands: at the
head of a module, inside a function, under TYPE_CHECKING.

    modules          files in src that hold anything
    lines            their lines, blank ones included
    code_lines       of these, the lines with something that runs: no blank, comment or docstring
    statements       the same without the influence of line breaks
    explained_pct    lines of comments (also those behind code) and docstrings, per 100 lines
    one_importer     modules that exactly one other module imports
    depth_max        modules in the longest chain of imports. Modules that import each other in a
    depth_median       circle count together; the median is that of the chains below each module
    circles          circles of modules, each as the names of its members
    classes_twice    public class names that are defined in more than one module, but `Config`
    names_twice      the same with private names (`_Place` is `Place`) and with aliases of types
    mutual           neighbours in a package that import each other, at any depth of the tree. The
                       modules beside the sub-packages, `__init__` among them, are one neighbour
    function_p90     lines of a function that 90 % do not exceed
    function_max     lines of the longest function
    test_modules     files in tests
    test_lines       their lines
    test_code_lines  of these, the lines with something that runs
    config_rows      rows of the tables of keys and options in docs/reference
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import statistics
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = "_pb2"
# Every component calls its settings `Config`; that is how plugins are found.
DEFINED_OFTEN = {"Config"}
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


@dataclass(frozen=True)
class Module:
    """One file of Python."""

    name: str
    is_package: bool
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Return what was parsed."""
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> int:
        """Return the number of all lines."""
        return len(self.text.splitlines())

    @cached_property
    def blank_lines(self) -> set[int]:
        """Return the numbers of the lines that hold nothing, also inside a text."""
        numbered = enumerate(self.text.splitlines(), start=1)
        return {number for number, line in numbered if not line.strip()}

    @cached_property
    def docstring_lines(self) -> set[int]:
        """Return the numbers of the lines that docstrings take."""
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        numbers: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
                first = node.body[0]
                numbers.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        return numbers

    @cached_property
    def explained_lines(self) -> set[int]:
        """Return the numbers of the lines that hold a comment or a docstring."""
        comments = {t.start[0] for t in self._tokens if t.type == tokenize.COMMENT}
        return (comments | self.docstring_lines) - self.blank_lines

    @cached_property
    def code_lines(self) -> set[int]:
        """Return the numbers of the lines that hold something other than explanation."""
        numbers: set[int] = set()
        for token in self._tokens:
            if token.type not in LAYOUT:
                numbers.update(range(token.start[0], token.end[0] + 1))
        return numbers - self.docstring_lines - self.blank_lines

    @cached_property
    def _tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    def imports(self, known: set[str]) -> set[str]:
        """Return which of the `known` modules this one imports, itself left out."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = self._base(node)
                names = {f"{above}.{alias.name}" for alias in node.names}
                found.update(name if name in known else above for name in names)
        return found & known - {self.name}

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*kept, node.module] if node.module else kept)

    def classes(self) -> set[str]:
        """Return the names of all classes, those inside others among them."""
        return {node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)}

    def aliases(self) -> set[str]:
        """Return the names that the module gives to types: `Path = Callable[...]` and the like."""
        return {name for name, value in _assignments(self.tree.body) if _is_type(name, value)}


def _assignments(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _is_type(name: str, value: ast.expr) -> bool:
    """Return whether this looks like an alias: a name in capitals and lower case for no call."""
    is_class_like = re.fullmatch(r"_*[A-Z]\w*[a-z]\w*", name) is not None
    return is_class_like and isinstance(value, ast.Subscript | ast.BinOp | ast.Name | ast.Attribute)


def read(folder: Path, base: Path) -> dict[str, Module]:
    """Return the modules below `folder` by their dotted name, seen from `base`."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
        found[name] = Module(name, path.name == "__init__.py", path.read_text())
    return {name: module for name, module in found.items() if module.text.strip()}


def twice(names_of: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return the names that several modules define, each with its modules."""
    modules = defaultdict(list)
    for module, names in names_of.items():
        for name in names - DEFINED_OFTEN:
            modules[name].append(module)
    return {name: found for name, found in sorted(modules.items()) if len(found) > 1}


def names_twice(modules: dict[str, Module]) -> dict[str, list[str]]:
    """Return the names of classes and aliases, private ones too, that several modules define."""
    return twice(
        {
            name: {c.lstrip("_") for c in module.classes() | module.aliases()}
            for name, module in modules.items()
        }
    )


def graph_of(files: dict[str, Module]) -> dict[str, set[str]]:
    """Return what each module imports, without those that are generated."""
    # Known are the generated ones too: `from package import file_pb2` is no import of the package.
    known, graphed = set(files), {name for name in files if GENERATED not in name}
    return {name: files[name].imports(known) & graphed for name in files if name in graphed}


def packages_of(modules: dict[str, Module]) -> set[str]:
    """Return the names of those modules that are packages."""
    return {name for name, module in modules.items() if module.is_package}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the modules in groups that import each other, dependencies first (Tarjan)."""
    sys.setrecursionlimit(10_000)
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    done: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for below in sorted(graph[name]):
            if below not in order:
                visit(below)
            if below in stack:
                lowest[name] = min(lowest[name], lowest[below])
        if lowest[name] == order[name]:
            first = stack.index(name)
            done.append(sorted(stack[first:]))
            del stack[first:]

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return done


def depths(graph: dict[str, set[str]], groups: list[list[str]]) -> list[int]:
    """Return for every module how many modules the longest chain of imports below it has."""
    depth: dict[str, int] = {}
    for group in groups:
        below = [depth[x] for name in group for x in graph[name] if x not in group]
        depth.update(dict.fromkeys(group, len(group) + max(below, default=0)))
    return sorted(depth.values())


def mutual(graph: dict[str, set[str]], packages: set[str]) -> list[str]:
    """Return the neighbours that import each other, as `package: a <-> b`."""
    pairs = set()
    for name, used in graph.items():
        for other in used:
            package = _common(name, other)
            if package.count("."):  # `holdfast` itself has levels; tests/tidy holds those
                ours, theirs = (_room(x, package, packages) for x in (name, other))
                pairs.add((package, ours, theirs))
    return sorted(
        f"{package}: {a} <-> {b}" for package, a, b in pairs if a < b and (package, b, a) in pairs
    )


def _common(name: str, other: str) -> str:
    shared = []
    for a, b in zip(name.split("."), other.split("."), strict=False):
        if a != b:
            break
        shared.append(a)
    return ".".join(shared)


def _room(name: str, package: str, packages: set[str]) -> str:
    """Return the sub-package of `package` in which `name` is, or the root of it."""
    parts = name.removeprefix(package).strip(".").split(".")
    return parts[0] if f"{package}.{parts[0]}" in packages else "(root)"


def config_rows(reference: Path) -> int:
    """Count the rows of all tables that begin with a column `key` or `option`."""
    rows = 0
    for path in sorted(reference.glob("*.md")):
        is_counted = False
        for line in path.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not line.startswith("|"):
                is_counted = False
            elif cells[0] in ("key", "option"):
                is_counted = True
            elif is_counted and not cells[0].startswith("--"):
                rows += 1
    return rows


def _function_lines(modules: Iterable[Module]) -> list[int]:
    return sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def figures(root: Path) -> dict[str, object]:
    """Return every figure of the project in `root`, by the names that the head explains."""
    files = read(root / "src", root / "src")
    modules = {name: module for name, module in files.items() if GENERATED not in name}
    tests = read(root / "tests", root)
    graph = graph_of(files)
    groups = circles(graph)
    chains = depths(graph, groups)
    importers = [sum(name in used for used in graph.values()) for name in modules]
    classes = {name: module.classes() for name, module in modules.items()}
    public = {name: {c for c in found if c[0] != "_"} for name, found in classes.items()}
    lines = sum(module.lines for module in modules.values())
    explained = sum(len(module.explained_lines) for module in modules.values())
    function_lines = _function_lines(modules.values())
    return {
        "modules": len(modules),
        "lines": lines,
        "code_lines": sum(len(module.code_lines) for module in modules.values()),
        "statements": sum(
            isinstance(node, ast.stmt) for m in modules.values() for node in ast.walk(m.tree)
        ),
        "explained_pct": round(100 * explained / lines, 1),
        "one_importer": importers.count(1),
        "depth_max": chains[-1],
        "depth_median": statistics.median_low(chains),
        "circles": [group for group in groups if len(group) > 1],
        "classes_twice": twice(public),
        "names_twice": names_twice(modules),
        "mutual": mutual(graph, packages_of(modules)),
        "function_p90": function_lines[int(0.9 * len(function_lines))],
        "function_max": function_lines[-1],
        "test_modules": len(tests),
        "test_lines": sum(module.lines for module in tests.values()),
        "test_code_lines": sum(len(module.code_lines) for module in tests.values()),
        "config_rows": config_rows(root / "docs" / "reference"),
    }


def main() -> None:
    """Print one line per figure, lists below their length; or all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="the project's root")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found = figures(given.root)
    if given.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    for name, value in found.items():
        if isinstance(value, list | dict):
            sys.stdout.write(f"{name:16} {len(value):7}\n")
            items = value.items() if isinstance(value, dict) else [(x, ()) for x in value]
            for item, where in items:
                line = " ".join(item) if isinstance(item, list) else " ".join([item, *where])
                sys.stdout.write(f"    {line}\n")
        else:
            sys.stdout.write(f"{name:16} {value:7}\n")


if __name__ == "__main__":
    main()
