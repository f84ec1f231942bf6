"""`make clients`: clients that others wrote, unmodified, at `qlm serve`; its engines are emulated, or vLLM.

Each client has an environment of its own in `build/clients`; all ask one server. Schemathesis comes first,
at a server with a smaller context. Exit status 1 if something fails.
"""

import argparse
import base64
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.clients import report, served, versions
from benchmarks.clients.documents import fuzzed
from benchmarks.clients.suites import SUITES, Suite
from support.ports import free_port
from support.qlm_process import serving

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_SCENARIOS = _HERE / "scenarios"
_DOCUMENTS = "schemathesis"
_SUITE = Suite(_DOCUMENTS, "", (_DOCUMENTS,))
_SUITE_S = 900
"""Longest time for one suite; LangChain's takes some 100 s on two busy cores."""

_QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "HF_HUB_OFFLINE": "1"}
"""Clients that would ask for something beyond this machine do not."""

_SECRET = "whsec_" + base64.b64encode(b"of the suites, on loopback alone").decode()


def main() -> int:
    """Run the suites that are named, or all."""
    names = [_DOCUMENTS, *(suite.name for suite in SUITES)]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(names)}; default: all")
    parser.add_argument("--examples", type=int, default=100, help="random cases per route, for Schemathesis")
    parser.add_argument("--seed", type=int, default=1, help="for Schemathesis")
    parser.add_argument("--vllm", action="store_true", help="a vLLM on the CPU with a tiny model")
    given = parser.parse_args()
    if unknown := [each for each in given.suites if each not in names]:
        parser.error(f"no suite {', '.join(unknown)}; expected some of {', '.join(names)}")
    wanted = given.suites or names
    subprocess.run([_ROOT / "scripts" / "install_clients.sh", *wanted], check=True)
    outcomes = [_documents(given)] if _DOCUMENTS in wanted else []
    if suites := [suite for suite in SUITES if suite.name in wanted]:
        with served.tiny_vllm() if given.vllm else served.emulated_models() as (config, models):
            outcomes += _played(suites, config, models)
    print(*report.table(outcomes), sep="\n")
    return 1 if any(each.failed for each in outcomes) else 0


def _documents(given: argparse.Namespace) -> report.Outcome:
    began_s = time.monotonic()
    failed = fuzzed.failures(_python(_DOCUMENTS), examples=given.examples, seed=given.seed)
    passed, seconds = fuzzed.PARTS - len(failed), time.monotonic() - began_s
    return report.Outcome(_DOCUMENTS, versions.locked(_SUITE), passed, failed, seconds=seconds)


def _played(
    suites: Sequence[Suite], config: Mapping[str, Any], models: served.Models
) -> list[report.Outcome]:
    hook = {"QLM_WEBHOOK_PORT": str(free_port()), "QLM_WEBHOOK_SECRET": _SECRET}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving({**config, **_webhooks(folder, hook)}, ready_within_s=served.READY_S) as process:
            served.wait_for_tools(process.url, models[0], timeout_s=served.READY_S)
            places = hook | {"QLM_URL": process.url, "QLM_MODEL": models[0], "QLM_OTHER_MODEL": models[1]}
            places["QLM_TAKES_IMAGES"] = "yes" if config["models"][0].get("engine") != "vllm" else ""
            outcomes = [_play(suite, folder, places) for suite in suites]
            log = process.log_file.read_text("utf-8")
    if "Traceback" in log:
        print(log)
        outcomes.append(report.Outcome("the server", "", failed=["its log has a traceback"]))
    return outcomes


def _webhooks(folder: Path, hook: Mapping[str, str]) -> dict[str, Any]:
    """Return the section of a receiver on this machine."""
    file = folder / "secret"
    file.write_text(hook["QLM_WEBHOOK_SECRET"])
    url = f"http://127.0.0.1:{hook['QLM_WEBHOOK_PORT']}/"
    receiver = {"name": "suites", "url": url, "secret_file": str(file)}
    return {
        "webhooks": {
            "endpoints": [receiver],
            "allowed_networks": ["127.0.0.0/8"],
            "retry_first_s": 0.5,
            "retry_max_s": 2,
            "retry_for_s": 60,
        }
    }


def _play(suite: Suite, folder: Path, places: Mapping[str, str]) -> report.Outcome:
    print(f"== {suite.name}", flush=True)
    file = folder / f"{suite.name}.xml"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | _QUIET
    env |= {"QLM_ROOT": str(_ROOT), **places}
    argv = _node(suite, file) if suite.of_node else _pytest(suite, file)
    began_s = time.monotonic()
    exit_code = -1
    with contextlib.suppress(subprocess.TimeoutExpired):
        exit_code = subprocess.run(argv, env=env, timeout=_SUITE_S, check=False).returncode
    seconds = time.monotonic() - began_s
    return report.read(suite.name, versions.locked(suite), file, exit_code, seconds)


def _pytest(suite: Suite, file: Path) -> list[str]:
    argv = [str(_python(suite.name)), "-m", "pytest", "-c", str(_SCENARIOS / "pytest.ini"), "-q"]
    return [*argv, "--tb", "short", "-W", "ignore", f"--junit-xml={file}", str(_SCENARIOS / suite.scenarios)]


def _node(suite: Suite, file: Path) -> list[str]:
    argv = [str(_ROOT / ".venv" / "bin" / "node"), "--test", "--test-reporter=junit"]
    argv += [
        f"--test-reporter-destination={file}",
        "--test-reporter=dot",
        "--test-reporter-destination=stdout",
    ]
    return [*argv, str((_SCENARIOS / suite.scenarios).resolve())]


def _python(name: str) -> Path:
    return _ROOT / "build" / "clients" / name / "bin" / "python"


if __name__ == "__main__":
    sys.exit(main())
