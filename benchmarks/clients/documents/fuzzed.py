"""Schemathesis against the documents of both listeners of `qlm serve`, emulated.

No answer may be a 5xx that the document does not name, or differ from the document in status, media type,
headers or fields; what the document forbids must be refused.
"""

import json
import os
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

from benchmarks.clients.documents.sealed import sealed
from support.ports import free_port
from support.qlm_process import QlmProcess

_HERE = Path(__file__).parent

PARTS: Final = 3
"""What can fail: the documents of both listeners, and the log."""

_CHECKS = "positive_data_acceptance,ensure_resource_availability"
"""Left out: a schema cannot say what a model has room for, or which of several requests may be cancelled."""

_REFUSALS = """\
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
"""
"""Schemathesis's own list, and 413: a body that breaks the schema may be too large, too."""

_CONFIG = {
    "models": [{"id": "mistral-7b", "context_tokens": 128}],
    "instances": [{"id": "a100-1", "accelerator": "A100", "models": ["mistral-7b"]}],
    "emulate": {"time_scale": 0.1},
    "limits": {"default_max_tokens": 4},
}


def failures(python: Path, *, examples: int, seed: int) -> list[str]:
    """Return what has defects, after Schemathesis has shown them.

    Args:
        python: Of the environment that has Schemathesis.
        examples: Random cases per route and kind.
        seed: Of these cases.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {**_CONFIG, "http": {"port": free_port()}, "data_dir": str(folder / "data")}
        served = QlmProcess("serve", "serve", config=config, folder=folder)
        served.start()
        try:
            served.wait_ready(instances=1, timeout_s=120)
            argv = [str(python.absolute()), "-m", "schemathesis.cli", "run", "--seed", str(seed)]
            argv += ["--max-examples", str(examples)]
            failed = [url for url in (served.url, served.admin_url) if not _passes(argv, url, folder)]
        finally:
            served.terminate()
        if "Traceback" in served.log_file.read_text("utf-8"):
            failed.append("the log, which has a traceback")
            print(served.log_file.read_text("utf-8"))
    return failed


def _passes(argv: list[str], url: str, folder: Path) -> bool:
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=20) as answer:
        document = json.load(answer)
    (folder / "schemathesis.toml").write_text(_REFUSALS, "utf-8")
    file = folder / "sealed.json"
    file.write_text(json.dumps(sealed(document)), "utf-8")
    argv = [*argv, str(file), "--url", url, "--phases", "examples,coverage,fuzzing", "--workers", "1"]
    # One worker: Python 3.11 may raise "AST constructor recursion depth mismatch" where two threads parse.
    argv += ["--exclude-checks", _CHECKS, "--request-timeout", "30", "--continue-on-failure"]
    env = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(_HERE)}
    return subprocess.run(argv, cwd=folder, env=env, check=False).returncode == 0
