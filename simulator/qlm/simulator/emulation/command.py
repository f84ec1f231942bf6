"""The program of an emulated engine: a server with vLLM's API that takes as long as a real GPU."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvicorn
import uvloop

from qlm.agents.batching.guarded import guarded_policy
from qlm.domain.errors import InvalidValueError, QlmError
from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.tracing import Tracer
from qlm.domain.shell.tasks import end_tasks
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.emulation.emulator import Emulator
from qlm.simulator.emulation.options import EmulateOptions, parse_options
from qlm.simulator.emulation.server import EmulatedServer
from qlm.simulator.emulation.tracing import make_tracer
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.fixed import FixedLatencyEngine
from qlm.simulator.engine.generation import hashed_generation
from qlm.simulator.engine.model import EngineModel
from qlm.simulator.engine.residency import Residency, ResidentEngine

_BACKLOG: Final = 2048


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
    except UnicodeDecodeError:
        raise InvalidValueError("profile", str(options.profile), "a file in UTF-8") from None
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


def make_server(
    options: EmulateOptions, profile: Profile, emulator: Emulator, tracer: Tracer | None = None
) -> EmulatedServer:
    """Build the server of an engine; it reports the settings with which that runs."""
    given = options.async_scheduling
    return EmulatedServer(
        emulator,
        options.served_model_name or options.model or profile.model,
        tracer,
        adapters=options.adapters,
        async_scheduling=profile.async_scheduling if given is None else given,
        request_s=profile.request_ms / 1000 * options.time_scale,
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
    emulator = Emulator(engine, residency, time_scale=options.time_scale, clock_ns=time.monotonic_ns)
    server = make_server(options, profile, emulator, tracer)
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
