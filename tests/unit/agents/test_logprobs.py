"""Log probabilities on their way through an agent: from the engine's stream to the output log."""

from dataclasses import replace

import orjson
import pytest

from qlm.agents.core.events import Appended, GenerationEnded, Progress
from qlm.agents.engines.vllm.prompt import read_prompt
from qlm.agents.engines.vllm.stream import EngineStream, read_logprobs
from qlm.domain.actions import Append, RestoreRequest, Return
from qlm.domain.errors import EngineGarbledError, InvalidValueError
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.formats.token_logprobs import (
    UNKNOWN,
    LogprobLog,
    TokenLogprob,
    check_prompt,
    decoded,
    pack,
    pack_prompt,
    prompt_bytes_per_token,
    unpack,
    unpack_prompt,
)
from qlm.domain.notices import DrainAsked
from qlm.domain.output import AppendResult, LogEntry
from qlm.simulator.emulation.vllm_logprobs import generate_logprobs
from support.agent_bench import Bench
from support.requests import a_request

TOP = 3
TOKENS = [TokenLogprob(-0.5 * n, n, ((n, -1.5), (n + 1, -2.5))) for n in range(1, 7)]
SCORED = replace(a_request(max_tokens=6), extensions=RequestExtensions(logprobs=TOP))


def logged(entries: list[LogEntry]) -> list[TokenLogprob]:
    """Put together what a gateway would read."""
    log = LogprobLog(TOP)
    for entry in entries:
        for piece in entry.extensions.logprobs_at:
            log.put(*decoded(piece))
    return list(log.tokens(0, log.end))


def generate(bench: Bench, call_id: str, start: int, end: int) -> None:
    packed = pack(TOKENS[start:end], TOP)
    bench.send(Progress(chunks=((call_id, tuple(range(start, end))),), logprobs=((call_id, packed),)))


def entries(bench: Bench) -> list[LogEntry]:
    found = [entry for action in bench.actions if isinstance(action, Append) for entry in action.entries]
    bench.store_appends()
    return found


def test_packing_keeps_what_single_precision_keeps() -> None:
    for top in (0, 1, 2, 3):
        kept = [token._replace(others=token.others[: max(0, top - 1)]) for token in TOKENS]
        assert list(unpack(pack(TOKENS, top), top)) == kept
    assert list(unpack(pack([UNKNOWN, TOKENS[0]], TOP), TOP)) == [UNKNOWN, TOKENS[0]]


def test_each_entry_has_the_log_probabilities_of_its_tokens() -> None:
    bench = Bench()
    call = bench.start(SCORED).call
    assert call.logprobs == TOP
    written = list[LogEntry]()
    for start, end in ((0, 1), (1, 4), (4, 6)):
        generate(bench, call.call_id, start, end)
        bench.later(0.05)
        written += entries(bench)
    bench.send(GenerationEnded(call_id=call.call_id, finish="length"))
    written += entries(bench)
    assert logged(written) == TOKENS
    assert [len(each.extensions.logprobs_at) for each in written if each.token_ids] == [1, 1, 1]


def test_a_write_that_failed_is_written_again_with_its_log_probabilities() -> None:
    bench = Bench()
    call = bench.start(SCORED).call
    generate(bench, call.call_id, 0, 2)
    (lost,) = bench.take(Append)
    bench.send(Appended(entries=lost.entries, results=None))
    generate(bench, call.call_id, 2, 3)
    bench.later(1.0)
    written = entries(bench)
    assert logged(written) == TOKENS[:3]


def test_a_plain_request_has_none() -> None:
    bench = Bench()
    call = bench.start(a_request()).call
    bench.send(Progress(chunks=((call.call_id, (1, 2)),)))
    assert call.logprobs is None
    assert [each.extensions.logprobs_at for each in entries(bench)] == [()]


def test_an_engine_that_does_not_report_them_leaves_them_unknown() -> None:
    choice = {"token_ids": [1, 2], "logprobs": None}
    assert unpack(read_logprobs(choice, TOP), TOP) == (UNKNOWN, UNKNOWN)


def test_the_stream_of_an_engine_has_them_beside_its_tokens() -> None:
    emulated = generate_logprobs((7,), [1, 2], TOP)
    event = {"choices": [{"token_ids": [1, 2], "finish_reason": None, "logprobs": emulated}]}
    stream = EngineStream(TOP)
    chunk = stream.feed(b"data: " + orjson.dumps(event) + b"\n\n")
    assert chunk is not None
    first, second = unpack(chunk.logprobs, TOP)
    assert (first.rank, len(first.others), second.sampled) == (1, TOP - 1, first.sampled)


PROMPT = pack_prompt((1, 2, 3), [UNKNOWN, TOKENS[0], TOKENS[1]], 1)
OF_PROMPT = replace(
    a_request(max_tokens=6),
    prompt_ids=(1, 2, 3),
    prompt_tokens=3,
    extensions=RequestExtensions(prompt_logprobs=1),
)


def prompts(written: list[LogEntry]) -> list[tuple[int, bytes]]:
    return [decoded(piece) for entry in written for piece in entry.extensions.logprobs_at if piece[0] < 0]


def test_packing_a_prompt_keeps_its_tokens() -> None:
    one = TOKENS[0]._replace(others=TOKENS[0].others[:1])
    for top, known in ((0, one._replace(others=())), (1, one), (2, TOKENS[0])):
        packed = pack_prompt((8, 9), [UNKNOWN, TOKENS[0]], top)
        assert unpack_prompt(packed, top) == ((8, UNKNOWN), (9, known))
        assert len(packed) == 2 * prompt_bytes_per_token(top)
    for garbled in (pack([UNKNOWN], 2), packed[:-1]):
        with pytest.raises(InvalidValueError):
            check_prompt(garbled, 0)
        with pytest.raises(InvalidValueError):
            unpack_prompt(garbled, 0)


def test_those_of_a_prompt_are_logged_with_the_first_tokens_once() -> None:
    bench = Bench()
    call = bench.start(OF_PROMPT).call
    assert (call.logprobs, call.prompt_logprobs) == (None, 1)
    bench.send(Progress(chunks=(), prompt_logprobs=((call.call_id, PROMPT),)))
    written = entries(bench)
    for at in range(3):
        bench.send(Progress(chunks=((call.call_id, (at,)),)))
        bench.later(0.05)
        written += entries(bench)
    bench.send(GenerationEnded(call_id=call.call_id, finish="length"))
    written += entries(bench)
    assert prompts(written) == [(-3, PROMPT)]
    first = next(entry for entry in written if entry.token_ids)
    assert prompts([first]) == [(-3, PROMPT)]


def test_those_of_a_prompt_are_written_again_with_the_tokens_of_a_write_that_failed() -> None:
    bench = Bench()
    call = bench.start(OF_PROMPT).call
    bench.send(Progress(chunks=((call.call_id, (7,)),), prompt_logprobs=((call.call_id, PROMPT),)))
    (lost,) = bench.take(Append)
    assert prompts(list(lost.entries)) == [(-3, PROMPT)]
    bench.send(Appended(entries=lost.entries, results=None))
    bench.later(1.0)
    assert prompts(entries(bench)) == [(-3, PROMPT)]


def test_an_engine_is_asked_again_unless_they_came() -> None:
    for came in (False, True):
        bench = Bench()
        submit = bench.start(OF_PROMPT)
        call = submit.call
        if came:
            bench.send(Progress(chunks=(), prompt_logprobs=((call.call_id, PROMPT),)))
        tracked = bench.agent.state.requests.all[OF_PROMPT.id]
        assert tracked.next_call(for_policy=False).prompt_logprobs == (None if came else 1)
        tracked.output.append(7)
        assert tracked.next_call(for_policy=False).prompt_logprobs is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"choices":[]}',
        b'{"choices":[{"finish_reason":"length"}],"prompt_logprobs":[null]}',
        b'{"choices":[{"finish_reason":"length"}],"prompt_logprobs":[null,{"3":{"logprob":-1,"rank":1}}]}',
        b'{"choices":[{"finish_reason":"length"}],"prompt_logprobs":[null,{"2":{"logprob":"x","rank":1}}]}',
    ],
)
def test_a_scored_prompt_that_cannot_be_read_is_an_error_of_the_engine(answer: bytes) -> None:
    with pytest.raises(EngineGarbledError):
        read_prompt(answer, (1, 2), 1)


def test_of_a_prompt_aborted_or_not_scored_nothing_is_known() -> None:
    assert read_prompt(b'{"choices":[{"finish_reason":"abort"}],"prompt_logprobs":null}', (1, 2), 1) is None
    packed = read_prompt(b'{"choices":[{"finish_reason":"length"}],"prompt_logprobs":null}', (1, 2), 1)
    assert packed is not None
    assert unpack_prompt(packed, 1) == ((1, UNKNOWN), (2, UNKNOWN))


@pytest.mark.parametrize("end", ["engine lost", "drained"])
def test_a_log_that_the_store_has_lost_gets_them_again_before_the_request_leaves(end: str) -> None:
    bench, request = (
        Bench(),
        replace(OF_PROMPT, extensions=RequestExtensions(prompt_logprobs=1, logprobs=TOP)),
    )
    call_id = bench.start(request).call.call_id
    bench.send(Progress(chunks=(), prompt_logprobs=((call_id, PROMPT),)))
    generate(bench, call_id, 0, 2)
    (append,) = bench.take(Append)
    bench.send(Appended(entries=append.entries, results=(AppendResult.UNKNOWN,)))
    assert bench.take(RestoreRequest)
    bench.log[request.id] = [0, 1]
    bench.answer(request, bench.granted((0, 1)))
    if end == "drained":
        bench.send(DrainAsked())
        bench.send(GenerationEnded(call_id=call_id, finish="abort"))
    else:
        bench.send(GenerationEnded(call_id=call_id, finish="lost"))
    written = entries(bench)
    assert prompts(written) == [(-3, PROMPT)]
    assert logged([replace_pieces(entry) for entry in written]) == TOKENS[:2]
    assert bench.take(Return)


def replace_pieces(entry: LogEntry) -> LogEntry:
    """Leave out those of the prompt."""
    pieces = tuple(piece for piece in entry.extensions.logprobs_at if piece[0] >= 0)
    return replace(entry, extensions=replace(entry.extensions, logprobs_at=pieces))
