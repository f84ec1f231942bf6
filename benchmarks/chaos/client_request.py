"""Request of a client, with the client's record and the expected answer."""

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.chaos.rig import MODEL
from qlm.domain.byte_tokens import EOS_ID
from qlm.simulator.engine.token_chain import TokenChain, digests

Kind = Literal["stream", "plain", "async"]
KINDS: tuple[Kind, ...] = ("stream", "plain", "async")


@dataclass(slots=True, kw_only=True)
class ClientRequest:
    """Request with its client's record; times are on the monotonic clock, seconds.

    Attributes:
        key: Idempotency-Key and prompt; unique, so that no two requests have the same answer.
        kind: Form of the answer.
        tokens: Length of the answer.
        slo: Objective; None for the configured default.
        model: Requested model; all give the same answer.
        pinned: The request cannot be resumed exactly, so it stays on its instance.
        sent_s: Time of the first try.
        id: Id from the gateway; empty before.
        accepted_s: Time of status 2xx.
        over_s: Time of the complete answer, or of a final error.
        text: Received pieces in order.
        offsets: Number of output tokens at the end of each piece.
        token_s: Time of each piece.
        finish: OpenAI's finish reason, or an error code.
        ends: Number of received ends.
        looks: Number of polls of an asynchronous request.
        refused: Number of refusals with a retry delay.
        breaks: Number of refused or broken connections.
        cuts: Number of connections that broke during the answer.
        trouble: Error that an accepted request must not have.
    """

    key: str
    kind: Kind
    tokens: int
    slo: dict[str, float] | None
    sent_s: float
    model: str = MODEL
    pinned: bool = False
    id: str = ""
    accepted_s: float | None = None
    over_s: float | None = None
    text: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    finish: str = ""
    ends: int = 0
    looks: int = 0
    refused: int = 0
    breaks: int = 0
    cuts: int = 0
    trouble: str = ""

    @property
    def over(self) -> bool:
        """True if the client has stopped waiting."""
        return self.over_s is not None

    @property
    def body(self) -> dict[str, Any]:
        """Body of the HTTP request."""
        whole: dict[str, Any] = {
            "model": self.model,
            "prompt": self.key,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": self.kind == "stream",
        }
        if self.pinned:
            whole["frequency_penalty"] = 0.5
        return whole if self.slo is None else {**whole, "slo": self.slo}

    @property
    def answered(self) -> bool:
        """True if the client has exactly the expected answer."""
        return self.finish == "length" and "".join(self.text) == reference(self.key, self.tokens)

    @property
    def gap_free(self) -> bool:
        """True if the received text is a prefix of the answer, with no token missing or repeated."""
        shown = "".join(self.text)
        whole = reference(self.key, self.tokens)
        in_order = self.offsets == sorted(self.offsets)
        return in_order and (shown == whole if self.finish == "length" else whole.startswith(shown))


@functools.cache
def reference(prompt: str, tokens: int) -> str:
    """Compute the answer of the emulated model, in which a token is a hash of all tokens before it."""
    prompt_ids = prompt.encode()
    chain = TokenChain(digests(prompt_ids, len(prompt_ids) + 1)[-1], prompt_ids, 200.0)
    return bytes(chain.next_id((EOS_ID,)) for _ in range(tokens)).decode()
