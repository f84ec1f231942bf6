"""Contract of every engine: generate, abort and resume, capacity and load, sleep and wake.

Each check receives a running engine and leaves it idle. Answers are compared token by token, so the model's
greedy answers must not depend on the rest of the batch: float32 on a CPU, or the emulator.
"""

import asyncio
from dataclasses import replace
from typing import Final

from contract.suites.engine.probe import EngineServer, Running, ask, client, until_load
from qlm.domain.errors import EngineRefusedError
from qlm.domain.formats.token_logprobs import unpack_prompt
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall

_MANY: Final = 120
"""Length of an answer that is still running when a check acts on it."""


async def test_greedy_answers_repeat(server: EngineServer) -> None:
    """The same greedy call gives the same tokens."""
    async with client(server) as engine:
        first, second = [await ask(engine, server.call("repeat")) for _ in range(2)]
        assert first.token_ids == second.token_ids
        other = await ask(engine, server.call("other"))
        assert other.token_ids != first.token_ids, "the answer does not depend on the prompt"


async def test_length(server: EngineServer) -> None:
    """The chunks of an answer add up to max_tokens, and it ends with `length`."""
    async with client(server) as engine:
        for tokens in (1, 2, 33):
            answer = await ask(engine, server.call("length", tokens=tokens))
            assert (len(answer.token_ids), answer.finish) == (tokens, "length")


async def test_a_prompt_is_scored_before_its_answer_begins(server: EngineServer) -> None:
    """Each token of the prompt but the first has a log probability, and the answer is the same."""
    call = server.call("scored", tokens=5)
    async with client(server) as engine:
        plain = await ask(engine, call)
        chunks = [chunk async for chunk in engine.generate(replace(call, prompt_logprobs=2))]
    scored = unpack_prompt(chunks[0].prompt_logprobs, 2)
    assert tuple(id for id, _ in scored) == call.prompt_ids
    assert scored[0][1].sampled is None
    for _, each in scored[1:]:
        assert each.sampled is not None and each.sampled < 0
        # The token itself is among the two, or comes on top of them.
        assert len(each.others) == (1 if each.rank <= 2 else 2)
    assert chunks[-1].cached_tokens == 0
    assert [chunk.prompt_logprobs for chunk in chunks[1:]] == [b""] * (len(chunks) - 1)
    assert tuple(id for chunk in chunks for id in chunk.token_ids) == plain.token_ids


async def test_context_limit(server: EngineServer) -> None:
    """max_tokens beyond the context is reduced to fit."""
    prompt_tokens = server.context_tokens - 7
    call = server.call("context", prompt_tokens=prompt_tokens, tokens=server.context_tokens)
    async with client(server) as engine:
        answer = await ask(engine, call)
        assert (len(answer.token_ids), answer.finish) == (7, "length")


async def test_evicted_then_resumed(server: EngineServer) -> None:
    """An abort leaves an exact prefix of the answer, and prompt plus prefix continue it exactly.

    An abort may come too late; then the answer is complete.
    """
    call = server.call("evict", tokens=_MANY)
    async with client(server) as engine:
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
        assert "abort" in finishes, "every abort came too late"


def _continued(call: EngineCall, token_ids: TokenIds) -> EngineCall:
    left = call.sampling.max_tokens - len(token_ids)
    return replace(
        call, prompt_ids=call.prompt_ids + token_ids, sampling=replace(call.sampling, max_tokens=left)
    )


async def test_resume_at_any_point(server: EngineServer) -> None:
    """A call that continues an answer after any of its tokens gives the rest of it."""
    call = server.call("resume", tokens=50)
    async with client(server) as engine:
        whole = await ask(engine, call)
        for cut in (1, 2, 17, 32, 49):
            rest = await ask(engine, _continued(call, whole.token_ids[:cut]))
            assert rest.token_ids == whole.token_ids[cut:], f"resumed after {cut} tokens"


async def test_resume_hits_the_prefix_cache(server: EngineServer) -> None:
    """A resumed call finds whole blocks of its prompt in the prefix cache, and reports their tokens."""
    call = server.call("cache", prompt_tokens=100, tokens=50)
    async with client(server) as engine:
        block_tokens = (await engine.capacity()).block_tokens
        whole = await ask(engine, call)
        rest = await ask(engine, _continued(call, whole.token_ids[:40]))
        assert rest.cached_tokens is not None
        # The KV of the last token before the cut was never computed.
        assert rest.cached_tokens >= (100 + 40 - 1) // block_tokens * block_tokens - block_tokens
        assert rest.cached_tokens % block_tokens == 0


async def test_abort_while_waiting(server: EngineServer) -> None:
    """The abort of a request that the engine has not started ends its stream without a token."""
    names = [f"full-{i}" for i in range(server.seqs_max)]
    async with client(server) as engine:
        others = [Running(engine, server.endless(name)) for name in names]
        for other in others:
            await other.reached(1)
        queued = Running(engine, server.endless("queued"))
        await until_load(engine, server, lambda load: load.waiting == 1)
        await engine.abort(["queued"])
        answer = await queued.end()
        assert answer.token_ids == ()
        assert answer.finish in ("abort", None)
        await engine.abort(names)
        for other in others:
            await other.end()


async def test_aborts_of_unknown_ids_are_ignored(server: EngineServer) -> None:
    """Aborting ids that do not exist changes nothing for running requests."""
    async with client(server) as engine:
        running = Running(engine, server.call("bystander", tokens=_MANY))
        await running.reached(5)
        await engine.abort(["unknown", "bystande", "generate-tokens-bystander"])
        answer = await running.end()
        assert (len(answer.token_ids), answer.finish) == (_MANY, "length")


async def test_stop_tokens(server: EngineServer) -> None:
    """A stop token ends the answer and is its last token; before min_tokens it is not sampled."""
    call = server.call("stop", tokens=40)
    async with client(server) as engine:
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


async def test_eight_requests_at_once(server: EngineServer) -> None:
    """Requests give the same answers in one batch as alone."""
    calls = [server.call(f"{i}-together", prompt_tokens=20 + 7 * i, tokens=30 + 3 * i) for i in range(8)]
    async with client(server) as engine:
        alone = [(await ask(engine, call)).token_ids for call in calls]
        together = await asyncio.gather(*(ask(engine, call) for call in calls))
        assert [answer.token_ids for answer in together] == alone


async def test_too_long_prompt_is_refused(server: EngineServer) -> None:
    """A prompt that leaves no context for one token is refused, and the engine keeps serving."""
    async with client(server) as engine:
        for prompt_tokens in (server.context_tokens, server.context_tokens + 200):
            try:
                await ask(engine, server.call("long", prompt_tokens=prompt_tokens))
            except EngineRefusedError as error:
                assert "400" in str(error)
            else:
                raise AssertionError(f"a prompt of {prompt_tokens} tokens was accepted")
        assert await engine.healthy()


async def test_capacity_and_load(server: EngineServer) -> None:
    """Capacity equals the settings of the engine; the gauges follow the requests."""
    async with client(server) as engine:
        capacity = await engine.capacity()
        assert (capacity.seqs_max, capacity.context_tokens) == (server.seqs_max, server.context_tokens)
        assert capacity.batched_tokens_max == server.batched_tokens_max
        assert capacity.kv_tokens >= capacity.context_tokens
        assert capacity.kv_tokens % capacity.block_tokens == 0
        await until_load(
            engine, server, lambda load: (load.running, load.waiting, load.kv_usage) == (0, 0, 0)
        )
        names = ["load-0", "load-1"]
        running = [Running(engine, server.endless(name)) for name in names]
        for one in running:
            await one.reached(5)
        load = await until_load(engine, server, lambda load: load.running == 2)
        least = 2 * capacity.blocks(45) / capacity.kv_blocks
        assert least * 0.9 <= load.kv_usage < 1
        await engine.abort(names)
        for one in running:
            await one.end()
        await until_load(engine, server, lambda load: (load.running, load.kv_usage) == (0, 0))


async def test_a_closed_stream_frees_its_batch_slot(server: EngineServer) -> None:
    """A client that closes its connection ends the generation on the engine."""
    async with client(server) as engine:
        streams = [engine.generate(server.endless(f"gone-{i}")) for i in range(server.seqs_max)]
        for stream in streams:
            await anext(stream)
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(3):
            await ask(engine, server.call("next", tokens=3))
            await until_load(engine, server, lambda load: load.running == 0)


async def test_sleep_and_wake(server: EngineServer) -> None:
    """Sleep aborts running requests; new ones wait until the wake-up; answers are the same as before."""
    async with client(server) as engine:
        call = server.call("sleep", tokens=20)
        before = await ask(engine, call)
        for level in (1, 2):
            cut = Running(engine, server.endless("cut"))
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
