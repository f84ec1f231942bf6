"""Log probabilities on their way through an agent: from the engine's stream to the output log."""

from dataclasses import replace

import orjson

from qlm.agents.core.events import Appended, GenerationEnded, Progress
from qlm.agents.engines.vllm_stream import EngineStream, read_logprobs
from qlm.domain.actions import Append
from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.formats.token_logprobs import UNKNOWN, LogprobLog, TokenLogprob, decoded, pack, unpack
from qlm.domain.output import LogEntry
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
