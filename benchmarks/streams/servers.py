"""Servers under test, each with an engine of its own: QLM, the engine alone, a minimal proxy."""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.upgrade.release import installed
from support.emulated_engine import engine_command
from support.ports import free_port
from support.process import ServerProcess
from support.qlm_process import QLM, QlmProcess
from support.rabbitmq import running_rabbitmq
from support.redis import running_redis
from support.vllm_cpu import PYTHON, ROOT, VllmOptions, VllmServer, tiny_model

DIRECT, EMBEDDED, WORKERS, SERVERS, FLOOR, LITELLM = (
    "direct",
    "qlm",
    "workers",
    "servers",
    "floor",
    "litellm",
)
MODEL: Final = "streamed"
SEQS_MAX: Final = 1024
_VLLM_SEQS_MAX: Final = 128
_CONTEXT: Final = 4096
_LITELLM_PROGRAM: Final = ROOT / "build" / "clients" / "litellm" / "bin" / "litellm"
_READY_S: Final = 200.0
_PLANS: Final = "the plan generator plans from now on"
_PARTS: Final = (("gateway",), ("controller",), ("agent", "i0"))
_PARSED: Final = (
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
    "--tool-strict-level",
    "parameter",
)


@dataclass(frozen=True, slots=True)
class Arm:
    """A server under test: its port, and its process groups by name."""

    name: str
    port: int
    groups: dict[str, int]


@contextlib.contextmanager
def emulated_arms(
    names: Sequence[str], source: str | None, workers: int, time_scale: float = 1.0
) -> Iterator[list[Arm]]:
    """Run servers with emulated engines; direct comes first.

    Args:
        names: The other servers.
        source: Wheel or revision of another version, as one more server.
        workers: Gateway workers of the server of that name.
        time_scale: Real seconds per second of the engines.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-streams-")))
        more = ("--time-scale", f"{time_scale:g}")
        engine = _engine(stack, folder / DIRECT, more)
        arms = [Arm(DIRECT, engine[0], {"engine": engine[1]})]
        if source:
            arms.append(_qlm(stack, folder / "from", "former", EMBEDDED, installed(source).qlm, more=more))
        proxies = {FLOOR: _floor, LITELLM: _litellm}
        for name in names:
            at, http = folder / name, {"workers": workers} if name == WORKERS else {}
            proxy = proxies.get(name)
            arms.append(
                _qlm(stack, at, name, name, QLM, http, more) if proxy is None else proxy(stack, at, more)
            )
        yield arms


def _engine(stack: contextlib.ExitStack, folder: Path, more: tuple[str, ...]) -> tuple[int, int]:
    """Start an engine; return its port and process group."""
    folder.mkdir()
    port = free_port()
    command = engine_command(port, MODEL, seqs_max=SEQS_MAX, more=more)
    engine = ServerProcess("engine", command, env=dict(os.environ), folder=folder)
    stack.callback(engine.kill)
    engine.start()
    engine.wait_ready(lambda: "ready on" in engine.log_file.read_text(), timeout_s=60)
    return port, engine.pid


def _floor(stack: contextlib.ExitStack, folder: Path, more: tuple[str, ...]) -> Arm:
    """Start the minimal proxy, with an engine of its own."""
    engine_port, engine_group = _engine(stack, folder, more)
    port = free_port()
    script = Path(__file__).with_name("floor.py")
    command = [sys.executable, str(script), str(port), f"http://127.0.0.1:{engine_port}"]
    proxy = ServerProcess("floor", command, env=dict(os.environ), folder=folder)
    stack.callback(proxy.kill)
    proxy.start()
    proxy.wait_ready(lambda: "ready" in proxy.log_file.read_text(), timeout_s=60)
    return Arm(FLOOR, port, {"engine": engine_group, "floor": proxy.pid})


def _litellm(stack: contextlib.ExitStack, folder: Path, more: tuple[str, ...]) -> Arm:
    """Start LiteLLM's proxy, with an engine of its own.

    Raises:
        SystemExit: It is not installed.
    """
    if not _LITELLM_PROGRAM.exists():
        raise SystemExit('LiteLLM is not installed: run make clients ARGS="litellm" first')
    engine_port, engine_group = _engine(stack, folder, more)
    at_engine = {
        "model": f"text-completion-openai/{MODEL}",
        "api_base": f"http://127.0.0.1:{engine_port}/v1",
        "api_key": "none",
    }
    config = {"model_list": [{"model_name": MODEL, "litellm_params": at_engine}]}
    (folder / "config.yaml").write_text(json.dumps(config), "utf-8")
    port = free_port()
    command = [str(_LITELLM_PROGRAM), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1"]
    command += ["--port", str(port)]
    env = os.environ | {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # the client sends no key
    }
    proxy = ServerProcess("litellm", command, env=env, folder=folder)
    stack.callback(proxy.kill)
    proxy.start()
    ready = "Application startup complete"
    proxy.wait_ready(lambda: ready in proxy.log_file.read_text("utf-8"), timeout_s=_READY_S)
    return Arm(LITELLM, port, {"engine": engine_group, "litellm": proxy.pid})


def _qlm(
    stack: contextlib.ExitStack,
    folder: Path,
    name: str,
    kind: str,
    program: Path,
    http: Mapping[str, Any] = MappingProxyType({}),
    more: tuple[str, ...] = (),
) -> Arm:
    engine_port, engine_group = _engine(stack, folder, more)
    instance = {"accelerator": "A100", "url": f"http://127.0.0.1:{engine_port}", "seqs_max": SEQS_MAX}
    config = _config({"profile": "mistral-7b"}, instance)
    commands: Sequence[tuple[str, ...]] = (("serve",),)
    if kind == SERVERS:
        commands = _PARTS
        config |= {"broker": stack.enter_context(running_rabbitmq()).url}
        config |= {"store": stack.enter_context(running_redis()).url}
    port, groups = _started(stack, folder, config, commands, program, http)
    return Arm(name, port, {"engine": engine_group, **groups})


def _config(model: Mapping[str, Any], instance: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "models": [{"id": MODEL, "context_tokens": _CONTEXT, **model}],
        "instances": [{"id": "i0", "models": [MODEL], **instance}],
    }


def _started(
    stack: contextlib.ExitStack,
    folder: Path,
    config: Mapping[str, Any],
    commands: Sequence[tuple[str, ...]],
    program: Path,
    http: Mapping[str, Any],
) -> tuple[int, dict[str, int]]:
    """Start the processes of a QLM; return the port of the first and all process groups."""
    started, groups = [], {}
    for command in commands:
        whole = {**config, "data_dir": str(folder / f"data-{command[0]}")}
        whole["http"] = {"port": free_port(), **http}
        process = QlmProcess(command[0], *command, config=whole, folder=folder, program=program)
        stack.callback(process.close)
        process.start()
        started.append(process)
        groups[command[0]] = process.pid
    started[0].wait_ready(instances=1)
    planning = next(each for each in started if each.name in ("serve", "controller"))
    while _PLANS not in planning.log_file.read_text("utf-8"):  # its code may be compiled first
        time.sleep(0.1)
    return started[0].port, groups


@contextlib.contextmanager
def vllm_arms() -> Iterator[list[Arm]]:
    """Run a vLLM on the CPU with a tiny model, alone and behind QLM with a render tier of vLLM."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-streams-")))
        direct = _vllm(stack, folder / DIRECT)
        engine = _vllm(stack, folder / EMBEDDED)
        tier_port, tier_group = _render_tier(stack, folder / EMBEDDED)
        model = {
            "engine": "vllm",
            "path": str(tiny_model(kind="talks")),
            "profile": "mistral-7b",
            "render": {"url": f"http://127.0.0.1:{tier_port}"},
        }
        instance = {"accelerator": "CPU", "url": engine.base_url, "seqs_max": _VLLM_SEQS_MAX}
        config = _config(model, instance)
        port, groups = _started(stack, folder / EMBEDDED, config, (("serve",),), QLM, {})
        groups |= {"engine": engine.process.pid, "render": tier_group}
        yield [Arm(DIRECT, direct.port, {"engine": direct.process.pid}), Arm(EMBEDDED, port, groups)]


def _vllm(stack: contextlib.ExitStack, folder: Path) -> VllmServer:
    folder.mkdir()
    options = VllmOptions(
        model=tiny_model(kind="talks"),
        served_model_name=MODEL,
        max_model_len=_CONTEXT,
        max_num_seqs=_VLLM_SEQS_MAX,
        extra_args=_PARSED,
    )
    server = VllmServer(folder, options)
    stack.callback(server.kill)
    server.start(timeout_s=_READY_S)
    return server


def _render_tier(stack: contextlib.ExitStack, folder: Path) -> tuple[int, int]:
    """Start `vllm launch render`; return its port and process group."""
    port = free_port()
    argv = [
        str(PYTHON.with_name("vllm")),
        "launch",
        "render",
        str(tiny_model(kind="talks")),
        "--host",
        "127.0.0.1",
    ]
    argv += ["--port", str(port), "--served-model-name", MODEL, "--max-model-len", str(_CONTEXT), *_PARSED]
    tier = ServerProcess("render", argv, env=os.environ | {"HF_HUB_OFFLINE": "1"}, folder=folder)
    stack.callback(tier.kill)
    tier.start()
    ready = "Application startup complete"
    tier.wait_ready(lambda: ready in tier.log_file.read_text("utf-8"), timeout_s=_READY_S)
    return port, tier.pid
