"""Run an emulated engine: a server with vLLM's API that takes as long as a real GPU.

`python -m qlm.simulator.emulation.command --model llama-3-8b --accelerator A10 --port 8100`
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import uvicorn
import uvloop

from qlm.agents.batching.guarded import guarded_policy
from qlm.agents.batching.policies.registry import FCFS, POLICIES
from qlm.domain.errors import InvalidValueError, QlmError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.shell.tasks import end_tasks
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.emulation.emulator import Emulator
from qlm.simulator.emulation.server import EmulatedServer
from qlm.simulator.emulation.tracing import make_tracer
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.fixed import FixedLatencyEngine
from qlm.simulator.engine.generation import hashed_generation
from qlm.simulator.engine.model import EngineModel
from qlm.simulator.engine.residency import Residency, ResidentEngine

MEAN_OUTPUT_TOKENS: Final = 200.0
"""Default mean answer length of an emulated model; near ShareGPT's mean."""

_BACKLOG: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulateOptions:
    """Options of an emulated engine.

    Attributes:
        model: Name of a shipped profile; also the model name for clients, unless `served_model_name` is
            given.
        accelerator: Accelerator of the shipped profile.
        gpus: Number of accelerators of the shipped profile.
        profile: Profile file instead of a shipped one.
        served_model_name: Model name for clients.
        port: 0 for a free one.
        time_scale: Real seconds per emulated second.
        seqs_max: Most requests in the batch; None for the profile's.
        kv_tokens: Size of the KV cache; None for the profile's.
        context_tokens: Most tokens of prompt and output; None for the profile's, or as many as fit.
        batched_tokens_max: Most tokens per iteration; None for the profile's, or one per batch slot.
        async_scheduling: Schedule each iteration while the one before it runs; None: as the profile says.
        watermark: Share of KV blocks that an admission leaves free.
        host_kv_gib: Host memory for copies of KV blocks, GiB; 0 for none.
        batching: Batch policy; None for first come, first served.
        mean_output_tokens: Mean length of answers that no limit ends.
        cold_start: Wait for the profile's cold start before listening, as a real engine does.
        page_cache_marker: File whose existence means that the weights files are in host memory.
        fixed_ms: Fixed latency of each answer, instead of emulating a GPU.
        otlp_traces_endpoint: OTLP/HTTP endpoint for spans of requests; None for none.
    """

    model: str | None = None
    accelerator: str | None = None
    gpus: int = 1
    profile: Path | None = None
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8100
    time_scale: float = 1.0
    seqs_max: int | None = None
    kv_tokens: int | None = None
    context_tokens: int | None = None
    batched_tokens_max: int | None = None
    async_scheduling: bool | None = None
    watermark: float = 0.0
    host_kv_gib: float = 0.0
    batching: str | None = None
    mean_output_tokens: float = MEAN_OUTPUT_TOKENS
    cold_start: bool = False
    page_cache_marker: Path | None = None
    fixed_ms: float | None = None
    otlp_traces_endpoint: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.time_scale <= 1000:
            raise InvalidValueError("time-scale", self.time_scale, "a number above 0, up to 1000")
        if self.mean_output_tokens < 1:
            raise InvalidValueError("mean-output-tokens", self.mean_output_tokens, "at least 1")
        if not 0 <= self.watermark < 1:
            raise InvalidValueError("watermark", self.watermark, "a share of 0 to below 1")
        if not 0 <= self.host_kv_gib < 2**20:
            raise InvalidValueError("kv-offloading-size", self.host_kv_gib, "a number of GiB, 0 or more")
        if self.profile is None and (self.model is None or self.accelerator is None):
            raise InvalidValueError("model", self.model, "a model and an accelerator, or a profile file")


def load_profile(options: EmulateOptions) -> Profile:
    """Load the profile of the options.

    Raises:
        InvalidValueError: There is no such profile, or it cannot be used.
    """
    if options.profile is None:
        return find_profile(builtin_profiles(), options.model or "", options.accelerator or "", options.gpus)
    try:
        text = options.profile.read_text("utf-8")
    except OSError as error:
        raise InvalidValueError(
            "profile", str(options.profile), f"a readable file ({error.strerror})"
        ) from None
    return parse_profile_text(text, str(options.profile))


def make_engine(options: EmulateOptions, profile: Profile) -> EngineModel:
    """Build the engine model of the options."""
    log_exception = logging.getLogger(__name__).exception
    seqs_max = options.seqs_max or profile.seqs_max
    batched_tokens_max = options.batched_tokens_max or max(profile.batched_tokens_max, seqs_max)
    capacity = replace(_capacity(options, profile), batched_tokens_max=batched_tokens_max)
    start = hashed_generation(
        block_tokens=capacity.block_tokens,
        context_tokens=capacity.context_tokens,
        mean_output_tokens=options.mean_output_tokens,
    )
    if options.fixed_ms is not None:
        return FixedLatencyEngine(capacity, start, latency_ns=round(options.fixed_ms * 1e6))
    return BatchingEngine(
        profile,
        capacity,
        start,
        async_scheduling=options.async_scheduling,
        batched_tokens_max=batched_tokens_max,
        watermark=options.watermark,
        host_kv_bytes=int(options.host_kv_gib * 2**30),
        policy=guarded_policy(options.batching, log_exception) if options.batching else None,
    )


def _capacity(options: EmulateOptions, profile: Profile) -> EngineCapacity:
    """Return the limits for requests; one block is reserved, as vLLM's null block."""
    blocks = (options.kv_tokens or profile.kv_tokens) // profile.block_tokens - 1
    fits = max(blocks, 0) * profile.block_tokens
    context_tokens = options.context_tokens or min(profile.context_tokens, fits)
    if not 2 <= context_tokens <= fits:
        raise InvalidValueError(
            "kv-tokens", options.kv_tokens or profile.kv_tokens,
            f"room for a context of {options.context_tokens or 2} tokens and one reserved block",
        )  # fmt: skip
    return EngineCapacity(
        kv_tokens=fits,
        block_tokens=profile.block_tokens,
        seqs_max=options.seqs_max or profile.seqs_max,
        context_tokens=context_tokens,
    )


class _Server(uvicorn.Server):
    """Server that exits cleanly on SIGTERM and SIGINT, and breaks running streams off when it stops."""

    def __init__(self, config: uvicorn.Config, emulator: Emulator) -> None:
        super().__init__(config)
        self._emulator = emulator

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal; unlike the base class, do not raise it again afterwards."""
        loop, signals = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        self._emulator.close()
        await super().shutdown(sockets)


async def serve_emulated(options: EmulateOptions, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        options: How to emulate.
        ready: Called with the base URL once it listens.

    Raises:
        InvalidValueError: Unusable options, or the port is taken.
    """
    profile = load_profile(options)
    engine = make_engine(options, profile)
    residency = ResidentEngine(
        profile, Residency.COLD, in_page_cache=lambda: _is_there(options.page_cache_marker)
    )
    start_ns = residency.start()
    if options.cold_start:
        await asyncio.sleep(start_ns / 1e9 * options.time_scale)
    tracer = None if options.otlp_traces_endpoint is None else make_tracer(options.otlp_traces_endpoint)
    name = options.served_model_name or options.model or profile.model
    emulator = Emulator(engine, residency, time_scale=options.time_scale, clock_ns=time.monotonic_ns)
    server = EmulatedServer(
        emulator,
        name,
        tracer,
        async_scheduling=profile.async_scheduling,
        request_s=profile.request_ms / 1000 * options.time_scale,
    )
    config = uvicorn.Config(
        server.app,
        log_level=logging.WARNING,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        backlog=_BACKLOG,
    )
    listener = _listen(options.host, options.port)
    listening = _Server(config, emulator)
    async with asyncio.TaskGroup() as tasks:
        driver = tasks.create_task(emulator.run())
        ready(f"http://{options.host}:{listener.getsockname()[1]}")
        await listening.serve([listener])
        await end_tasks([driver])
    if tracer is not None:
        await asyncio.to_thread(tracer.close)


def _is_there(marker: Path | None) -> bool:
    return marker is not None and marker.exists()


def _listen(host: str, port: int) -> socket.socket:
    """Bind before the server runs, so that a taken port raises our error and port 0 gets its number."""
    try:
        return socket.create_server((host, port), backlog=_BACKLOG, reuse_port=False)
    except OSError as error:
        raise InvalidValueError("port", port, f"a free port of {host} ({error.strerror})") from None


def run_emulated(options: EmulateOptions) -> None:
    """Serve in this process until SIGTERM or SIGINT; print a line on standard output when ready.

    Raises:
        InvalidValueError: Unusable options, or the port is taken.
    """

    def ready(base_url: str) -> None:
        print(f"emulated engine ready on {base_url}", flush=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_emulated(options, ready))


def option_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(prog="qlm emulate", description=__doc__)
    parser.add_argument("--model", help="model of a shipped profile; also the model name for clients")
    parser.add_argument("--accelerator", help="accelerator of the shipped profile (A10, A100)")
    parser.add_argument("--gpus", type=int, default=1, help="accelerators of the shipped profile")
    parser.add_argument("--profile", type=Path, help="profile file instead of a shipped one")
    parser.add_argument("--served-model-name", help="model name for clients, if it differs")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8100, help="port to listen on; 0 for a free one")
    parser.add_argument("--time-scale", type=float, default=1.0, help="real seconds per emulated second")
    _add_batch_options(parser)
    parser.add_argument(
        "--mean-output-tokens",
        type=float,
        default=MEAN_OUTPUT_TOKENS,
        help="mean length of answers that no limit ends",
    )
    parser.add_argument(
        "--cold-start",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="wait for the time of a cold start before listening",
    )
    parser.add_argument(
        "--page-cache-marker",
        type=Path,
        help="file whose existence means that the weights are in host memory",
    )
    parser.add_argument("--otlp-traces-endpoint", help="endpoint for spans (http://host:4318/v1/traces)")
    parser.add_argument("--fixed-ms", type=float, help="fixed latency of each answer, whatever the load")
    return parser


def _add_batch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-num-seqs", type=int, dest="seqs_max", help="most requests in the batch; default: the profile's"
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        dest="batched_tokens_max",
        help="most tokens per iteration; default: the profile's",
    )
    parser.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="schedule each iteration while the one before it runs; default: the profile's setting",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        dest="context_tokens",
        help="most tokens of prompt and output; default: the profile's, or as many as fit",
    )
    parser.add_argument("--kv-tokens", type=int, help="tokens of KV cache; default: the profile's")
    parser.add_argument(
        "--watermark",
        type=float,
        default=0.0,
        help="share of KV blocks that an admission leaves free, 0 to below 1",
    )
    parser.add_argument(
        "--kv-offloading-size", type=float, dest="host_kv_gib", default=0.0, help="GiB of host memory for KV"
    )
    parser.add_argument("--batching", help=f"batch policy ({', '.join(POLICIES)}); default: {FCFS}")


def parse_options(arguments: Sequence[str]) -> EmulateOptions:
    """Parse the command line."""
    return EmulateOptions(**vars(option_parser().parse_args(arguments)))


def main(arguments: Sequence[str]) -> int:
    """Run from a command line; print errors as one sentence on standard error."""
    try:
        run_emulated(parse_options(arguments))
    except QlmError as error:
        print(f"qlm emulate: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
