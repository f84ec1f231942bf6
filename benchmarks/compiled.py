"""Run Python with the simulator compiled: `python -m benchmarks.compiled -m qlm.cli.main simulate ...`.

Arguments are those of Python. The first run after any change of the sources compiles what is hot of them with
mypyc, which takes minutes. The outcome lies in `build/compiled/<hash of the sources>`, and nobody but this
module looks there: an edit is never hidden by what was compiled before it, and nothing needs to be compiled.

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

HOT: Final[dict[str, str]] = {
    "agents": "batch_limit custody dry events eviction hands head held kv_ledger lateness log_writer "
    "protocol serving stopping swapping timers work",
    "controller": "balancing due estimating/arrivals estimating/classes estimating/forecast "
    "estimating/instances estimating/moment estimating/overtaking estimating/own_batch "
    "estimating/parked_work estimating/planning_times estimating/prefill_queue estimating/queues "
    "estimating/service_times estimating/state grouping planning protocol",
    "domain": "actions attainment errors fleet group ids leadership lease lease_answer length_histogram "
    "notices output plan_change ports/engine request sampling slo view virtual_queue",
    "gateway": "admission limits",
    "planner": "baselines/edf baselines/fcfs baselines/lane baselines/list_schedule baselines/openings "
    "baselines/orders problem",
    "rct_estimator": "completion_time correction length_predictive normal output_length queue_rows "
    "served_work service_table throughput waiting_time workload",
    "simulator": "engine/batching engine/decode_set engine/fixed engine/generation engine/host_cache "
    "engine/kv_blocks engine/kv_cache engine/model engine/private_texts engine/residency "
    "engine/run engine/scheduler engine/sequence engine/step_time engine/token_chain world/agent "
    "world/books world/clients world/engine_driver world/engine_host world/queues world/scripts "
    "world/shared world/timeline",
    "store": "core effects instances leading leases length_tally limits order output_log plans requests "
    "state tables",
}
"""Modules that run for each request or decision, by component. The others are left to the interpreter."""

SETUP: Final = """\
import sys
from setuptools import setup
from mypyc.build import mypycify

modules = mypycify(["--config-file=mypy.ini", *sys.argv[1:]], opt_level="3", debug_level="0")
setup(name="qlm-compiled", ext_modules=modules, script_args=["build_ext", "--inplace"])
"""

MYPY: Final = """\
[mypy]
strict = true
explicit_package_bases = true
namespace_packages = true
ignore_missing_imports = true
mypy_path = .
"""

IMPORT: Final = "from qlm.domain.values import value"
VALUE: Final = re.compile(r"^@value(?:\((.*)\))?$", re.MULTILINE)


def main() -> None:
    """Become Python, with the compiled modules before all others."""
    paths = [str(compiled()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)


def compiled() -> Path:
    """Return the folder of what the present sources compile to, and compile them first if need be."""
    folder = BUILT / key()
    if not folder.exists():
        print(f"compiling into {folder}; this takes minutes", file=sys.stderr)
        _compile(folder)
    return folder


def hot_modules() -> list[tuple[str, str]]:
    """Return each component with the path of a module that is compiled, within it."""
    return [(part, f"qlm/{part}/{name}.py") for part, names in HOT.items() for name in names.split()]


def key() -> str:
    """Hash all that the outcome depends on."""
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
    """Replace `qlm.domain.values.value` by what it does: mypyc knows dataclasses by that name only."""

    def written_out(found: re.Match[str]) -> str:
        options = found[1] or "kw_only=True"
        kind = options if "kw_only" in options else f"{options}, kw_only=True"
        return f"@dataclasses.dataclass(slots=True, unsafe_hash=True, {kind})"

    return VALUE.sub(written_out, source).replace(IMPORT, "import dataclasses")


if __name__ == "__main__":
    main()
