"""Random worlds around an engine model: what happens when, and a driver that lets it happen."""

import random
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from hypothesis import strategies as st

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ports.engine import CallObjective, EngineCall
from qlm.domain.sampling import Sampling
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.batching import BatchingEngine
from qlm.simulator.engine.generation import OpenGeneration, Script, hashed_generation, scripted_generation
from qlm.simulator.engine.host_cache import KvOffloading
from support.iteration_times import iteration_times, timed
from support.token_by_token import TokenByToken

PROFILE = find_profile(builtin_profiles(), "llama-3-8b", "A10")
Engine = BatchingEngine | TokenByToken


@dataclass(frozen=True)
class Event:
    """At a time: add, abort (and resume) a request, or sleep and wake."""

    at_ns: int
    kind: str
    name: str = ""
    prompt: int = 0
    output: int = 0
    max_tokens: int = 0
    family: int = 0
    resume: bool = False


@dataclass
class Seen:
    """A driver's observations: times and tokens of each request, and the engine's state at each event."""

    first_ns: dict[str, int] = field(default_factory=dict)
    end_ns: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)
    finish: dict[str, str] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    states: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class World:
    profile: Profile
    capacity: EngineCapacity
    events: tuple[Event, ...]
    batched: int
    watermark: float
    host_blocks: int
    prefix_ids: bool
    hashed: bool
    async_scheduling: bool
    early: bool

    def engine(self, kind: type[Engine], **options: Any) -> Engine:
        return kind(
            self.profile,
            self.capacity,
            self._start(),
            async_scheduling=self.async_scheduling,
            batched_tokens_max=max(self.batched, self.capacity.seqs_max),
            watermark=self.watermark,
            host_kv_bytes=self.host_blocks * self.profile.kv_bytes_per_token * self.capacity.block_tokens,
            **options,
        )

    def call(self, event: Event, given_out: int = 0) -> EngineCall:
        ids = (event.family,) * (event.prompt + given_out)
        sampling = Sampling(max_tokens=event.max_tokens - given_out)
        return EngineCall(
            call_id=event.name, prompt_ids=ids, sampling=sampling, objective=self._objective(event, given_out)
        )

    def _objective(self, event: Event, given_out: int) -> CallObjective | None:
        """A reader for two in three, fast or slow; only batch policies know it."""
        if event.output % 3 == 0:
            return None
        return CallObjective(
            arrival_ns=event.at_ns, ttft_s=0.05, tokens_per_s=10.0 * (event.output % 7), shown=given_out
        )

    def _start(self) -> OpenGeneration:
        block_tokens, context = self.capacity.block_tokens, self.capacity.context_tokens
        if self.hashed:
            return hashed_generation(block_tokens=block_tokens, context_tokens=context, mean_output_tokens=20)
        wanted = {event.name: event for event in self.events if event.kind == "add"}

        def script(call: EngineCall) -> Script:
            event = wanted[call.call_id]
            given_out = len(call.prompt_ids) - event.prompt
            shared = event.prompt if self.prefix_ids else 0
            return Script(
                output_tokens=event.output - given_out,
                base=event.family << 32,
                prefix_ids=(event.family % 2,) if shared else (),
                prefix_tokens=shared,
            )

        return scripted_generation(script, block_tokens=block_tokens, context_tokens=context)


def drive(engine: Engine, world: World, iterations_max: int, cuts: random.Random | None) -> Seen:
    """Let all happen; what comes in the middle of an iteration takes effect at its end.

    A driver may add requests before it commits the iteration in which they came (`World.early`).
    """
    seen, now_ns, events = Seen(), 0, deque(sorted(world.events, key=lambda event: event.at_ns))
    while True:
        while events and events[0].at_ns <= now_ns:
            apply(engine, world, events.popleft(), seen, now_ns)
        run = engine.plan(now_ns, iterations_max)
        if run is None:
            if not events:
                return seen
            now_ns = events[0].at_ns
            continue
        iterations = run.through(events[0].at_ns) if events else run.iterations
        if cuts is not None and iterations > 1:
            iterations = cuts.randint(1, iterations)
        if not iterations and events and events[0].at_ns < run.end_ns(0):
            now_ns = events[0].at_ns
            continue
        assert run.end_ns(iterations) > now_ns
        now_ns = run.end_ns(iterations)
        while world.early and events and events[0].kind == "add" and events[0].at_ns <= now_ns:
            engine.add(world.call(events.popleft()), now_ns)
        emissions = engine.commit(iterations)
        note(seen, emissions, now_ns)
        if cuts is not None and cuts.random() < 0.3:
            note_chunks(seen, engine, now_ns)


def note(seen: Seen, emissions: tuple[Any, ...], now_ns: int) -> None:
    for emission in emissions:
        name = emission.call_id
        seen.first_ns.setdefault(name, now_ns)
        seen.tokens.setdefault(name, []).extend(emission.token_ids)
        seen.cached.setdefault(name, emission.cached_tokens)
        if emission.finish is not None:
            seen.end_ns[name], seen.finish[name] = now_ns, emission.finish


def note_chunks(seen: Seen, engine: Engine, now_ns: int) -> None:
    """Note tokens in mid-answer; their requests are known, since first tokens are emitted at once."""
    for name, token_ids in engine.collect():
        assert seen.first_ns[name] <= now_ns
        seen.tokens[name].extend(token_ids)


def apply(engine: Engine, world: World, event: Event, seen: Seen, now_ns: int) -> None:
    note_chunks(seen, engine, now_ns)
    match event.kind:
        case "add":
            engine.add(world.call(event), now_ns)
        case "sleep":
            engine.sleep()
        case "wake":
            engine.wake()
        case _ if engine.abort(event.name) and event.resume:
            wanted = next(e for e in world.events if e.kind == "add" and e.name == event.name)
            engine.add(world.call(wanted, len(seen.tokens.get(event.name, ()))), now_ns)
    lengths = {name: len(ids) for name, ids in seen.tokens.items()}
    state = {"now": now_ns, "tokens": lengths, **asdict(engine.counters)}
    seen.states.append(
        state | {"running": engine.running, "waiting": engine.waiting, "usage": engine.kv_usage}
    )


def offloadings() -> st.SearchStrategy[KvOffloading]:
    """Return all rules of copying KV blocks."""
    return st.builds(KvOffloading, writes_through=st.booleans(), overlaps=st.booleans())


@st.composite
def worlds(draw: st.DrawFn) -> World:
    block_tokens = draw(st.sampled_from([1, 3, 4, 16]))
    context = draw(st.integers(20, 90))
    blocks = -(-context // block_tokens)
    capacity = EngineCapacity(
        kv_tokens=block_tokens * draw(st.integers(blocks, 4 * blocks)),
        block_tokens=block_tokens,
        seqs_max=draw(st.integers(1, 6)),
        context_tokens=context,
    )
    profile = timed(
        PROFILE,
        draw(iteration_times(256)),
        host_bandwidth_bytes_per_s=draw(st.sampled_from([1e7, 1e8, 1e9, 1e11])),
    )
    horizon_ns = draw(st.sampled_from([1, 10**9, 10**10]))
    events: list[Event] = []
    prefix_ids = draw(st.booleans())
    for number in range(draw(st.integers(1, 12))):
        at_ns, family = draw(st.integers(0, horizon_ns)), 10 + number
        prompt = draw(st.integers(1, context - 1))
        if draw(st.booleans()):
            family = draw(st.integers(0, 3))
            # A scripted text is one text: the same prompt, if its prefix is shared with others.
            prompt = 1 + (family * 17 + 5) % (context - 1) if prefix_ids else prompt
        event = Event(
            at_ns=at_ns,
            kind="add",
            name=f"r{number}",
            prompt=prompt,
            output=draw(st.integers(1, 80)),
            max_tokens=draw(st.integers(1, 80)),
            family=family,
        )
        events.append(event)
        for _ in range(draw(st.integers(0, 2))):
            later_ns = at_ns + draw(st.integers(0, horizon_ns))
            events.append(Event(later_ns, "abort", event.name, resume=draw(st.booleans())))
    for _ in range(draw(st.integers(0, 2))):
        at_ns = draw(st.integers(0, horizon_ns))
        events += [Event(at_ns, "sleep"), Event(at_ns + draw(st.integers(0, 10**8)), "wake")]
    events.append(Event(max(event.at_ns for event in events) + 1, "wake"))
    return World(
        profile=profile,
        capacity=capacity,
        events=tuple(events),
        batched=draw(st.integers(1, 100)),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.2])),
        host_blocks=draw(st.sampled_from([0, 3, 1000, 1000])),
        prefix_ids=prefix_ids,
        hashed=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        early=draw(st.booleans()),
    )
