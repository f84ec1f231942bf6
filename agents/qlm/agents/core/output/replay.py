"""Replays: an answer that cannot be resumed is generated again from its prompt, up to where its log ends.

An engine would begin a grammar, or the counts of a penalty, anew behind logged tokens. Given the prompt alone
and the same seed, it generates the same answer again. The agent compares what is repeated with the log, and
adds what comes behind it; clients see nothing of the rest. If a token differs, the answer cannot go on, since
a client may have read the logged one: what an engine computes can depend on what else is in its batch.
"""

from collections.abc import Iterator
from itertools import starmap
from typing import Final

from qlm.agents.core.events import Progress
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.request_table import RequestTable
from qlm.domain.formats.token_logprobs import bytes_per_token
from qlm.domain.ids import TokenIds

UNSEEDED: Final = frozenset({"cpu"})
"""Accelerators whose requests get no seed here: vLLM 0.32 on the CPU fails when it computes a prompt in parts
for a request with a seed (`CPU Generator does not use offset`)."""


class Repeated:
    """What tokens of generations, some of them replays, mean.

    Attributes:
        beyond: The part beyond the logs.
        call_ids: Replays that have advanced.
        differing: Requests whose engine generated other tokens than it did before.
    """

    def __init__(self, requests: RequestTable, event: Progress) -> None:
        """Compare replays with the logs, and note how far they have come."""
        self._requests, self._calls, self._replays = requests, requests.calls, requests.replays
        self.call_ids: set[str] = set()
        self.differing: list[TrackedRequest] = []
        before = dict(self._replays)
        chunks = tuple(starmap(self._beyond_log, event.chunks))
        self.beyond = Progress(
            chunks=tuple([chunk for chunk in chunks if chunk[1]]),
            logprobs=tuple(self._scores_beyond(event, before)),
            prompt_logprobs=event.prompt_logprobs,
            preparing=event.preparing,
            late_ns=event.late_ns,
        )

    def _beyond_log(self, call_id: str, token_ids: TokenIds) -> tuple[str, TokenIds]:
        at, tracked = self._replays.get(call_id), self._calls.get(call_id)
        if at is None or tracked is None:
            return call_id, token_ids
        self.call_ids.add(call_id)
        logged = tuple(tracked.output[at : at + len(token_ids)])
        if logged != token_ids[: len(logged)]:
            if tracked not in self.differing:
                self.differing.append(tracked)
            return call_id, ()
        self._replays[call_id] = at + len(logged)
        if at + len(logged) == len(tracked.output):
            del self._replays[call_id]
        return call_id, token_ids[len(logged) :]

    def _scores_beyond(self, event: Progress, before: dict[str, int]) -> Iterator[tuple[str, bytes]]:
        """Yield the log probabilities of tokens beyond the logs; those of the others are logged."""
        for call_id, packed in event.logprobs:
            at, tracked = before.get(call_id), self._calls.get(call_id)
            if at is None or tracked is None:
                yield call_id, packed
                continue
            size = bytes_per_token(tracked.request.extensions.logprobs or 0)
            logged = min(len(packed) // size, len(tracked.output) - at)
            before[call_id] = at + logged
            if rest := packed[logged * size :]:
                yield call_id, rest
