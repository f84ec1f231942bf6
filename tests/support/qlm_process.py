"""QLM itself as a process under test: `qlm serve` or one of its parts, with a configuration of its own."""

import contextlib
import copy
import functools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from support.ports import free_port
from support.process import ServerProcess

QLM = Path(sys.executable).with_name("qlm")


def emulated(
    *models: str, accelerator: str = "A100", instances: int = 1, time_scale: float = 0.1, **more: Any
) -> dict[str, Any]:
    """Write the configuration of equal emulated instances that serve the given models."""
    return {
        "models": [{"id": model, "context_tokens": 4096} for model in models],
        "instances": [
            {"id": f"i{n}", "accelerator": accelerator, "models": list(models)} for n in range(instances)
        ],
        "emulate": {"time_scale": time_scale},
        **more,
    }


class QlmProcess:
    """One process of QLM. `kill` is SIGKILL of that process alone, not of its children."""

    def __init__(
        self, name: str, *arguments: str, config: Mapping[str, Any], folder: Path, program: Path = QLM
    ) -> None:
        # No listener for gRPC, unless a test asks for one on a port of its own.
        config = {"grpc": {"port": 0}, "admin": {"port": free_port()}, **config}
        self.grpc_address = f"127.0.0.1:{config['grpc']['port']}"
        self.port: int = config.get("http", {}).get("port", 0)
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = name
        self.folder = folder
        self._file = folder / f"{name}.yaml"
        self._config = dict(config)
        argv = [str(program), *arguments, "--config", str(self._file)]
        self._process = ServerProcess(name, argv, env=dict(os.environ), folder=folder)
        self._write()

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration, that of its next start."""
        return copy.deepcopy(self._config)

    @property
    def admin_url(self) -> str:
        """Where its gateway serves operators."""
        return f"http://127.0.0.1:{self._config['admin']['port']}" if self._has_admin else self.url

    def configure(self, config: Mapping[str, Any]) -> None:
        """Write the configuration of its next start; the port stays."""
        self._config = dict(config)
        self._write()

    def run_as(self, program: Path) -> None:
        """Take another installation of QLM for its next start."""
        self._process.argv[0] = str(program)
        self._write()

    @property
    def _has_admin(self) -> bool:
        return has_admin_listener(Path(self._process.argv[0]))

    def _write(self) -> None:
        known = {key: each for key, each in self._config.items() if self._has_admin or key != "admin"}
        self._file.write_text(yaml.safe_dump(known), "utf-8")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.alive

    @property
    def exit_code(self) -> int | None:
        """How the process ended by itself; None while it runs."""
        return self._process.exit_code

    @property
    def log_file(self) -> Path:
        """Its log, of all its lives."""
        return self._process.log_file

    def start(self) -> None:
        """Start it; returns at once."""
        self._process.start()

    def wait_ready(self, *, instances: int = 0, timeout_s: float = 180.0) -> None:
        """Wait until the gateway is ready and that many instances have an engine awake."""
        self._process.wait_ready(lambda: self._ready(instances), timeout_s=timeout_s)

    def kill(self) -> None:
        """SIGKILL the process itself, and collect it."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def terminate(self, timeout_s: float = 20.0) -> None:
        """SIGTERM, and wait until it has ended."""
        os.kill(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(RuntimeError):
            self._process.wait_ready(lambda: not self._process.alive, timeout_s=timeout_s)
        self._process.kill()

    def close(self) -> None:
        """End it and all its children."""
        self._process.kill()

    def log(self) -> str:
        """The end of its log."""
        return self._process.log_tail(80)

    def _ready(self, instances: int) -> bool:
        try:
            if httpx.get(f"{self.url}/readyz").status_code != 200:
                return False
            return awake_instances(self.admin_url) >= instances
        except httpx.TransportError:
            return False


@functools.cache
def has_admin_listener(program: Path) -> bool:
    """Whether an installation of QLM has a listener for operators; one without refuses its section."""
    asked = [str(program), "gateway", "--help"]
    return (
        program == QLM
        or "--admin-port" in subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    )


def awake_instances(admin_url: str, token: str = "") -> int:
    """Count the live instances that have a model awake."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    listed = httpx.get(f"{admin_url}/admin/v1/instances", headers=headers).json()["instances"]
    return sum(1 for instance in listed if instance["active_model"])


@contextlib.contextmanager
def serving(
    config: Mapping[str, Any],
    *,
    instances: int | None = None,
    program: Path = QLM,
    ready_within_s: float = 60.0,
) -> Iterator[QlmProcess]:
    """Run `qlm serve` with a configuration on a free port and in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="qlm-test-") as temporary:
        folder = Path(temporary)
        whole = {"data_dir": str(folder / "data"), "http": {"port": free_port()}, **config}
        process = QlmProcess("serve", "serve", config=whole, folder=folder, program=program)
        process.start()
        try:
            wanted = len(whole["instances"]) if instances is None else instances
            process.wait_ready(instances=wanted, timeout_s=ready_within_s)
            yield process
        finally:
            process.close()
