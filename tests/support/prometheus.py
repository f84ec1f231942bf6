"""A private Prometheus for tests, on a loopback port of its own, and promtool beside it."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from support.ports import free_port
from support.process import ServerProcess


def missing() -> str | None:
    """Say what to install, or None when Prometheus is there."""
    if shutil.which("prometheus") and shutil.which("promtool"):
        return None
    return "prometheus is not installed (scripts/install_servers.sh installs it)"


class Prometheus:
    """A running Prometheus."""

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: Path) -> None:
        """Prepare one that scrapes `targets`, host:port by name of the job, each second."""
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [target]}]}
                for job, target in targets.items()
            ],
        }
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config), "utf-8")
        argv = [
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._process = ServerProcess("prometheus", argv, env=os.environ, folder=folder)

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process.start()
        self._process.wait_ready(self._ready, timeout_s=60)

    def close(self) -> None:
        """End it for good."""
        self._process.kill()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression now."""
        answer = self._get("query", query=expression)
        result: list[dict[str, Any]] = answer["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """The rules it evaluates, with how that went."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        answer = httpx.get(f"{self._url}/api/v1/{what}", params=parameters).json()
        assert answer["status"] == "success", f"{parameters}: {answer}"
        data: dict[str, Any] = answer["data"]
        return data

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self._url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False


@contextlib.contextmanager
def running_prometheus(targets: Mapping[str, str], rules: Path) -> Iterator[Prometheus]:
    """Run one for the time of the block; its data goes away with it."""
    with tempfile.TemporaryDirectory(prefix="qlm-prometheus-") as folder:
        server = Prometheus(Path(folder), targets, rules)
        try:
            server.start()
            yield server
        finally:
            server.close()


def promtool(*arguments: str, text: str = "") -> str:
    """Run promtool; return what it complains of."""
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
