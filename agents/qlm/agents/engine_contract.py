"""What QLM relies on of an engine: checks that run on vLLM and on its emulation alike.

Each check is given a running engine and leaves it idle. Answers are compared token by token, so the model
must be one whose greedy answers do not depend on the rest of the batch: float32 on a CPU, or the emulator.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from qlm.agents.engine_probe import EngineFacts, Running, ask, client, until_load
from qlm.domain.errors import EngineRefusedError, EngineUnavailableError
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall

_MANY: Final = 120
"""Tokens of an answer that is still running when a test has something to do to it."""


async def check_greedy_answers_repeat(facts: EngineFacts) -> None:
    """The same greedy call gives the same tokens."""
    async with client(facts) as engine:
        first, second = [await ask(engine, facts.call("repeat")) for _ in range(2)]
        assert first.token_ids == second.token_ids
        other = await ask(engine, facts.call("other"))
        assert other.token_ids != first.token_ids, "the answer does not depend on the prompt"


async def check_length(facts: EngineFacts) -> None:
    """The chunks of an answer add up to max_tokens, and it ends with `length`."""
    async with client(facts) as engine:
        for tokens in (1, 2, 33):
            answer = await ask(engine, facts.call("length", tokens=tokens))
            assert (len(answer.token_ids), answer.finish) == (tokens, "length")


async def check_context_limit(facts: EngineFacts) -> None:
    """max_tokens beyond the context is cut down to it."""
    prompt_tokens = facts.context_tokens - 7
    call = facts.call("context", prompt_tokens=prompt_tokens, tokens=facts.context_tokens)
    async with client(facts) as engine:
        answer = await ask(engine, call)
        assert (len(answer.token_ids), answer.finish) == (7, "length")


async def check_evicted_then_resumed(facts: EngineFacts) -> None:
    """An abort leaves an exact beginning of the answer, and prompt plus beginning continue it exactly.

    The abort may come too late; then the answer is complete.
    """
    call = facts.call("evict", tokens=_MANY)
    async with client(facts) as engine:
        whole = await ask(engine, call)
        finishes = []
        for tokens in (1, 20, 40):
            running = Running(engine, call)
            await running.reached(tokens)
            await engine.abort([call.call_id])
            part = await running.end()
            finishes.append(part.finish)
            assert part.token_ids == whole.token_ids[: len(part.token_ids)]
            if part.finish != "abort":
                assert (part.token_ids, part.finish) == (whole.token_ids, "length")
                continue
            rest = await ask(engine, _continued(call, part.token_ids))
            assert part.token_ids + rest.token_ids == whole.token_ids
        assert "abort" in finishes, "no abort was in time"


def _continued(call: EngineCall, token_ids: TokenIds) -> EngineCall:
    left = call.sampling.max_tokens - len(token_ids)
    return replace(
        call, prompt_ids=call.prompt_ids + token_ids, sampling=replace(call.sampling, max_tokens=left)
    )


async def check_resume_at_any_point(facts: EngineFacts) -> None:
    """A call that continues an answer after any of its tokens gives the rest of it."""
    call = facts.call("resume", tokens=50)
    async with client(facts) as engine:
        whole = await ask(engine, call)
        for cut in (1, 2, 17, 32, 49):
            rest = await ask(engine, _continued(call, whole.token_ids[:cut]))
            assert rest.token_ids == whole.token_ids[cut:], f"resumed after {cut} tokens"


async def check_resume_hits_the_prefix_cache(facts: EngineFacts) -> None:
    """A resumed call finds whole blocks of its prompt, and says how many tokens those were."""
    call = facts.call("cache", prompt_tokens=100, tokens=50)
    async with client(facts) as engine:
        block_tokens = (await engine.capacity()).block_tokens
        whole = await ask(engine, call)
        rest = await ask(engine, _continued(call, whole.token_ids[:40]))
        assert rest.cached_tokens is not None
        # the very last token of the first leg was never computed
        assert rest.cached_tokens >= (100 + 40 - 1) // block_tokens * block_tokens - block_tokens
        assert rest.cached_tokens % block_tokens == 0


async def check_abort_while_waiting(facts: EngineFacts) -> None:
    """The abort of a request that the engine has not begun ends its stream without a token."""
    names = [f"full-{i}" for i in range(facts.seqs_max)]
    async with client(facts) as engine:
        others = [Running(engine, facts.endless(name)) for name in names]
        for other in others:
            await other.reached(1)
        queued = Running(engine, facts.endless("queued"))
        await until_load(engine, facts, lambda load: load.waiting == 1)
        await engine.abort(["queued"])
        answer = await queued.end()
        assert answer.token_ids == ()
        assert answer.finish in ("abort", None)
        await engine.abort(names)
        for other in others:
            await other.end()


async def check_unknown_abort_is_ignored(facts: EngineFacts) -> None:
    """Aborting ids that do not exist disturbs nobody."""
    async with client(facts) as engine:
        running = Running(engine, facts.call("bystander", tokens=_MANY))
        await running.reached(5)
        await engine.abort(["nobody", "bystande", "generate-tokens-bystander"])
        answer = await running.end()
        assert (len(answer.token_ids), answer.finish) == (_MANY, "length")


async def check_stop_tokens(facts: EngineFacts) -> None:
    """A stop token ends the answer and is its last token; before min_tokens it is not drawn at all."""
    call = facts.call("stop", tokens=40)
    async with client(facts) as engine:
        whole = (await ask(engine, call)).token_ids
        stop = whole[10]
        first = whole.index(stop)
        stopping = replace(call, sampling=replace(call.sampling, stop_token_ids=(stop,)))
        answer = await ask(engine, stopping)
        assert (answer.token_ids, answer.finish) == (whole[: first + 1], "stop")
        later = replace(stopping, sampling=replace(stopping.sampling, min_tokens=30))
        answer = await ask(engine, later)
        assert stop not in answer.token_ids[:30]
        assert answer.token_ids[:first] == whole[:first]


async def check_eight_at_once(facts: EngineFacts) -> None:
    """Answers computed together are those computed alone."""
    calls = [facts.call(f"{i}-together", prompt_tokens=20 + 7 * i, tokens=30 + 3 * i) for i in range(8)]
    async with client(facts) as engine:
        alone = [(await ask(engine, call)).token_ids for call in calls]
        together = await asyncio.gather(*(ask(engine, call) for call in calls))
        assert [answer.token_ids for answer in together] == alone


async def check_too_long_prompt_is_refused(facts: EngineFacts) -> None:
    """A prompt without room for one token is refused for good, and the engine lives on."""
    async with client(facts) as engine:
        for prompt_tokens in (facts.context_tokens, facts.context_tokens + 200):
            try:
                await ask(engine, facts.call("long", prompt_tokens=prompt_tokens))
            except EngineRefusedError as error:
                assert "400" in str(error)
            else:
                raise AssertionError(f"a prompt of {prompt_tokens} tokens was taken")
        assert await engine.healthy()


async def check_capacity_and_load(facts: EngineFacts) -> None:
    """Capacity is what the engine was started with; the gauges follow the requests."""
    async with client(facts) as engine:
        capacity = await engine.capacity()
        assert (capacity.seqs_max, capacity.context_tokens) == (facts.seqs_max, facts.context_tokens)
        assert capacity.kv_tokens >= capacity.context_tokens
        assert capacity.kv_tokens % capacity.block_tokens == 0
        await until_load(engine, facts, lambda load: (load.running, load.waiting, load.kv_usage) == (0, 0, 0))
        names = ["load-0", "load-1"]
        running = [Running(engine, facts.endless(name)) for name in names]
        for one in running:
            await one.reached(5)
        load = await until_load(engine, facts, lambda load: load.running == 2)
        least = 2 * capacity.blocks(45) / capacity.kv_blocks
        assert least * 0.9 <= load.kv_usage < 1
        await engine.abort(names)
        for one in running:
            await one.end()
        await until_load(engine, facts, lambda load: (load.running, load.kv_usage) == (0, 0))


async def check_closed_stream_frees_its_place(facts: EngineFacts) -> None:
    """An engine whose client goes away without a word stops computing for it."""
    async with client(facts) as engine:
        streams = [engine.generate(facts.endless(f"gone-{i}")) for i in range(facts.seqs_max)]
        for stream in streams:
            await anext(stream)
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(3):
            await ask(engine, facts.call("next", tokens=3))
            await until_load(engine, facts, lambda load: load.running == 0)


async def check_sleep_and_wake(facts: EngineFacts) -> None:
    """Sleeping ends what runs; what comes meanwhile waits; awake again, answers are the same as before."""
    async with client(facts) as engine:
        call = facts.call("sleep", tokens=20)
        before = await ask(engine, call)
        for level in (1, 2):
            cut = Running(engine, facts.endless("cut"))
            await cut.reached(3)
            await engine.sleep(level)
            assert (await cut.end()).finish == "abort"
            assert await engine.healthy()
            early = Running(engine, call)
            done, _pending = await asyncio.wait([early.task], timeout=0.3)
            assert not done, "a sleeping engine answered"
            await engine.wake()
            assert (await early.end()).token_ids == before.token_ids
            assert (await ask(engine, call)).token_ids == before.token_ids


CHECKS: Final[tuple[Callable[[EngineFacts], Awaitable[None]], ...]] = (
    check_greedy_answers_repeat,
    check_length,
    check_context_limit,
    check_evicted_then_resumed,
    check_resume_at_any_point,
    check_resume_hits_the_prefix_cache,
    check_abort_while_waiting,
    check_unknown_abort_is_ignored,
    check_stop_tokens,
    check_eight_at_once,
    check_too_long_prompt_is_refused,
    check_capacity_and_load,
    check_closed_stream_frees_its_place,
    check_sleep_and_wake,
)
"""All checks that leave the engine alive."""


async def check_death_is_told(facts: EngineFacts, kill: Callable[[], None]) -> None:
    """An engine that dies breaks its streams with an error, and cannot be reached afterwards.

    Args:
        facts: The engine, which does not survive this.
        kill: Kills it.
    """
    async with client(facts) as engine:
        running = Running(engine, facts.endless("dying"))
        await running.reached(3)
        kill()
        for awaitable in (running.end(), ask(engine, facts.call("late")), engine.load(), engine.capacity()):
            try:
                await awaitable
            except EngineUnavailableError:
                continue
            raise AssertionError("the death of the engine went unnoticed")
        assert not await engine.healthy()
