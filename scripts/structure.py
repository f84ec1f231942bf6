"""Check the structure of the production code: `python -m scripts.structure [ROOT]`.

Rules, each by location and type:

- no circle of imports between files, imports for types alone and inside functions included;
- no module of `agents.core` imports `agents.core.agent`;
- a folder holds at most 15 modules;
- no mutable class has more than 15 public attributes. Exempt by type: frozen dataclasses, named tuples,
  enums, TypedDicts, pydantic models (wire schemas), and classes whose attributes are all arrays (columns);
- each entry of a docstring's `Attributes:` or `Args:` starts its own line.

Exit status 1 if one is broken.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

MODULES_MAX: Final = 15
LARGER: Final = {"domain": 26}
"""Folders that hold more, with their present number: it may only fall."""

ATTRIBUTES_MAX: Final = 15

GENERATED: Final = ("qlm.gateway.rpc.v1",)
AGENT: Final = "qlm.agents.core.agent"
RULES: Final = "qlm.agents.core."

VALUES: Final = frozenset({"NamedTuple", "TypedDict", "Enum", "IntEnum", "StrEnum", "Flag", "BaseModel"})
"""Bases of values and wire schemas."""


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file of production code."""

    name: str
    path: Path
    tree: ast.Module


def modules(root: Path = ROOT) -> dict[str, Module]:
    """Parse the production code below `root`."""
    found: dict[str, Module] = {}
    for portion in sorted(root.glob("*/qlm")):
        for path in sorted(portion.rglob("*.py")):
            parts = path.relative_to(portion.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not name.startswith(GENERATED):
                found[name] = Module(name, path, ast.parse(path.read_text("utf-8")))
    return found


def imports(module: Module, known: Set[str]) -> set[str]:
    """Return the modules of production that a module imports, anywhere in its file."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            nested = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (nested & known) or {node.module}
    return (found & known) - {module.name}


def circles(arrows: Mapping[str, Set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(arrows[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(arrows):
        if name not in index:
            visit(name)
    return found


def _names(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        target = node.func if isinstance(node, ast.Call) else node
        target = target.value if isinstance(target, ast.Subscript) else target
        yield target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")


def _frozen(node: ast.ClassDef) -> bool:
    """Return whether a class is a frozen dataclass; `domain.values.value` makes one."""
    for decorator in node.decorator_list:
        if "value" in _names([decorator]):
            return True
        if isinstance(decorator, ast.Call):
            for keyword in decorator.keywords:
                if keyword.arg == "frozen" and getattr(keyword.value, "value", False):
                    return True
    return False


def _annotated(node: ast.ClassDef) -> dict[str, str]:
    """Return the attributes declared in a class body, with their annotations."""
    return {
        each.target.id: ast.unparse(each.annotation)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the public attributes of a class: declared ones, slots, and those assigned to `self`."""
    found = set(_annotated(node))
    for each in ast.walk(node):
        targets = each.targets if isinstance(each, ast.Assign) else []
        if isinstance(each, ast.AnnAssign | ast.AugAssign):
            targets = [each.target]
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == "self":
                    found.add(part.attr)
    return {name for name in found if not name.startswith("_")}


def wide_classes(known: Mapping[str, Module]) -> Iterator[str]:
    """Yield the mutable classes with too many public attributes."""
    classes = {
        (module.name, node.name): node
        for module in known.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    bases: dict[str, set[str]] = {}
    for (_, name), node in classes.items():
        bases.setdefault(name, set()).update(_names(node.bases))

    def is_value(name: str, seen: frozenset[str] = frozenset()) -> bool:
        return any(
            base in VALUES or (base in bases and base not in seen and is_value(base, seen | {name}))
            for base in bases.get(name, ())
        )

    for (module_name, name), node in sorted(classes.items()):
        annotated = _annotated(node)
        columns = bool(annotated) and all(
            "NDArray" in each or "ndarray" in each for each in annotated.values()
        )
        if _frozen(node) or is_value(name) or columns:
            continue
        count = len(attributes(node))
        if count > ATTRIBUTES_MAX:
            yield f"{module_name}.{name} has {count} public attributes; at most {ATTRIBUTES_MAX}"


def full_folders(known: Mapping[str, Module]) -> Iterator[str]:
    """Yield the folders with too many modules."""
    counts: dict[Path, int] = {}
    for module in known.values():
        if module.path.name != "__init__.py":
            counts[module.path.parent] = counts.get(module.path.parent, 0) + 1
    for folder, count in sorted(counts.items()):
        if count > LARGER.get(folder.name, MODULES_MAX):
            yield f"{folder} holds {count} modules; at most {MODULES_MAX}"


_SECTION: Final = re.compile(r"^(?:Attributes|Args):\n((?:(?: +.*)?\n)*)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^[\w*]+(?:, [\w*]+)*:")
_INSIDE: Final = re.compile(r"\. ((?:\w+, )*\w+): [A-Z`(]")


def _names_of(node: ast.AST) -> set[str]:
    if isinstance(node, ast.ClassDef):
        return attributes(node) | {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}


def merged_entries(known: Mapping[str, Module]) -> Iterator[str]:
    """Yield the attributes and parameters that are documented inside the entry of another one."""
    for module in known.values():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            names, doc = _names_of(node), f"{ast.get_docstring(node) or ''}\n"
            for section in _SECTION.findall(doc):
                lines = [line.strip() for line in section.splitlines()]
                text = " ".join(f"\n{line}" if _ENTRY.match(line) else line for line in lines)
                for name in _INSIDE.findall(text):
                    if set(name.split(", ")) & names:
                        yield f"{module.name}.{node.name}: `{name}` needs a line of its own in the docstring"


def broken(known: Mapping[str, Module]) -> Iterator[str]:
    """Yield each broken rule as one line."""
    arrows = {name: imports(module, known.keys()) for name, module in known.items()}
    for circle in circles(arrows):
        yield "import circle: " + ", ".join(circle)
    for name, targets in sorted(arrows.items()):
        if name.startswith(RULES) and AGENT in targets:
            yield f"{name} imports the agent"
    yield from full_folders(known)
    yield from wide_classes(known)
    yield from merged_entries(known)


def main(root: str = str(ROOT)) -> int:
    """Print the broken rules of the tree at `root`."""
    known = modules(Path(root))
    found = list(broken(known))
    print("\n".join([*found, f"structure: {len(known)} modules, {len(found)} rules broken"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
