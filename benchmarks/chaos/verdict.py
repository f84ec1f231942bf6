"""What became of every request of a round: counts of what must not be, and of what may."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.chaos.asked import Asked


@dataclass(slots=True, kw_only=True)
class Verdict:
    """Counts over requests whose client got 2xx, and the stories of those that must not be.

    Attributes:
        accepted: Requests by kind.
        lost: Accepted, but never answered as they had to be.
        twice: Ended more than once, in the story of the store or for the client.
        broken: A token was missing, repeated or wrong.
        output_lost: Streams that ended so after Redis was emptied: nobody else had what was shown.
        refused: Never accepted, and told not to come again.
        gone: Ended before Redis was emptied, and not fetched by then: results live only there.
        stories: Of each request that is lost, ended twice, broken or refused: why.
    """

    accepted: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    broken: int = 0
    output_lost: int = 0
    refused: int = 0
    gone: int = 0
    stories: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing happened that must not."""
        return not (self.lost or self.twice or self.broken)

    def add(self, other: "Verdict") -> None:
        """Add the counts of another round."""
        self.accepted += other.accepted
        self.lost += other.lost
        self.twice += other.twice
        self.broken += other.broken
        self.output_lost += other.output_lost
        self.refused += other.refused
        self.gone += other.gone
        self.stories += other.stories


def judge(asked: Sequence[Asked], ends: Mapping[str, int], flushed_s: Sequence[float]) -> Verdict:
    """Judge the requests of a round.

    Args:
        asked: All requests.
        ends: How often the story of each known request has ended.
        flushed_s: When Redis was emptied.
    """
    verdict = Verdict()
    for one in asked:
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
            _note(verdict, "twice", one, f"{one.ends} ends seen, {ends.get(one.id)} in its story")
        _judge_end(verdict, one, flushed_s)
    return verdict


def _judge_end(verdict: Verdict, one: Asked, flushed_s: Sequence[float]) -> None:
    if one.answered and not one.trouble:
        return
    met_a_flush = any(one.sent_s < at_s < (one.over_s or at_s + 1) for at_s in flushed_s)
    if one.finish == "gone" and met_a_flush:
        verdict.gone += 1
    elif one.finish == "output_lost" and met_a_flush and one.kind == "stream" and one.text:
        verdict.output_lost += 1
    elif one.finish != "length" or one.trouble:
        verdict.lost += 1
        _note(verdict, "lost", one, one.trouble or ("unfinished" if not one.over else one.finish))


def _note(verdict: Verdict, what: str, one: Asked, why: str) -> None:
    verdict.stories.append(f"{what}: {one.kind} {one.id or 'without an id'} ({one.key}, {one.tokens}): {why}")
