"""Verdict on the requests of a round: counts of forbidden and of permitted results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.chaos.client_request import ClientRequest


@dataclass(slots=True, kw_only=True)
class Verdict:
    """Counts of accepted requests (2xx), with a sentence for each forbidden result.

    Attributes:
        accepted: Accepted requests by kind.
        lost: Accepted requests without the right answer.
        twice: Requests that ended more than once, in the store's event history or for the client.
        broken: Requests with a missing, repeated or wrong token.
        unkept: Promises that were not kept during a fault: an engine that was not replaced, a second agent
            that was not refused.
        output_lost: Streams with this end after a deletion in Redis: only Redis had their delivered output.
        refused: Requests that were refused for good.
        gone: Requests that ended before a deletion in Redis, with an answer not fetched by then.
        incidents: A sentence for each lost, twice ended, broken or refused request.
    """

    accepted: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    broken: int = 0
    unkept: int = 0
    output_lost: int = 0
    refused: int = 0
    gone: int = 0
    incidents: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """True if no forbidden result occurred."""
        return not (self.lost or self.twice or self.broken or self.unkept)

    def add(self, other: "Verdict") -> None:
        """Add the counts of another round."""
        self.accepted += other.accepted
        self.lost += other.lost
        self.twice += other.twice
        self.broken += other.broken
        self.unkept += other.unkept
        self.output_lost += other.output_lost
        self.refused += other.refused
        self.gone += other.gone
        self.incidents += other.incidents


def judge(
    requests: Sequence[ClientRequest],
    ends: Mapping[str, int],
    deletions_s: Sequence[tuple[float, float]],
    unkept: Sequence[str] = (),
) -> Verdict:
    """Judge the requests of a round.

    Args:
        requests: All requests.
        ends: Number of ends in the event history of each known request.
        deletions_s: Begin and end of the faults that delete in Redis: the deletion is somewhere between.
        unkept: Promises that were not kept during a fault.
    """
    verdict = Verdict(unkept=len(unkept), incidents=[f"unkept: {each}" for each in unkept])
    for one in requests:
        if one.accepted_s is None and one.over:
            verdict.refused += 1
            _note(verdict, "refused", one, one.trouble or one.finish)
        if one.accepted_s is None:
            continue
        verdict.accepted[one.kind] += 1
        if not one.gap_free:
            verdict.broken += 1
            _note(verdict, "broken", one, f"{one.offsets[-3:]} {''.join(one.text)[-80:]!r}")
        if one.ends > 1 or ends.get(one.id, 0) > 1:
            verdict.twice += 1
            _note(verdict, "twice", one, f"{one.ends} ends seen, {ends.get(one.id)} in its event history")
        _judge_end(verdict, one, deletions_s)
    return verdict


def _judge_end(verdict: Verdict, one: ClientRequest, deletions_s: Sequence[tuple[float, float]]) -> None:
    if one.answered and not one.trouble:
        return
    met_a_deletion = any(
        one.sent_s < to_s and (one.over_s is None or one.over_s > from_s) for from_s, to_s in deletions_s
    )
    if one.finish == "gone" and met_a_deletion:
        verdict.gone += 1
    elif one.finish == "output_lost" and met_a_deletion and one.kind == "stream" and one.text:
        verdict.output_lost += 1
    elif one.finish != "length" or one.trouble:
        verdict.lost += 1
        _note(verdict, "lost", one, one.trouble or ("unfinished" if not one.over else one.finish))


def _note(verdict: Verdict, what: str, one: ClientRequest, why: str) -> None:
    verdict.incidents.append(
        f"{what}: {one.kind} {one.id or 'without an id'} ({one.key}, {one.tokens}): {why}"
    )
