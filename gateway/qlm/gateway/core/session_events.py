"""Events and actions of a session, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass

from qlm.domain.attainment import UNDECIDED, Attainment
from qlm.domain.formats.token_logprobs import TokenLogprob
from qlm.domain.ids import TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.output import OutputSlice
from qlm.domain.values import value
from qlm.gateway.core.logprobs.logged import NOT_KNOWN, PromptLogprobs


@value(kw_only=False)
class OutputAnnounced:
    """The store announced output; announcements may repeat, overlap or skip."""

    slice: OutputSlice
    now_ns: int


@dataclass(frozen=True, slots=True)
class OutputFetched:
    """The result of FetchOutput.

    Attributes:
        slice: The log from the offset on; None if the store does not know the request.
        now_ns: The present.
        lost: The store would know the request if its message were in the queue.
    """

    slice: OutputSlice | None
    now_ns: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The store was unavailable."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Resync:
    """Announcements may have been missed: the connection to the store was lost, or the store restarted."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the session's `wake_ns` is reached."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client disconnected.

    Attributes:
        now_ns: The present.
        for_good: It will not come back, whatever its grace.
    """

    now_ns: int
    for_good: bool = False


Event = OutputAnnounced | OutputFetched | FetchFailed | Resync | Tick | ClientGone


@value(kw_only=False)
class SendEvent:
    """Send new text; the client has then been shown `offset` output tokens.

    Attributes:
        offset: Output tokens shown so far.
        text: The new text.
        token_ids: The tokens since the event before, up to `offset`.
        logprobs: Their log probabilities, if the request asked for them.
        prompt_logprobs: Those of the prompt, with the first tokens, if the request asked for them.
    """

    offset: int
    text: str
    token_ids: TokenIds = ()
    logprobs: Sequence[TokenLogprob] = ()
    prompt_logprobs: PromptLogprobs = NOT_KNOWN


@dataclass(frozen=True, slots=True)
class SendKeepAlive:
    """Send a comment, so that no proxy takes the connection for dead."""


@dataclass(frozen=True, slots=True)
class SendFinal:
    """Send the end of the answer; the session is over.

    Attributes:
        offset: Output tokens of the answer (`completion_tokens`).
        text: Text that has not been sent before; all of it if the answer is not streamed.
        finish_reason: `stop` or `length`; None if it ended badly.
        outcome: How it ended.
        detail: The reason, if it ended badly.
        token_ids: Tokens of the answer that have not been sent before.
        stop_reason: Stop string or token that ended it, as in vLLM; None at the model's own end or the limit.
        cached_tokens: Prompt tokens found in the prefix cache; None if that is not known.
        attainment: Whether the request met its objective; the hub judges that.
        logprobs: Log probabilities of `token_ids`, if the request asked for them.
        prompt_logprobs: Those of the prompt, if the request asked for them and `token_ids` are the first.
    """

    offset: int
    text: str
    finish_reason: str | None
    outcome: Outcome
    detail: str = ""
    token_ids: TokenIds = ()
    stop_reason: int | str | None = None
    cached_tokens: int | None = None
    attainment: Attainment = UNDECIDED
    logprobs: Sequence[TokenLogprob] = ()
    prompt_logprobs: PromptLogprobs = NOT_KNOWN


@dataclass(frozen=True, slots=True)
class FetchOutput:
    """Read the output log from an offset on; answer with OutputFetched or FetchFailed."""

    offset: int


@dataclass(frozen=True, slots=True)
class StopGeneration:
    """End the generation: a stop string has appeared."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End the request, unless another client watches it. The session is over.

    Attributes:
        outcome: How it ends.
        why: The reason, for clients and operators.
    """

    outcome: Outcome
    why: str


Action = SendEvent | SendKeepAlive | SendFinal | FetchOutput | StopGeneration | CancelRequest
