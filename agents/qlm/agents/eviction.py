"""Which running requests make room when something more urgent waits (request eviction, QLM section 5)."""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from qlm.agents.held import Held
from qlm.domain.ids import RequestId
from qlm.domain.sampling import Evictability
from qlm.domain.values import value

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol

RECHECK_NS: Final = 50_000_000
"""Shortest time until a decision to wait is looked at again without an event."""

EVICTIONS_MAX: Final = 4
"""A request is evicted at most this often by one agent, so that it cannot be pushed around forever."""


@value(kw_only=False)
class Pace:
    """How fast the engine has been going lately; zeros until something was seen.

    Attributes:
        token_s: Seconds per output token of one request.
        service_s: Seconds from submission to the end of a request.
    """

    token_s: float = 0.0
    service_s: float = 0.0

    def seen(self, *, tokens: int, elapsed_s: float, weight: float = 0.2) -> "Pace":
        """Blend in one finished generation by exponential smoothing."""
        per_token_s = elapsed_s / max(1, tokens)
        if not self.service_s:
            return Pace(per_token_s, elapsed_s)
        return Pace(
            self.token_s + weight * (per_token_s - self.token_s),
            self.service_s + weight * (elapsed_s - self.service_s),
        )


class Candidates:
    """Answers about the running requests that eviction asks again and again, without looking at all of them.

    Each answer remembers the request that decided it and looks at all again only when that one no longer
    runs, or when a bound that it gives does not decide.

    Args:
        running: The running requests, as they come and go.
    """

    def __init__(self, running: Mapping[RequestId, Held]) -> None:
        self._running = running
        self._shortest: Held | None = None
        self._laxest: Held | None = None
        self._laxest_known = True

    def started(self, held: Held) -> None:
        """Take note of a request that starts to run."""
        if held is self._laxest:
            # Back from an eviction, it may have had its last one.
            self._laxest_known = False
        elif (
            self._laxest_known
            and may_be_evicted(held)
            and (self._laxest is None or _lax(held) > _lax(self._laxest))
        ):
            self._laxest = held

    def any_laxer(self, head: tuple[int, float, int]) -> bool:
        """Whether some running request may be evicted for a head of this urgency."""
        if self._laxest is not None and not self._runs(self._laxest):
            self._laxest_known = False
        if not self._laxest_known:
            self._laxest = max(filter(may_be_evicted, self._running.values()), key=_lax, default=None)
            self._laxest_known = True
        return self._laxest is not None and _lax(self._laxest) > head[:2]

    def make_room_at_ns(self, deadline_ns: int, pace: Pace, now_ns: int) -> int:
        """When waiting for a place to come free by itself begins to miss a deadline; past `now_ns` = not yet.

        The wait is bounded by the running request that is closest to its own token limit. Tokens that come
        meanwhile only move the moment away. There must be a running request.
        """
        if self._shortest is not None and self._runs(self._shortest):
            # It was the closest once; whether it still is matters only if it says that time is up.
            at_ns = _make_room_at_ns(self._shortest, deadline_ns, pace)
            if at_ns > now_ns:
                return at_ns
        self._shortest = min(self._running.values(), key=lambda held: held.tokens_left)
        return _make_room_at_ns(self._shortest, deadline_ns, pace)

    def _runs(self, held: Held) -> bool:
        return self._running.get(held.request.id) is held


def _make_room_at_ns(shortest: Held, deadline_ns: int, pace: Pace) -> int:
    wait_s = max(0, shortest.tokens_left) * pace.token_s
    return deadline_ns - round((wait_s + pace.service_s) * 1e9) + 1


def may_be_evicted(held: Held) -> bool:
    """Whether it can be resumed exactly, and has not been pushed around too often."""
    return held.request.evictability is not Evictability.PINNED and held.evictions < EVICTIONS_MAX


def _timed(held: Held) -> bool:
    return held.request.deadline_ns is not None


def _lax(held: Held) -> tuple[int, float]:
    return held.urgency[:2]


def must_make_room(
    agent: "AgentProtocol", head: tuple[int, float, int], deadline_ns: int | None, now_ns: int
) -> bool:
    """Whether running requests must go now so that a head is in time; if not yet, look again."""
    if deadline_ns is None or not agent.settings.evicts:
        return False
    watch_head(agent, now_ns)
    return agent.candidates.any_laxer(head) and cannot_wait(agent, deadline_ns, now_ns)


def watch_head(agent: "AgentProtocol", now_ns: int) -> None:
    """Look again when a group before the head may be pulled for."""
    if agent.head.until_ns is not None:
        _look_again(agent, agent.head.until_ns, now_ns)


def cannot_wait(agent: "AgentProtocol", deadline_ns: int, now_ns: int) -> bool:
    """Whether a deadline would be missed if a place were to come free by itself; if not yet, look again."""
    at_ns = agent.candidates.make_room_at_ns(deadline_ns, agent.pace, now_ns)
    if at_ns > now_ns:
        _look_again(agent, at_ns, now_ns)
    return at_ns <= now_ns


def _look_again(agent: "AgentProtocol", at_ns: int, now_ns: int) -> None:
    agent.alarm.want(max(at_ns, now_ns + RECHECK_NS))


def for_a_swap(running: Collection[Held], *, head: tuple[int, float, int], now_ns: int) -> list[Held]:
    """Choose the requests to evict before a model swap for a head of urgency `head`.

    All of them must be gone before anybody is served, so that the instance would stand as good as idle while
    the last ones run out. Those go, too, that have had the first token their objective is about, unless they
    are of a higher priority.
    """
    answered = (
        held for held in running if may_be_evicted(held) and _answered(held) and held.urgency[0] >= head[0]
    )
    laxer = (held for held in running if _gives_way(held, head, now_ns))
    return list({held.id: held for held in (*laxer, *answered)}.values())


def _gives_way(held: Held, head: tuple[int, float, int], now_ns: int) -> bool:
    late = head[1] <= now_ns
    return may_be_evicted(held) and _lax(held) > head[:2] and not (late and _timed(held))


def _answered(held: Held) -> bool:
    return bool(held.output) and held.request.answered_by_first_token


def victims(running: Iterable[Held], *, head: tuple[int, float, int], count: int, now_ns: int) -> list[Held]:
    """Choose up to `count` requests to evict for a head of urgency `head`, least urgent first.

    Only requests that are strictly less urgent by priority or deadline qualify, never pinned ones, and
    among equals the one with the least work to lose goes first. For a head that is late already, nobody
    goes who may yet be in time.
    """
    able = [held for held in running if _gives_way(held, head, now_ns)]
    able.sort(key=lambda held: (-held.urgency[0], -held.urgency[1], held.tokens, held.order))
    return able[:count]
