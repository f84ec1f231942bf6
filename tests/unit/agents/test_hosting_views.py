"""What a batch policy that an agent hosts sees: places, readers, lengths of answers."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.agents.core.events import GenerationEnded
from qlm.agents.core.request import Phase
from qlm.domain.request import Request
from qlm.domain.slo import ReadingSlo
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline
from support.agent_bench import Bench
from support.hosting_bench import HostingBench, due, full
from support.requests import a_request


def test_a_view_has_the_requests_in_both_places_and_a_preempted_one_all_the_time() -> None:
    bench = full()
    bench.arrive(due("urgent", 20, bench))
    view = bench.policy.views[-1]
    assert view.ids == ("late", "soon", "urgent")
    assert view.inside.tolist() == [True, True, False]
    assert view.generated.tolist() == [3, 3, 0]
    assert view.prompt.tolist() == [4, 4, 4]
    assert view.blocks.tolist() == [1, 1, 0]
    np.testing.assert_allclose(view.deadline_s - view.now_s, [600, 300, 20], atol=1)
    assert (view.machine.kv_blocks, view.machine.seqs_max) == (253, 2)
    bench.arrive(due("fourth", 25, bench))
    assert bench.policy.views[-1].inside.tolist() == [True, True, False, False], "it still stops"
    bench.send(GenerationEnded(call_id=bench.calls["late"].call.call_id, finish="abort"))
    assert bench.phase("late") is Phase.CLOSING
    bench.arrive(due("fifth", 800, bench))
    view = bench.policy.views[-1]
    assert dict(zip(view.ids, view.inside.tolist(), strict=True)) == {
        "soon": True, "urgent": True, "fourth": False, "fifth": False, "late": False,
    }  # fmt: skip
    assert view.preemptions[view.ids.index("late")] == 1


def reader(id: str, bench: Bench) -> Request:
    request = a_request(id, arrival_ns=bench.now_ns, max_tokens=1000)
    slo = ReadingSlo(ttft_ms=1000.0, tokens_per_s=4.0)
    cls = replace(request.cls, slo=slo.label(), target_ms=1000.0)
    return replace(request, slo=slo, cls=cls)


def test_readers_advance_by_the_times_at_which_tokens_come() -> None:
    bench = full()
    arrival_ns = bench.now_ns
    bench.arrive(reader("reader", bench))
    assert bench.aborted() == ["late"]
    assert bench.ends("late", "abort") == ["reader"]
    timeline = Timeline(Reader(1.0, 4.0))
    for tokens in (1, 1, 5, 2):
        bench.later(0.7)
        bench.tokens("reader", *range(tokens))
        timeline.deliver(tokens, (bench.now_ns - arrival_ns) / 1e9)
    bench.arrive(due("other", 500, bench))
    view = bench.policy.views[-1]
    row = view.ids.index("reader")
    assert (view.rate[row], view.ttft_s[row], view.generated[row]) == (4.0, 1.0, 9)
    assert timeline.late_s > 0
    assert view.late_s[row] == pytest.approx(timeline.late_s)
    assert view.late_sum_s[row] == pytest.approx(timeline.late_sum_s)
    assert view.read_end_s[row] - view.arrival_s[row] == pytest.approx(timeline.read_end_s)


def test_it_learns_the_lengths_of_answers_and_never_expects_more_than_the_limit() -> None:
    bench = HostingBench("edf", seqs_max=1)
    for n in range(40):
        bench.arrive(a_request(f"r{n}", max_tokens=1000))
        bench.tokens(f"r{n}", *range(20))
        bench.ends(f"r{n}")
    bench.arrive(a_request("runs", max_tokens=1000))
    bench.arrive(a_request("short", max_tokens=5))
    view = bench.policy.views[-1]
    assert view.pace.answer_mean == pytest.approx((40 * 20 + 8 * 200) / 48)
    row = view.ids.index("short")
    assert (view.left_mean[row], view.left_max[row]) == (5, 5)
