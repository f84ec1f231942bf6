"""Run Python with the simulator compiled: `python -m benchmarks.compiled -m qlm.cli.main simulate ...`.

Arguments are those of Python. The first run after a change of the sources compiles the hot packages with
mypyc, which takes minutes. The result is in `build/compiled/<hash of the sources>`, which only this module
reads: so an edit is never hidden by old compiled code, and nothing else needs compiled code.

Needs the development set and a C compiler, and setuptools from Python 3.12 on.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
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
    "agents/core/**/*.py", "controller/core/**/*.py", "domain/*.py", "domain/ports/engine.py",
    "gateway/core/admission.py", "planner/baselines/*.py", "planner/problem.py", "rct_estimator/**/*.py",
    "simulator/cluster/*.py", "simulator/engine/*.py", "store/core/*.py",
)  # fmt: skip
"""Patterns of modules whose code runs for each request or decision. The interpreter runs the rest."""

COLD: Final = frozenset({"__init__.py", "values.py", "controller.py", "side_effects.py"})
"""File names that match but are not compiled.

mypyc cannot compile `domain.values`, which sets an attribute on a function, nor
`simulator.cluster.controller`, which has a runtime-checkable protocol. `agents.core.side_effects`, a generic
dataclass with slots, fails when it is imported.
"""

SETUP: Final = """\
import sys
from setuptools import setup
from mypyc.build import mypycify

flags = ["--config-file=mypy.ini", *sys.argv[1:]]
# A file of C for each module: the compiler does not finish with one file of 270 MB for all.
modules = mypycify(flags, opt_level="3", debug_level="0", multi_file=True)
setup(name="qlm-compiled", ext_modules=modules, script_args=["build_ext", "--inplace"])
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
        found += [(part, str(path.relative_to(ROOT / part))) for path in paths if path.name not in COLD]
    return found


def key() -> str:
    """Hash everything that the compiled code depends on."""
    digest = hashlib.sha256(f"{sys.version} {version('mypy')}".encode())
    sources = sorted(path for part in PARTS for path in (ROOT / part / "qlm").rglob("*") if path.is_file())
    digest.update(Path(__file__).read_bytes())
    for path in (each for each in sources if "__pycache__" not in each.parts):
        digest.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(folder: Path) -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as temporary:
        tree = Path(temporary) / "tree"
        for part in PARTS:
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part / "qlm", tree / "qlm", ignore=unwanted, dirs_exist_ok=True)
        if key() != folder.name:
            raise SystemExit(
                "benchmarks.compiled: the sources changed while they were copied; please run it again"
            )
        modules = [module for _, module in hot_modules()]
        for module in modules:
            source = (tree / module).read_text("utf-8")
            (tree / module).write_text(with_values_written_out(source), "utf-8")
        (tree / "mypy.ini").write_text(MYPY)
        (tree / "setup.py").write_text(SETUP)
        command = [sys.executable, "setup.py", *modules]
        done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(
                f"{done.stdout[-4000:]}\nbenchmarks.compiled: cannot compile; the lines above say why"
            )
        shutil.rmtree(tree / "build")
        if not folder.exists():  # another run may have been faster
            tree.rename(folder)


def with_values_written_out(source: str) -> str:
    """Replace `qlm.domain.values.value` by its dataclass decorator, the only form that mypyc recognizes."""

    def written_out(found: re.Match[str]) -> str:
        options = found[1] or "kw_only=True"
        kind = options if "kw_only" in options else f"{options}, kw_only=True"
        return f"@dataclasses.dataclass(slots=True, unsafe_hash=True, {kind})"

    return VALUE.sub(written_out, source).replace(IMPORT, "import dataclasses")


if __name__ == "__main__":
    main()
