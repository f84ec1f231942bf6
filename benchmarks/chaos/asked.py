"""One request of a client, what the client saw of it, and the answer it must have been given."""

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.chaos.rig import MODEL
from qlm.domain.byte_tokens import EOS_ID
from qlm.simulator.engine.token_chain import TokenChain, digests

Kind = Literal["stream", "plain", "async"]
KINDS: tuple[Kind, ...] = ("stream", "plain", "async")


@dataclass(slots=True, kw_only=True)
class Asked:
    """A request and its client's record; times are on the monotonic clock, seconds.

    Attributes:
        key: Its Idempotency-Key, which is its prompt, too: no two requests have the same answer.
        kind: How its answer comes.
        tokens: Length of its answer.
        slo: Its objective; none is the configured default.
        model: Which model it asks; all give the same answer.
        pinned: It cannot be resumed exactly, so it stays where it has begun.
        sent_s: When it was first sent.
        id: As the gateway called it; empty until a gateway did.
        accepted_s: When 2xx came.
        over_s: When its answer was complete, or it was known that none will come.
        text: What came, in order.
        offsets: Of each piece: output tokens up to its end.
        token_s: When each piece came.
        finish: Why the answer ended, in OpenAI's words, or the code of an error.
        ends: How many ends were shown.
        looks: Times an asynchronous one was asked about.
        refused: Times it was asked to come again.
        breaks: Times its connection was refused or broke.
        cuts: Those in the middle of its answer.
        trouble: What must not happen to an accepted request, in words.
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
        """Whether its client waits no longer."""
        return self.over_s is not None

    @property
    def body(self) -> dict[str, Any]:
        """The request as it is sent."""
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
        """Whether its client has the whole answer, and exactly that."""
        return self.finish == "length" and "".join(self.text) == reference(self.key, self.tokens)

    @property
    def gap_free(self) -> bool:
        """Whether what its client saw begins the answer, with no token missing, repeated or out of order."""
        shown = "".join(self.text)
        whole = reference(self.key, self.tokens)
        in_order = self.offsets == sorted(self.offsets)
        return in_order and (shown == whole if self.finish == "length" else whole.startswith(shown))


@functools.cache
def reference(prompt: str, tokens: int) -> str:
    """The answer of the emulated model, computed here: a token is a hash of all tokens before it."""
    prompt_ids = prompt.encode()
    chain = TokenChain(digests(prompt_ids, len(prompt_ids) + 1)[-1], prompt_ids[-1], 200.0)
    return bytes(chain.next_id((EOS_ID,)) for _ in range(tokens)).decode()
