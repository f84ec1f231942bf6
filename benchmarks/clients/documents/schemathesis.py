"""`make clients`: Schemathesis against the documents of both listeners of `qlm serve`, emulated.

No answer may be a 5xx that the document does not name, or differ from the document in status, media type,
headers or fields; what the document forbids must be refused. Exit status 1 if one was found.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from benchmarks.clients.sealed import sealed
from support.ports import free_port
from support.qlm_process import QlmProcess

_HERE = Path(__file__).parent

_CHECKS = "positive_data_acceptance,ensure_resource_availability"
"""Left out: a schema cannot say what a model has room for, or which of several requests may be cancelled."""

_CONFIG = {
    "models": [{"id": "mistral-7b", "context_tokens": 128}],
    "instances": [{"id": "a100-1", "accelerator": "A100", "models": ["mistral-7b"]}],
    "emulate": {"time_scale": 0.1},
    "limits": {"default_max_tokens": 4},
}


def main() -> int:
    """Run the suite."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", required=True, help="of the environment that has Schemathesis")
    parser.add_argument("--examples", type=int, default=100, help="random cases per route and kind")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {**_CONFIG, "http": {"port": free_port()}, "data_dir": str(folder / "data")}
        served = QlmProcess("serve", "serve", config=config, folder=folder)
        served.start()
        try:
            served.wait_ready(instances=1, timeout_s=120)
            failed = [url for url in (served.url, served.admin_url) if not _passes(given, url, folder)]
        finally:
            served.terminate()
        if "Traceback" in served.log_file.read_text("utf-8"):
            failed.append("the log, which has a traceback")
            print(served.log_file.read_text("utf-8"))
    print(f"found defects in {', '.join(failed)}" if failed else "no defects")
    return 1 if failed else 0


def _passes(given: argparse.Namespace, url: str, folder: Path) -> bool:
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=20) as answer:
        document = json.load(answer)
    file = folder / "sealed.json"
    file.write_text(json.dumps(sealed(document)), "utf-8")
    argv = [str(Path(given.python).absolute()), "-m", "schemathesis.cli", "run", str(file), "--url", url]
    argv += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(given.examples)]
    argv += ["--seed", str(given.seed), "--exclude-checks", _CHECKS, "--request-timeout", "30"]
    argv += ["--continue-on-failure", "--workers", "2"]
    env = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(_HERE)}
    return subprocess.run(argv, cwd=folder, env=env, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
