"""Show three errors of the pace by which agents preempt.

`PYTHONPATH=tests python -m benchmarks.motion.preemption_pace`.
The pace is the average seconds per output token and per answer of finished generations (`Pace`).
"""

import sys
from dataclasses import replace

from qlm.agents.core.events import GenerationEnded, Progress
from qlm.agents.core.stats.pace import Pace
from qlm.domain.actions import Abort
from qlm.domain.group import RequestClass
from qlm.domain.request import Request
from qlm.domain.slo import TokenSlo
from support.agent_bench import Bench, M, N, group_of
from support.requests import a_request


def main() -> int:
    """Run the three experiments."""
    first_token_is_judged_by_whole_answers()
    resumed_answers_look_fast()
    pace_outlives_its_model()
    return 0


def first_token_is_judged_by_whole_answers() -> None:
    """A first token is wanted within 10 s, and a batch slot comes free in 0.2 s: no abort is needed."""
    bench = _bench_after(answers=10, tokens=500, each_s=20.0)
    bench.start(a_request("near-its-end", max_tokens=5, arrival_ns=bench.now_ns))
    bench.start(a_request("long", max_tokens=2000, arrival_ns=bench.now_ns))
    bench.queue(group_of(_wants_first_token("urgent", bench.now_ns, ttft_ms=10_000)))
    aborted = [call for action in bench.take(Abort) for call in action.call_ids]
    print(f"1. TTFT of 10 s, a batch slot comes free in 0.2 s: aborted at once: {aborted or 'none'}")


def resumed_answers_look_fast() -> None:
    """An answer of 1000 tokens, resumed after 900, whose last 100 took 4 s: 40 ms per token."""
    pace = Pace().seen(tokens=1000, elapsed_s=4.0)
    print(f"2. a resumed answer at 40 ms per token counts as {pace.token_s * 1000:.0f} ms per token: {pace}")


def pace_outlives_its_model() -> None:
    """The pace of one model decides for the next, of which no generation has finished yet."""
    bench = _bench_after(answers=10, tokens=500, each_s=100.0)
    before = bench.agent.state.stats.pace_of(bench.agent.state.engines.active)
    bench.awake(N)
    after = bench.agent.state.stats.pace_of(bench.agent.state.engines.active)
    print(f"3. after a swap to a new model: {after}, unchanged: {after == before}")


def _bench_after(*, answers: int, tokens: int, each_s: float) -> Bench:
    """Let an agent serve answers one after the other."""
    bench = Bench(seqs_max=2)
    for number in range(answers):
        submitted = bench.start(a_request(f"w{number}", max_tokens=2000, arrival_ns=bench.now_ns))
        bench.later(each_s)
        bench.send(Progress(chunks=((submitted.call.call_id, tuple(range(tokens))),)))
        bench.send(GenerationEnded(call_id=submitted.call.call_id, finish="stop"))
        bench.store_appends()
    return bench


def _wants_first_token(id: str, arrival_ns: int, *, ttft_ms: float) -> Request:
    slo = TokenSlo(ttft_ms=ttft_ms)
    request = a_request(id, arrival_ns=arrival_ns, max_tokens=2000)
    return replace(request, slo=slo, cls=RequestClass(M, slo.label(), target_ms=ttft_ms))


if __name__ == "__main__":
    sys.exit(main())
