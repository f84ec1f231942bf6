"""Run Python with the simulator compiled: `python -m benchmarks.compiled -m qlm.cli.main simulate ...`.

Arguments are those of Python. The first run after a change of the sources compiles the hot packages with
mypyc, which takes minutes. The result is in `build/compiled/<hash of the sources>`, which only this module
reads: so an edit is never hidden by old compiled code, and nothing else needs compiled code.

Needs the development set and a C compiler, and setuptools from Python 3.12 on.
"""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILT: Final = ROOT / "build" / "compiled"
PARTS: Final = (
    "agents", "broker", "cli", "controller", "domain", "gateway", "planner", "rct_estimator", "simulator",
    "store",
)  # fmt: skip

HOT: Final = (
    "agents/core/**/*.py", "domain/*.py", "rct_estimator/*.py", "simulator/*.py", "simulator/cluster/*.py",
    "simulator/engine/*.py", "store/core/*.py",
)  # fmt: skip
"""Patterns of modules whose code runs for each request or decision. The interpreter runs the rest."""

COLD: Final = frozenset({"__init__.py", "values.py", "side_effects.py"})
"""File names that match but are not compiled.

mypyc cannot compile `domain.values`, which sets an attribute on a function. `agents.core.side_effects`, a
generic dataclass with slots, fails when it is imported.
"""

COLD_WORDS: Final = ("pydantic", "runtime_checkable")
"""Modules with one of these are not compiled: mypyc supports neither."""

SETUP: Final = """\
import sys
from setuptools import setup
from mypyc.build import mypycify

command, *modules = sys.argv[1:]
flags = ["--config-file=mypy.ini", *modules]
# A file of C for each module: the compiler does not finish with one file of 270 MB for all.
extensions = mypycify(flags, opt_level="3", debug_level="0", multi_file=True)
setup(name="qlm-compiled", ext_modules=extensions, script_args=command.split())
"""

MYPY: Final = """\
[mypy]
strict = true
explicit_package_bases = true
namespace_packages = true
ignore_missing_imports = true
plugins = pydantic.mypy
mypy_path = .
"""

IMPORT: Final = "from qlm.domain.values import value"
VALUE: Final = re.compile(r"^@value(?:\((.*)\))?$", re.MULTILINE)


def main() -> None:
    """Replace this process by Python with the compiled modules first on its path."""
    paths = [str(compiled()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)


def compiled() -> Path:
    """Return the folder of the compiled present sources; compile them first if it is missing."""
    folder = BUILT / key()
    if not folder.exists():
        print(f"compiling into {folder}; this takes minutes", file=sys.stderr)
        _compile(folder)
    return folder


def hot_modules() -> list[tuple[str, str]]:
    """Return component and path within it of each module to compile."""
    found = []
    for pattern in HOT:
        part, _, inside = pattern.partition("/")
        paths = sorted((ROOT / part / "qlm" / part).glob(inside))
        found += [(part, str(path.relative_to(ROOT / part))) for path in paths if _is_hot(path)]
    return found


def _is_hot(path: Path) -> bool:
    text = path.read_text("utf-8")
    return path.name not in COLD and not any(word in text for word in COLD_WORDS)


def inherited() -> dict[str, set[str]]:
    """Return the classes of modules to compile, by path, that have subclasses in other modules.

    The bases of these that are compiled belong to them.
    """
    hot = {module for _, module in hot_modules()}
    bases = dict[tuple[str, str], set[tuple[str, str]]]()
    for part in PARTS:
        for path in (ROOT / part / "qlm").rglob("*.py"):
            module = str(path.relative_to(ROOT / part))
            bases |= {(module, name): of for name, of in _bases(ast.parse(path.read_text("utf-8")), module)}
    waiting = [base for (module, _), of in bases.items() if module not in hot for base in of]
    found: dict[str, set[str]] = {}
    while waiting:
        module, name = waiting.pop()
        if module in hot and name not in found.setdefault(module, set()):
            found[module].add(name)
            waiting += bases.get((module, name), ())
    return {module: names for module, names in found.items() if names}


def _bases(tree: ast.Module, module: str) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """Yield each class of a module, and path and name of its bases."""
    nodes = list(ast.walk(tree))
    known = {node.name: (module, node.name) for node in nodes if isinstance(node, ast.ClassDef)}
    known |= {
        alias.asname or alias.name: (f"{node.module.replace('.', '/')}.py", alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    for node in (each for each in nodes if isinstance(each, ast.ClassDef)):
        names = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        yield node.name, {known[name.id] for name in names if isinstance(name, ast.Name) and name.id in known}


def key() -> str:
    """Hash everything that the compiled code depends on."""
    digest = hashlib.sha256(f"{sys.version} {version('mypy')}".encode())
    sources = sorted(path for part in PARTS for path in (ROOT / part / "qlm").rglob("*") if path.is_file())
    digest.update(Path(__file__).read_bytes())
    for path in (each for each in sources if "__pycache__" not in each.parts):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def translate() -> None:
    """Translate the present sources to C, without compiling that.

    Raises:
        SystemExit: mypyc cannot; its message says why.
    """
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        _set_up(tree, _prepared(tree), "--name")


def _compile(folder: Path) -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as temporary:
        tree = Path(temporary) / "tree"
        modules = _prepared(tree)
        if key() != folder.name:
            raise SystemExit(
                "benchmarks.compiled: the sources changed while they were copied; please run it again"
            )
        _set_up(tree, modules, "build_ext --inplace")
        shutil.rmtree(tree / "build")
        if not folder.exists():  # another run may have been faster
            tree.rename(folder)


def _prepared(tree: Path) -> list[str]:
    """Copy the sources as mypyc takes them, and return the modules to compile."""
    for part in PARTS:
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part / "qlm", tree / "qlm", ignore=unwanted, dirs_exist_ok=True)
    modules, bases = [module for _, module in hot_modules()], inherited()
    for module in modules:
        source = (tree / module).read_text("utf-8")
        source = with_subclasses(with_values_written_out(source), bases.get(module))
        (tree / module).write_text(source, "utf-8")
    (tree / "mypy.ini").write_text(MYPY)
    (tree / "setup.py").write_text(SETUP)
    return modules


def _set_up(tree: Path, modules: Sequence[str], command: str) -> None:
    run = [sys.executable, "setup.py", command, *modules]
    done = subprocess.run(run, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(
            f"{done.stdout[-4000:]}\nbenchmarks.compiled: cannot compile; the lines above say why"
        )


def with_values_written_out(source: str) -> str:
    """Replace `qlm.domain.values.value` by its dataclass decorator, the only form that mypyc recognizes."""

    def written_out(found: re.Match[str]) -> str:
        options = found[1] or "kw_only=True"
        kind = options if "kw_only" in options else f"{options}, kw_only=True"
        return f"@dataclasses.dataclass(slots=True, unsafe_hash=True, {kind})"

    return VALUE.sub(written_out, source).replace(IMPORT, "import dataclasses")


def with_subclasses(source: str, names: Collection[str] | None) -> str:
    """Let classes that are not compiled inherit from these, which mypyc forbids otherwise."""
    if not names:
        return source
    classes = re.compile(rf"^((?:@.*\n)*)class ({'|'.join(sorted(names))})\b", re.MULTILINE)
    decorated = classes.sub(r"@mypyc_attr(allow_interpreted_subclasses=True)\n\1class \2", source)
    first = re.search(r"^(?:import|from) ", decorated, re.MULTILINE)
    at = first.start() if first else 0
    return f"{decorated[:at]}from mypy_extensions import mypyc_attr\n{decorated[at:]}"


if __name__ == "__main__":
    main()
