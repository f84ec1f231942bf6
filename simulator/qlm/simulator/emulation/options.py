"""Options of an emulated engine and its command line."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from qlm.agents.batching.policies.registry import FCFS, POLICIES
from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.server_address import is_host, is_http_address
from qlm.domain.shown import shown, without_password

PORT_MAX: Final = 65535

MEAN_OUTPUT_TOKENS: Final = 200.0
"""Default mean answer length of an emulated model; near ShareGPT's mean."""


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
        adapters: Names of LoRA adapters of the model.
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
    adapters: tuple[str, ...] = ()
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
        if not is_host(self.host):
            raise InvalidValueError("host", self.host, "an address or a name of this machine")
        if not 0 <= self.port <= PORT_MAX:
            raise InvalidValueError("port", self.port, f"a port of 0 to {PORT_MAX}")
        if not self.mean_output_tokens >= 1:
            raise InvalidValueError("mean-output-tokens", self.mean_output_tokens, "at least 1")
        if self.fixed_ms is not None and not 0 < self.fixed_ms < inf:
            raise InvalidValueError("fixed-ms", self.fixed_ms, "a number above 0")
        if not 0 <= self.watermark < 1:
            raise InvalidValueError("watermark", self.watermark, "a share of 0 to below 1")
        if not 0 <= self.host_kv_gib < 2**20:
            raise InvalidValueError("kv-offloading-size", self.host_kv_gib, "a number of GiB, 0 or more")
        if self.profile is None and (self.model is None or self.accelerator is None):
            raise InvalidValueError("model", self.model, "a model and an accelerator, or a profile file")
        self._check_counts()
        self._check_adapters()
        if self.otlp_traces_endpoint is not None:
            _check_endpoint(self.otlp_traces_endpoint)

    def _check_adapters(self) -> None:
        names = [*self.adapters]
        if own := self.served_model_name or self.model:
            names.insert(0, own)
        for at, name in enumerate(names):
            if not name.strip() or name in names[:at]:
                raise InvalidValueError("lora-modules", name, "a name that neither model nor adapter has yet")

    def _check_counts(self) -> None:
        counts = {
            "max-num-seqs": self.seqs_max,
            "max-num-batched-tokens": self.batched_tokens_max,
            "max-model-len": self.context_tokens,
            "kv-tokens": self.kv_tokens,
        }
        for name, count in counts.items():
            if count is not None and count < 1:
                raise InvalidValueError(name, count, "at least 1")


def option_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="qlm emulate",
        description="Run an emulated engine: a server with vLLM's API that takes as long as a real GPU.",
        epilog="Example: qlm emulate --model llama-3-8b --accelerator A10",
    )
    parser.add_argument("--model", help="model of a shipped profile; also the model name for clients")
    parser.add_argument("--accelerator", help="accelerator of the shipped profile, such as A10, A100 or H100")
    parser.add_argument("--gpus", type=int, default=1, help="accelerators of the shipped profile")
    parser.add_argument("--profile", type=Path, help="profile file instead of a shipped one")
    parser.add_argument("--served-model-name", help="model name for clients, if it differs")
    parser.add_argument(
        "--lora-modules",
        type=_adapter_name,
        nargs="+",
        dest="adapters",
        default=(),
        metavar="NAME[=PATH]",
        help="LoRA adapters of the model; a path is not read",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: %(default)s")
    parser.add_argument(
        "--port", type=int, default=8100, help="port to listen on (default %(default)s); 0: free"
    )
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
    options = vars(option_parser().parse_args(arguments))
    return EmulateOptions(**options | {"adapters": tuple(options["adapters"])})


def _adapter_name(word: str) -> str:
    """Take the name out of both forms of vLLM: NAME=PATH, and an object of JSON with `name` and `path`."""
    if not word.startswith("{"):
        return word.partition("=")[0]
    try:
        name = json.loads(word)["name"]
    except (ValueError, LookupError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise argparse.ArgumentTypeError(f"{shown(word)}; expected NAME=PATH, or JSON with name and path")
    return name


def _check_endpoint(endpoint: str) -> None:
    if not is_http_address(endpoint):
        expected = "an address such as http://host:4318/v1/traces"
        raise InvalidValueError("otlp-traces-endpoint", without_password(endpoint), expected)
