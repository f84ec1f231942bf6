"""How many requests run at once: no more than leave each the time per token that its objective allows.

A full batch serves most tokens per second, and each of its requests slowest. A long answer with a deadline
may then be late although it started at once, and a stream slower than it was promised. So the agent measures
how long a token takes, and lets fewer run while that is too long: work without an objective waits, so that
what has one runs faster. What has one may fill the engine all the same, since whoever waits is later still.

Works on the state of `agents.protocol.AgentProtocol`.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from qlm.agents.eviction import may_be_evicted
from qlm.agents.held import Held
from qlm.agents.stopping import park
from qlm.agents.work import WorkMeter
from qlm.domain.actions import Action
from qlm.domain.group import RequestClass
from qlm.domain.slo import DeadlineSlo, ReadingSlo, Slo, TokenSlo

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol

LOOK_NS: Final = 500_000_000
"""The time per token is looked at so often."""

WINDOW_NS: Final = 4_000_000_000
"""What was measured so long ago counts a third of what is measured now."""

PACE_SHARE: Final = 0.85
"""Share of a deadline that a long answer may run; what is left is for its wait, its prompt and what comes."""

LEAST_SHARE: Final = 0.5
"""Of the engine's places at least so many are used: fewer would cost too many tokens per second."""

SLACK: Final = 1 / 16
"""Share of the limit by which a batch may be over it before requests are evicted for that."""

_WEIGHT_MIN: Final = 0.02
"""Weight of the newest answer's length at least: some fifty answers ago counts a third of now."""

_BLEND: Final = 0.5
"""Weight of the newest limit against those before."""


class Lengths:
    """How long the answers of a class are: mean, scatter and the longest; some dozen are remembered."""

    __slots__ = ("_count", "_longest", "_mean", "_var")

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._var = 0.0
        self._longest = 0

    def seen(self, tokens: int) -> None:
        """Take note of an answer that came to its end."""
        self._count += 1
        weight = max(_WEIGHT_MIN, 1 / self._count)
        off = tokens - self._mean
        self._mean += weight * off
        self._var = (1 - weight) * (self._var + weight * off * off)
        self._longest = max(self._longest, tokens)

    @property
    def long_tokens(self) -> float:
        """Output tokens of a long answer: the mean and a standard deviation, at most the longest seen."""
        return min(self._longest, self._mean + math.sqrt(self._var))


class Window:
    """What the engine did lately: sums of which the older part fades.

    Tokens may come to the agent many at a time, so that a moment tells nothing.

    Attributes:
        elapsed_ns: Time that counts.
        ran_ns: Time that requests ran in it, summed over requests.
        tokens: Output tokens that came in it.
    """

    def __init__(self, work: WorkMeter, now_ns: int) -> None:
        self.elapsed_ns = self.ran_ns = self.tokens = 0.0
        self._since = (now_ns, work.request_ns, work.output_tokens)

    def add(self, work: WorkMeter, now_ns: int) -> None:
        """Count what has come since the last call."""
        since_ns, request_ns, tokens = self._since
        self._since = (now_ns, work.request_ns, work.output_tokens)
        passed_ns = max(0, now_ns - since_ns)
        left = math.exp(-passed_ns / WINDOW_NS)
        self.elapsed_ns = left * self.elapsed_ns + passed_ns
        self.ran_ns = left * self.ran_ns + work.request_ns - request_ns
        self.tokens = left * self.tokens + work.output_tokens - tokens

    @property
    def ran(self) -> float:
        """Requests that ran at once, on average."""
        return self.ran_ns / self.elapsed_ns

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests per second."""
        return self.tokens / (self.elapsed_ns / 1e9)


class BatchLimit:
    """What one agent knows of the time that tokens take; `limit_batch` acts on it.

    Attributes:
        look_ns: When the limit is looked at next.
    """

    def __init__(self) -> None:
        self.look_ns = 0
        self._lengths: dict[RequestClass, Lengths] = {}
        self._window = Window(WorkMeter(), 0)
        self._limit: float | None = None

    def ended(self, held: Held) -> None:
        """Take note of an answer that came to its end."""
        if isinstance(held.request.slo, DeadlineSlo):
            cls = held.request.cls
            cls = replace(cls, late=False) if cls.late else cls
            self._lengths.setdefault(cls, Lengths()).seen(len(held.output))

    def awake(self, now_ns: int) -> None:
        """Forget what was measured: another engine is awake."""
        self._limit, self._window = None, Window(WorkMeter(), now_ns)

    def wanted_s(self, running: Iterable[Held]) -> float | None:
        """Seconds per token that the most demanding of the running requests needs; None if none does."""
        objectives = {held.request.cls: held.request.slo for held in running if not held.request.cls.late}
        needs = (self._needs_s(cls, slo) for cls, slo in objectives.items())
        return min((need for need in needs if need is not None), default=None)

    def _needs_s(self, cls: RequestClass, slo: Slo) -> float | None:
        match slo:
            case DeadlineSlo():
                tokens = self._lengths[cls].long_tokens if cls in self._lengths else 0
                due_ms = cls.due_ms or slo.deadline_ms
                return PACE_SHARE * due_ms / 1000 / tokens if tokens else None
            case TokenSlo(tpot_ms=tpot_ms):
                return None if tpot_ms is None else tpot_ms / 1000
            case ReadingSlo(tokens_per_s=speed):
                return 1 / speed
            case _:
                return None

    def measured(self, work: WorkMeter, wanted_s: float | None, seqs_max: int, now_ns: int) -> int:
        """Return how many may run, by what the engine did since the last look.

        Args:
            work: What it has done since it woke.
            wanted_s: Seconds per token that are needed; None if nobody needs any pace.
            seqs_max: Places in the engine's batch.
            now_ns: When.
        """
        self._window.add(work, now_ns)
        if wanted_s is None:
            self._limit = None
            return seqs_max
        before = float(seqs_max) if self._limit is None else self._limit
        if self._window.tokens > 0 and self._window.elapsed_ns > 0:
            before = _next_limit(before, ran=self._window.ran, right=wanted_s * self._window.tokens_per_s)
        self._limit = min(seqs_max, max(LEAST_SHARE * seqs_max, 1.0, before))
        return round(self._limit)


def _next_limit(before: float, *, ran: float, right: float) -> float:
    """Blend in what would have been right.

    Args:
        before: The limit until now.
        ran: Requests that ran, on average.
        right: Tokens per second times seconds per token wanted: with so many the pace would have been right,
            if tokens per second were the same.
    """
    if right >= ran:
        # Fast enough: a batch that was not full says nothing against a larger one.
        return max(before, before + _BLEND * (right - before))
    return min(before, ran) + _BLEND * (right - min(before, ran))


def limit_batch(agent: "AgentProtocol", now_ns: int) -> list[Action]:
    """Look at the time per token now and then; evict what has no objective if it is too long."""
    limit, hands = agent.batch_limit, agent.hands
    if not agent.settings.limits_batch or agent.capacity is None:
        return []
    if now_ns < limit.look_ns:
        if hands.kv.lax_limit < agent.capacity.seqs_max:
            agent.alarm.want(limit.look_ns)
        return []
    limit.look_ns = now_ns + LOOK_NS
    wanted_s = limit.wanted_s(hands.running.values())
    agent.work.observe(hands.kv.in_batch, now_ns)
    most = limit.measured(agent.work, wanted_s, agent.capacity.seqs_max, now_ns)
    hands.kv.lax_limit = most
    if wanted_s is None:
        return []
    agent.alarm.want(limit.look_ns)
    surplus = len(hands.running) - most
    if surplus <= SLACK * most:
        return []
    able = [held for held in hands.running.values() if held.lax and may_be_evicted(held)]
    able.sort(key=lambda held: (-held.urgency[0], held.tokens, held.order))
    return [act for held in able[:surplus] for act in park(agent, held, "for the pace of others", now_ns)]
