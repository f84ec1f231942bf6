from dataclasses import replace

import pytest

from qlm.domain.formats.extensions import RequestExtensions
from qlm.domain.ids import ModelId
from qlm.domain.request import RequestMetadata
from qlm.domain.slo import DeadlineSlo
from qlm.gateway.core.tasks import memory as tasks
from qlm.gateway.core.tasks.memory import TaskCall, TaskKey, TaskMemory, call_again
from support.requests import a_request

MODEL = ModelId("m")
S = 1_000_000_000
DEADLINE_NS = 1_000 * S


def due_s(memory: TaskMemory, id: str, calls: int | None, at_s: float, tenant: str = "t") -> float:
    return arrive(memory, id, calls, at_s, tenant=tenant).urgency.due_s


def arrive(
    memory: TaskMemory,
    id: str,
    calls: int | None,
    at_s: float,
    *,
    tenant: str = "t",
    deadline_s: float = 1_000.0,
) -> TaskCall:
    """Return an admitted call."""
    call = asked(memory, id, calls, at_s, tenant=tenant, deadline_s=deadline_s)
    memory.note_arrival(call, MODEL, round(at_s * S))
    return call


def asked(
    memory: TaskMemory,
    id: str,
    calls: int | None,
    at_s: float,
    *,
    tenant: str = "t",
    deadline_s: float = 1_000.0,
) -> TaskCall:
    """Return a call that is not admitted yet."""
    key, now_ns = TaskKey(tenant, id), round(at_s * S)
    return memory.call(key, MODEL, round(deadline_s * S), calls, now_ns)


def end(memory: TaskMemory, id: str, first_s: float, ended_s: float, tenant: str = "t") -> None:
    memory.ended(a_call(id, tenant), round(first_s * S), round(ended_s * S))


def a_call(id: str, tenant: str = "t") -> RequestMetadata:
    extensions = RequestExtensions(task_id=id, task_calls=2, task_deadline_ns=DEADLINE_NS)
    made = a_request(deadline_ms=5_000).metadata()
    return replace(made, tenant=tenant, cls=replace(made.cls, model=MODEL), extensions=extensions)


def seen(memory: TaskMemory, *, tenant: str = "t") -> None:
    """Show a task of two calls: two seconds of tokens each, and eight seconds between them."""
    due_s(memory, "earlier", 2, 0.0, tenant)
    end(memory, "earlier", 1.0, 3.0, tenant)
    due_s(memory, "earlier", 1, 11.0, tenant)
    end(memory, "earlier", 12.0, 14.0, tenant)


def test_what_earlier_tasks_took_is_left_for_the_calls_to_come() -> None:
    memory = TaskMemory()
    assert due_s(memory, "first", 4, 900.0) == 100.0, "nothing is known yet"
    seen(memory)
    assert due_s(memory, "new", 4, 900.0) == pytest.approx(100.0 - 3 * (2.0 + 8.0))


def test_tasks_of_other_tenants_teach_nothing_and_may_have_the_same_name() -> None:
    memory = TaskMemory()
    seen(memory, tenant="other")
    assert due_s(memory, "new", 4, 900.0) == 100.0
    due_s(memory, "shared", None, 0.0, tenant="other")
    end(memory, "shared", 1.0, 2.0, tenant="other")
    due_s(memory, "shared", None, 900.0)
    assert due_s(memory, "next", 2, 900.0) == 100.0, "the pause was between calls of different tasks"


def test_without_a_number_of_calls_it_is_that_of_earlier_tasks() -> None:
    memory = TaskMemory()
    seen(memory)
    assert due_s(memory, "new", None, 900.0) == pytest.approx(90.0), "earlier ones had two calls"
    assert due_s(memory, "new", None, 900.0) == pytest.approx(100.0), "no earlier one had three"


def test_a_failed_call_teaches_no_time() -> None:
    memory = TaskMemory()
    memory.ended(a_call("failed"), None, 50 * S)
    assert due_s(memory, "new", 4, 900.0) == 100.0


def test_calls_that_are_refused_count_nowhere() -> None:
    memory = TaskMemory()
    for id in ("earlier", "new"):
        asked(memory, id, None, 0.0)
    seen(memory)
    for _ in range(5):
        asked(memory, "earlier", 2, 12.0)
        asked(memory, "new", None, 800.0)
    assert due_s(memory, "new", None, 900.0) == pytest.approx(90.0), "earlier ones had two calls"


def test_a_task_ends_at_its_deadline() -> None:
    memory = TaskMemory()
    for number in range(3):
        begin_s = number * 200.0
        arrive(memory, f"{number}", None, begin_s, deadline_s=begin_s + 100.0)
        end(memory, f"{number}", begin_s + 1.0, begin_s + 3.0)
        arrive(memory, f"{number}", None, begin_s + 11.0, deadline_s=begin_s + 100.0)
    arrive(memory, "forever", None, 0.0)
    arrive(memory, "wakes", None, 800.0)
    assert due_s(memory, "new", None, 900.0) == pytest.approx(90.0), "earlier ones had two calls"


def test_a_name_used_again_after_its_deadline_is_a_new_task() -> None:
    memory = TaskMemory()
    for day in range(3):
        begin_s = day * 86_400.0
        for at_s in (begin_s, begin_s + 10.0):
            arrive(memory, "nightly", None, at_s, deadline_s=begin_s + 600.0)
            end(memory, "nightly", at_s + 1.0, at_s + 3.0)
    at_s = 3 * 86_400.0
    first = arrive(memory, "nightly", None, at_s, deadline_s=at_s + 100.0)
    assert first.urgency.due_s == pytest.approx(100.0 - (2.0 + 7.0)), "one more call follows, after 7 s"


def test_a_longer_deadline_continues_a_task() -> None:
    memory = TaskMemory()
    seen(memory)
    arrive(memory, "new", None, 100.0, deadline_s=200.0)
    arrive(memory, "new", None, 150.0, deadline_s=1_000.0)
    arrive(memory, "wakes", 1, 300.0)
    assert due_s(memory, "new", None, 900.0) == 100.0, "no earlier one had three calls"
    arrive(memory, "wakes", 1, 1_100.0, deadline_s=2_000.0)
    later = asked(memory, "later", None, 1_900.0, deadline_s=2_000.0)
    assert later.urgency.due_s == pytest.approx(100.0 - 1.5 * 10.0), "earlier ones had two calls and three"


def test_a_task_forgotten_before_its_deadline_teaches_no_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASKS_MAX", 2)
    memory = TaskMemory()
    arrive(memory, "earlier", 4, 0.0)
    end(memory, "earlier", 1.0, 3.0)
    arrive(memory, "earlier", 1, 10.0)
    for at_s in (20.0, 30.0):
        arrive(memory, "runs", None, at_s)
    for number in range(9):
        arrive(memory, f"{number}", None, 40.0, tenant="other")
    assert due_s(memory, "new", None, 900.0) == pytest.approx(100.0 - 3 * 2.0), "the earlier one had four"


def test_gateways_that_see_each_second_call_learn_no_pause() -> None:
    memories = (TaskMemory(), TaskMemory())
    for task in range(5):
        for number in range(10):
            at_s, memory = task * 1000.0 + number * 15.0, memories[number % 2]
            arrive(memory, f"{task}", 10 - number, at_s, deadline_s=task * 1000.0 + 900.0)
            end(memory, f"{task}", at_s + 1.0, at_s + 11.0)
    for memory in memories:
        call = asked(memory, "new", 10, 9_000.0, deadline_s=9_200.0)
        assert not call.urgency.hopeless
        assert call.urgency.due_s == pytest.approx(200.0 - 9 * 10.0)


def test_calls_seen_by_other_gateways_count_for_the_length() -> None:
    memory = TaskMemory()
    for calls in (4, 2):
        at_s = 40.0 - 10.0 * calls
        arrive(memory, "earlier", calls, at_s, deadline_s=100.0)
        end(memory, "earlier", at_s + 1.0, at_s + 3.0)
    arrive(memory, "wakes", 4, 200.0)
    assert due_s(memory, "new", None, 900.0) == pytest.approx(100.0 - 3 * 2.0)


def test_further_requests_of_a_call_have_its_urgency() -> None:
    call = call_again(a_call("task"))
    assert call is not None
    assert (call.key, call.calls_left, call.deadline_ns) == (TaskKey("t", "task"), 3, DEADLINE_NS)
    assert (call.urgency.due_s, call.urgency.hopeless) == (5.0, False)
    assert call_again(a_request(deadline_ms=5_000).metadata()) is None


def test_a_request_without_a_task_is_ignored() -> None:
    memory = TaskMemory()
    memory.ended(replace(a_request().metadata(), slo=DeadlineSlo(deadline_ms=1)), S, 9 * S)
    assert due_s(memory, "new", 4, 900.0) == 100.0
