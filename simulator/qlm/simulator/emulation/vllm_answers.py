"""Response formats of vLLM 0.32, whole and as server-sent events, as measured on a live server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from qlm.domain.byte_tokens import EOS_ID
from qlm.simulator.emulation.vllm_logprobs import completion_logprobs, generate_logprobs, prompt_logprobs
from qlm.simulator.emulation.vllm_requests import VllmRequest
from qlm.simulator.engine.generation import ABORT
from qlm.simulator.engine.model import Emission

DONE: Final = b"data: [DONE]\n\n"

ENGINE_DEAD: Final = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
"""Response to a client whose engine died during its request."""


def event(plain: object) -> bytes:
    """Encode one server-sent event."""
    return b"data: " + orjson.dumps(plain) + b"\n\n"


class AnswerShape(Protocol):
    """Response format of one endpoint for one request."""

    def take(self, emission: Emission) -> None:
        """Add an emission to the answer."""
        ...

    def chunk(self, emission: Emission) -> bytes:
        """Add an emission and encode its event; empty if the endpoint has none for it."""
        ...

    def usage_chunk(self) -> bytes:
        """Encode the event with the token counts."""
        ...

    def whole(self, finish: str, stop_reason: int | None, created_s: int) -> dict[str, Any]:
        """Build the whole answer."""
        ...


@dataclass(slots=True, kw_only=True)
class _Answer:
    """Token ids and counts of an answer, common to both endpoints."""

    wanted: VllmRequest
    model: str
    token_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0

    def take(self, emission: Emission) -> None:
        """Add an emission to the answer."""
        self.token_ids += emission.token_ids
        self.cached_tokens = max(self.cached_tokens, emission.cached_tokens)

    def scored_before(self) -> tuple[int, ...]:
        """Return the tokens so far if the request wants log probabilities; else nothing."""
        return () if self.wanted.logprobs is None else tuple(self.token_ids)

    def usage(self) -> dict[str, Any]:
        prompt, completion = len(self.wanted.prompt_ids), len(self.token_ids)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(slots=True, kw_only=True)
class GenerateAnswer(_Answer):
    """Response format of /inference/v1/generate: ids in, ids out."""

    def chunk(self, emission: Emission) -> bytes:
        """Encode one event per iteration; there is always one with the end."""
        before = self.scored_before()
        self.take(emission)
        choice = self._choice(before, emission.token_ids, emission.finish, emission.stop_reason)
        head = {"request_id": self.wanted.public_id, "usage": None, "output_mode": "tokens"}
        return event({**head, "choices": [choice]})

    def usage_chunk(self) -> bytes:
        """Encode the event with the token counts."""
        head = {"request_id": self.wanted.public_id, "usage": self.usage()}
        return event({**head, "output_mode": "tokens", "choices": []})

    def whole(self, finish: str, stop_reason: int | None, created_s: int) -> dict[str, Any]:
        """Build the whole answer."""
        return {
            "request_id": self.wanted.public_id,
            "model": self.model,
            "created": created_s,
            "usage": self.usage(),
            "prompt_logprobs": self._prompt_logprobs(),
            "kv_transfer_params": None,
            "output_mode": "tokens",
            "choices": [self._choice((), self.token_ids, finish, stop_reason)],
        }

    def _prompt_logprobs(self) -> list[dict[str, Any] | None] | None:
        """Return those of the prompt; only an answer that is no stream has them (measured)."""
        top = self.wanted.prompt_logprobs
        return None if top is None else prompt_logprobs(self.wanted.prompt_ids, top)

    def _choice(
        self, before: Sequence[int], ids: Sequence[int], finish: str | None, stop_reason: int | None
    ) -> dict[str, Any]:
        choice = _choice(ids, finish, stop_reason)
        if (top := self.wanted.logprobs) is not None:
            choice["logprobs"] = generate_logprobs((*self.wanted.prompt_ids[-8:], *before), ids, top)
        return choice


@dataclass(slots=True, kw_only=True)
class CompletionAnswer(_Answer):
    """Response format of /v1/completions: text, and ids on request."""

    created_s: int

    def chunk(self, emission: Emission) -> bytes:
        """Encode one event per iteration; an abort before the first token has none (measured)."""
        first, before = not self.token_ids, self.scored_before()
        self.take(emission)
        if emission.finish == ABORT and first:
            return b""
        choice = self._choice(
            emission.token_ids, emission.finish, emission.stop_reason, prompt=first, before=before
        )
        return event({**self._head(), "choices": [choice]})

    def usage_chunk(self) -> bytes:
        """Encode the event with the token counts."""
        return event({**self._head(), "choices": [], "usage": self.usage()})

    def whole(self, finish: str, stop_reason: int | None, created_s: int) -> dict[str, Any]:
        """Build the whole answer."""
        choice = self._choice(self.token_ids, finish, stop_reason, prompt=True)
        return {**self._head(), "choices": [choice], "usage": self.usage(), "kv_transfer_params": None}

    def _head(self) -> dict[str, Any]:
        name = {"id": self.wanted.public_id, "object": "text_completion"}
        return {**name, "created": self.created_s, "model": self.model}

    def _choice(
        self,
        ids: Sequence[int],
        finish: str | None,
        stop_reason: int | None,
        *,
        prompt: bool,
        before: Sequence[int] = (),
    ) -> dict[str, Any]:
        shown, top = self.wanted.token_ids, self.wanted.logprobs
        return {
            "index": 0,
            "text": bytes(one for one in ids if one != EOS_ID).decode(errors="replace"),
            "logprobs": None if top is None else completion_logprobs(before, ids, top, len(before)),
            "finish_reason": finish,
            "stop_reason": stop_reason,
            "prompt_token_ids": self.wanted.prompt_ids if shown and prompt else None,
            "token_ids": ids if shown else None,
        }


def _choice(ids: Sequence[int], finish: str | None, stop_reason: int | None) -> dict[str, Any]:
    return {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None,
        "logprobs": None,
    }
