"""Command lines of engines: real and emulated vLLM."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qlm.agents.engines.adapters import Adapter, lora_arguments
from qlm.agents.vllm_offloading.settings import offloading
from qlm.agents.vllm_scheduler.settings import SCHEDULER_CLASS, VARIABLE, SchedulerSettings
from qlm.domain.errors import InvalidValueError

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """Command line with environment variables to add."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


_PARALLELISM: Final = frozenset(
    {"--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"}
)
"""Arguments of vLLM that set the parallelism of a model over accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmScheduling:
    """QLM's scheduler inside vLLM.

    Attributes:
        settings: Its policy and what it knows of the machine.
        import_path: Folder from which vLLM's Python imports it (`scheduler_path`).
        async_scheduling: Leave vLLM's asynchronous scheduling on, with which it is not verified.
    """

    settings: SchedulerSettings
    import_path: Path
    async_scheduling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Settings of `vllm serve`; None leaves the choice to vLLM.

    Attributes:
        model: Folder, or name on the Hugging Face hub.
        host: Loopback only: the sleep and wake endpoints require no API key.
        seqs_max: Maximum batch size.
        batched_tokens_max: Maximum number of tokens of one iteration.
        gpus: Tensor-parallel size, unless `extra` sets the parallelism.
        context_tokens: Maximum prompt plus output.
        block_tokens: Tokens per KV block; on a CPU a multiple of 32.
        kv_cache_bytes: Size of the KV cache on each accelerator. Needed when several engines share a GPU:
            vLLM's own measurement depends on the others.
        dtype: Data type of weights and activations.
        generation_config: `auto`, `vllm` or a folder, from which it reads which tokens end an answer.
        host_kv_bytes: Host memory for offloaded KV blocks; 0 for none. Blocks are written as they fill, and
            loaded when a request is resumed.
        cpu: Run on the CPU, as tests do: no CUDA graphs, one thread, and a sleep mode that frees nothing.
        otlp_traces_endpoint: OTLP/HTTP endpoint for the spans of its requests; None for no tracing.
        scheduling: QLM's scheduler; None for vLLM's own.
        adapters: LoRA adapters that it serves beside the model.
        extra: Further arguments.
    """

    model: str
    served_model_name: str
    port: int
    host: str = "127.0.0.1"
    seqs_max: int = 256
    batched_tokens_max: int | None = None
    gpus: int = 1
    context_tokens: int | None = None
    block_tokens: int | None = None
    kv_cache_bytes: int | None = None
    dtype: str | None = None
    generation_config: str = "auto"
    host_kv_bytes: int = 0
    cpu: bool = False
    program: str = "vllm"
    otlp_traces_endpoint: str | None = None
    scheduling: VllmScheduling | None = None
    adapters: tuple[Adapter, ...] = ()
    extra: tuple[str, ...] = ()


def vllm_command(settings: VllmSettings) -> EngineCommand:
    """Build the command line of a vLLM (0.32) with the endpoints that agents need.

    Raises:
        InvalidValueError: The host is not the loopback interface.
    """
    if settings.host not in _LOOPBACK:
        raise InvalidValueError("engine.host", settings.host, f"one of {', '.join(_LOOPBACK)}")
    options = {
        "--served-model-name": settings.served_model_name,
        "--host": settings.host,
        "--port": settings.port,
        "--max-num-seqs": settings.seqs_max,
        "--max-num-batched-tokens": settings.batched_tokens_max,
        "--tensor-parallel-size": settings.gpus
        if settings.gpus > 1 and not _sets_parallelism(settings.extra)
        else None,
        "--max-model-len": settings.context_tokens,
        "--block-size": settings.block_tokens,
        "--kv-cache-memory-bytes": settings.kv_cache_bytes,
        "--dtype": settings.dtype,
        "--generation-config": None if settings.generation_config == "auto" else settings.generation_config,
        "--otlp-traces-endpoint": settings.otlp_traces_endpoint,
        "--kv-transfer-config": offloading(
            settings.host_kv_bytes, ended_first=settings.scheduling is not None
        )
        if settings.host_kv_bytes
        else None,
    }
    switch = "--enforce-eager" if settings.cpu else "--enable-sleep-mode"
    argv = [
        settings.program,
        "serve",
        settings.model,
        "--enable-scale-out",
        "--enable-prompt-tokens-details",
        "--disable-uvicorn-access-log",  # it would have a line for each request and each health probe
        switch,
    ]
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONFAULTHANDLER": "1"}
    if settings.cpu:
        env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    if settings.otlp_traces_endpoint is not None:
        env |= {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_SERVICE_NAME": "vllm"}
    if Path(settings.model).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    if settings.scheduling is not None:
        argv += ["--scheduler-cls", SCHEDULER_CLASS]
        argv += [] if settings.scheduling.async_scheduling else ["--no-async-scheduling"]
        env |= {
            VARIABLE: settings.scheduling.settings.text(),
            "PYTHONPATH": str(settings.scheduling.import_path),
        }
    return EngineCommand((*argv, *_words(options), *lora_arguments(settings.adapters), *settings.extra), env)


def _sets_parallelism(extra: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in _PARALLELISM for word in extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateSettings:
    """Settings of `qlm emulate`, which documents each; None leaves the choice to it."""

    port: int
    model: str | None = None
    accelerator: str | None = None
    gpus: int | None = None
    profile: Path | None = None
    served_model_name: str | None = None
    adapters: tuple[str, ...] = ()
    time_scale: float | None = None
    seqs_max: int | None = None
    batched_tokens_max: int | None = None
    kv_tokens: int | None = None
    context_tokens: int | None = None
    mean_output_tokens: float | None = None
    fixed_ms: float | None = None
    async_scheduling: bool | None = None
    cold_start: bool = False
    page_cache_marker: Path | None = None
    host_kv_bytes: int = 0
    batching: str | None = None
    otlp_traces_endpoint: str | None = None


def emulate_command(settings: EmulateSettings) -> EngineCommand:
    """Build the command line of an emulated engine, run by this Python."""
    options = {
        "--port": settings.port,
        "--model": settings.model,
        "--accelerator": settings.accelerator,
        "--gpus": settings.gpus,
        "--profile": settings.profile,
        "--served-model-name": settings.served_model_name,
        "--time-scale": settings.time_scale,
        "--max-num-seqs": settings.seqs_max,
        "--max-num-batched-tokens": settings.batched_tokens_max,
        "--kv-tokens": settings.kv_tokens,
        "--max-model-len": settings.context_tokens,
        "--mean-output-tokens": settings.mean_output_tokens,
        "--fixed-ms": settings.fixed_ms,
        "--page-cache-marker": settings.page_cache_marker,
        "--otlp-traces-endpoint": settings.otlp_traces_endpoint,
        "--kv-offloading-size": settings.host_kv_bytes / 2**30 if settings.host_kv_bytes else None,
        "--batching": settings.batching,
    }
    flags = ["--cold-start" if settings.cold_start else "--no-cold-start"]
    if settings.async_scheduling is not None:
        flags.append("--async-scheduling" if settings.async_scheduling else "--no-async-scheduling")
    lora = ("--lora-modules", *settings.adapters) if settings.adapters else ()
    # Without -P, modules of the current folder would hide installed ones.
    program = (sys.executable, "-P", "-m", "qlm.simulator.emulation.command")
    return EngineCommand((*program, *flags, *_words(options), *lora))


def _words(options: Mapping[str, object]) -> list[str]:
    return [word for flag, value in options.items() if value is not None for word in (flag, str(value))]
