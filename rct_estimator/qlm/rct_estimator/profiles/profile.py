"""Profiles: the speed of one model on one kind of accelerator, with the source of each number."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.fields import check_positive, check_share
from qlm.rct_estimator.profiles.iteration import Equations, IterationTime, pairs_of
from qlm.rct_estimator.profiles.points import FitPoints

_BATCHED_TOKENS_LIMIT: Final = 1 << 20
"""Engines are simulated with the time of each number of tokens in a table."""


class SourceKind(StrEnum):
    """Origin of a number of a profile."""

    MEASURED = "measured"
    """Read off the running hardware, by us or in a published measurement."""
    DERIVED = "derived"
    """Computed or estimated from other figures; the text says how."""
    SPECIFIED = "specified"
    """Taken from a data sheet, the model's configuration or a setting of the engine."""


@dataclass(frozen=True, slots=True)
class Source:
    """Source of one number.

    Attributes:
        text: A sentence with the address of what was read.
        uncertainty: Relative error of the value (0.2 = within 20 %); None if unknown. Specified values have
            none.
    """

    kind: SourceKind
    text: str
    uncertainty: float | None = None

    def __post_init__(self) -> None:
        if self.uncertainty is None:
            return
        check_share("uncertainty", self.uncertainty)
        if self.kind is SourceKind.SPECIFIED:
            raise InvalidValueError("uncertainty", self.uncertainty, "none: the value is specified")


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What the requests of a log had an engine compute; beyond it coefficients are extrapolated.

    Attributes:
        sequences_max: Largest batch.
        tokens_max: Most tokens of an iteration.
        context_max: Longest text, tokens.
    """

    sequences_max: float
    tokens_max: float
    context_max: float

    def __post_init__(self) -> None:
        for each in fields(self):
            check_positive(each.name, getattr(self, each.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Speed, capacity and swap times of one (model, accelerator, GPUs).

    Attributes:
        model: Name of the model.
        accelerator: Kind of accelerator.
        gpus: Accelerators that one engine of it spans.
        engine: Engine and version whose speed it is, as in `vLLM 0.32.0`.
        iteration: Coefficients of the duration of an iteration.
        async_scheduling: The engine puts the next iteration together before the present one ends (vLLM's
            `--async-scheduling`).
        kv_bytes_per_token: Bytes of KV cache of one token, over all GPUs.
        block_tokens: Tokens per KV block.
        kv_tokens: Tokens of KV cache that fit beside the weights.
        seqs_max: Requests in the running batch at most.
        batched_tokens_max: Tokens computed in one iteration at most (`--max-num-batched-tokens`).
        context_tokens: Prompt plus output of one request at most.
        weights_bytes: Bytes of the weights, over all GPUs.
        accelerator_memory_bytes: Memory of all its GPUs together.
        swap_warm_s: Time from weights in host memory to serving (waking from sleep level 1).
        swap_reload_s: Time from weights in storage to serving in a live process (waking from level 2).
        swap_cold_s: Time from nothing to serving: process start, weights, engine initialisation.
        unload_s: Time from serving to memory freed (going to sleep).
        host_bandwidth_bytes_per_s: Bandwidth between accelerator and host memory, one way, over all GPUs.
        request_ms: Time of a request outside of iterations, from its client to the scheduler and back: HTTP,
            tokenising, detokenising. It delays every token and keeps no batch slot.
        sources: Origin of each number above, by its name in the file.
        fit: Points to which the coefficients were fitted, if the file keeps them.
        covered: What the log had computed to which they were fitted, if it was one.
        equations: Coefficients of equations 14 and 15, if the file was written as version 1.
    """

    model: str
    accelerator: str
    gpus: int
    engine: str
    iteration: IterationTime
    async_scheduling: bool
    kv_bytes_per_token: int
    block_tokens: int
    kv_tokens: int
    seqs_max: int
    batched_tokens_max: int
    context_tokens: int
    weights_bytes: int
    accelerator_memory_bytes: int
    swap_warm_s: float
    swap_reload_s: float
    swap_cold_s: float
    unload_s: float
    host_bandwidth_bytes_per_s: float
    request_ms: float = 0.0
    sources: Mapping[str, Source]
    fit: FitPoints | None = None
    covered: Covered | None = None
    equations: Equations | None = field(default=None)

    def __post_init__(self) -> None:
        for name in TEXTS:
            if not getattr(self, name):
                raise InvalidValueError(name, getattr(self, name), "a name")
        for name in NUMBERS:
            check_positive(name, getattr(self, name))
        if self.kv_tokens < 2 * self.block_tokens:
            raise InvalidValueError(
                "kv_tokens", self.kv_tokens, f"at least {2 * self.block_tokens}, two blocks"
            )
        if self.batched_tokens_max > _BATCHED_TOKENS_LIMIT:
            raise InvalidValueError(
                "batched_tokens_max", self.batched_tokens_max, f"at most {_BATCHED_TOKENS_LIMIT}"
            )
        check_positive("request_ms", self.request_ms, zero=True)
        for name in (*self.coefficients, *NUMBERS, *(("request_ms",) if self.request_ms else ())):
            if name not in self.sources and name != "gpus":
                raise InvalidValueError("sources", sorted(self.sources), f"also a source of {name}")

    @property
    def coefficients(self) -> tuple[str, ...]:
        """Names of the coefficients of its iterations; those that are zero or left out need no source."""
        return tuple(name for name in COEFFICIENTS if getattr(self.iteration, name))

    @property
    def request_ns(self) -> int:
        """The same as `request_ms`, in nanoseconds."""
        return round(self.request_ms * 1e6)

    def prefill_ms(self, batch: float, tokens: float, *, position: float = 0.0) -> float:
        """Return the time of an iteration with `batch` chunks of `tokens` tokens and nothing else, ms.

        Chunks at the start of their prompts admit their requests.
        """
        return self.iteration.ms(
            tokens=batch * tokens,
            context_tokens=0.0,
            sequences=batch,
            pairs=batch * pairs_of(tokens, position),
            admitted=0.0 if position else batch,
            mixed=True,
        )

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """Return the time of an iteration that decodes `batch` requests with that context each, ms."""
        return self.iteration.ms(
            tokens=batch, context_tokens=batch * context_tokens, sequences=batch, mixed=False
        )


TEXTS: Final = ("model", "accelerator", "engine")
COEFFICIENTS: Final = tuple(f.name for f in fields(IterationTime))
"""Names of the coefficients of an iteration, as attributes and as keys of the file."""
_OTHERS: Final = frozenset(
    {*TEXTS, "iteration", "async_scheduling", "request_ms", "sources", "fit", "covered", "equations"}
)
NUMBERS: Final = tuple(f.name for f in fields(Profile) if f.name not in _OTHERS)
"""Names of a profile's plain numbers, as attributes and as keys of the file."""
