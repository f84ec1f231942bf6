"""The prefill backlog that an agent lets its engine have."""

from dataclasses import replace

import pytest

from qlm.agents.core.costs.engine_speed import NO_SPEED, EngineSpeed
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.events import GenerationEnded, Progress, Pulled, QueueRead
from qlm.agents.core.state import AgentSettings
from qlm.domain.actions import AcquireLease, Pull, PulledMessage, Submit
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, RequestId, TokenIds
from qlm.domain.request import Request
from qlm.domain.urgency import SLACK_OF_S, SLACK_SHARE
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from support.agent_bench import HOLDER, Bench, M, delivery_of, group_of
from support.requests import a_request

TOKEN_S = 0.001
SPEED = EngineSpeed(batched_tokens_max=500, token_s=TOKEN_S)
BULK_TOKENS = 400
SLOTS = 64


def bench(*, objective_s: float | None, rate_rps: float = 1.0, speed: EngineSpeed = SPEED) -> Bench:
    """Return an agent with an engine of 1 000 prompt tokens per second, and an objective that is expected."""
    settings = AgentSettings(pull_max=SLOTS, visits=True)
    made = Bench(
        seqs_max=SLOTS, kv_tokens=1_000_000, settings=settings, costs=OperationCosts(speed={M: speed})
    )
    forecasts = (forecast(objective_s, rate_rps),) if objective_s is not None else ()
    made.send(QueueRead(queue=VirtualQueue(instance=HOLDER.instance, forecasts=forecasts)))
    return made


def forecast(objective_s: float, rate_rps: float) -> ClassForecast:
    cls = RequestClass(M, "deadline", target_ms=1e3 * objective_s)
    return ClassForecast(cls=cls, service_s=0.1, answer_s=1.0, rate_rps=rate_rps)


def offer(made: Bench, first: Request, objective_s: float | None, rate_rps: float = 1.0) -> None:
    """Queue many requests like one."""
    forecasts = (forecast(objective_s, rate_rps),) if objective_s is not None else ()
    groups = (group_of(first, name=first.id, count=SLOTS),)
    made.send(QueueRead(queue=VirtualQueue(instance=HOLDER.instance, groups=groups, forecasts=forecasts)))


def served(made: Bench, first: Request, output: TokenIds = ()) -> list[Submit]:
    """Serve what the agent pulls of a group like a request until it wants no more; return what it starts.

    Args:
        made: The agent.
        first: The request.
        output: Tokens that another agent has logged of each.
    """
    submits: list[Submit] = []
    pulls = made.take(Pull)
    while pulls:
        pull = pulls.pop(0)
        number = len(made.log)
        requests = [replace(first, id=RequestId(f"{first.id}-{number + each}")) for each in range(pull.limit)]
        messages = tuple(PulledMessage(delivery=delivery_of(each), request=each) for each in requests)
        made.send(Pulled(group=GroupId(first.id), limit=pull.limit, messages=messages))
        made.take(AcquireLease)
        for each in requests:
            made.log[each.id] = list(output)
            made.answer(each, made.granted(output))
        submits += made.take(Submit)
        pulls += made.take(Pull)
    return submits


def bulk(made: Bench) -> Request:
    return a_request("bulk", prompt_tokens=BULK_TOKENS, max_tokens=100, arrival_ns=made.now_ns)


@pytest.mark.parametrize(
    ("objective_s", "prompts"),
    [(None, SLOTS), (20.0, 12), (8.0, 5), (2.0, 2), (0.1, 2)],
)
def test_an_engine_is_given_the_prompts_that_the_tightest_objective_leaves_time_for(
    objective_s: float | None, prompts: int
) -> None:
    """A quarter of the slack, or two full iterations; as many as it takes where none is expected."""
    made = bench(objective_s=objective_s)
    offer(made, bulk(made), objective_s)
    assert len(served(made, bulk(made))) == prompts
    if objective_s is not None:
        most_s = max(SLACK_SHARE * objective_s, 2 * SPEED.batched_tokens_max * TOKEN_S)
        assert prompts == int(most_s / (BULK_TOKENS * TOKEN_S))


def test_a_first_token_makes_room_for_the_next_prompt_and_so_does_an_end_without_one() -> None:
    made = bench(objective_s=2.0)
    offer(made, bulk(made), 2.0)
    first, second = served(made, bulk(made))
    made.send(Progress(chunks=((first.call.call_id, (1,)),)))
    assert len(served(made, bulk(made))) == 1
    made.send(Progress(chunks=((first.call.call_id, (2, 3)),)))
    assert not made.take(Pull), "its prompt was counted before"
    made.send(GenerationEnded(call_id=second.call.call_id, finish="stop"))
    assert len(served(made, bulk(made))) == 1


def test_what_is_urgent_goes_before_bulk_prompts_that_wait_for_room() -> None:
    made = bench(objective_s=2.0)
    offer(made, bulk(made), 2.0)
    first, _second = served(made, bulk(made))
    urgent = a_request("urgent", deadline_ms=2000.0, arrival_ns=made.now_ns)
    groups = (group_of(urgent, name="urgent"), group_of(bulk(made), name="bulk", count=SLOTS))
    queue = VirtualQueue(instance=HOLDER.instance, groups=groups, forecasts=(forecast(2.0, 1.0),))
    made.send(QueueRead(queue=queue))
    made.send(Progress(chunks=((first.call.call_id, (1,)),)))
    (pull,) = made.take(Pull)
    assert pull.group == GroupId("urgent")


def test_a_prompt_that_takes_longer_than_the_bound_is_computed_alone() -> None:
    made = bench(objective_s=2.0)
    huge = a_request("huge", prompt_tokens=3000, max_tokens=10, arrival_ns=made.now_ns)
    offer(made, huge, 2.0)
    (only,) = served(made, huge)
    made.send(Progress(chunks=((only.call.call_id, (1,)),)))
    assert len(served(made, huge)) == 1


def test_the_prompts_of_answers_that_are_generated_again_count_until_they_are_computed() -> None:
    """They were not counted: after the loss of an instance, another computed all of its batch first."""
    made = bench(objective_s=2.0)
    penalized = replace(bulk(made), sampling=replace(bulk(made).sampling, frequency_penalty=0.5))
    offer(made, penalized, 2.0)
    logged = (5,) * 90
    first, _second = served(made, penalized, logged)
    made.send(Progress(chunks=((first.call.call_id, logged[:1]),)))
    assert len(served(made, penalized, logged)) == 1
    made.send(Progress(chunks=((first.call.call_id, logged[1:2]),)))
    assert not made.take(Pull), "its prompt was counted before"


def test_what_the_prefix_cache_usually_has_of_a_prompt_does_not_count() -> None:
    made = bench(objective_s=2.0)
    offer(made, bulk(made), 2.0)
    first, second = served(made, bulk(made))
    for submit in (first, second):
        call_id = submit.call.call_id
        made.send(GenerationEnded(call_id=call_id, finish="stop", cached_tokens=BULK_TOKENS * 3 // 4))
    assert len(served(made, bulk(made))) == 10


def test_short_prompts_are_not_pulled_one_by_one_beside_long_contexts() -> None:
    """They were taken to be as long as what runs, so that a pull and an iteration passed for each."""
    made = bench(objective_s=2.0)
    document = a_request("document", prompt_tokens=3000, max_tokens=100, arrival_ns=made.now_ns)
    short = a_request("short", deadline_ms=60_000.0, prompt_tokens=20, max_tokens=2, arrival_ns=made.now_ns)
    offer(made, document, 2.0)
    (only,) = served(made, document)
    offer(made, short, 2.0)
    made.send(Progress(chunks=((only.call.call_id, (1,)),)))
    (first,) = served(made, short)
    made.send(GenerationEnded(call_id=first.call.call_id, finish="stop", cached_tokens=0))
    assert len(served(made, short)) == 1000 // 20


def test_an_objective_of_which_no_request_is_expected_bounds_nothing() -> None:
    rate_rps = 0.5 / SLACK_OF_S
    made = bench(objective_s=2.0, rate_rps=rate_rps)
    offer(made, bulk(made), 2.0, rate_rps)
    assert len(served(made, bulk(made))) == SLOTS


def test_an_instance_that_is_free_to_leave_its_model_is_bound_by_the_objectives_that_others_serve() -> None:
    """Its rates are 0, and plans give it urgent requests like the others, behind its prompts."""
    made = bench(objective_s=2.0, rate_rps=0.0)
    offer(made, bulk(made), 2.0, 0.0)
    assert len(served(made, bulk(made))) == 2


def test_classes_whose_requests_are_only_served_in_their_order_bound_nothing() -> None:
    """The policies of the simulator that go by arrival give them an objective of 0 s."""
    made = bench(objective_s=0.0)
    offer(made, bulk(made), 0.0)
    assert len(served(made, bulk(made))) == SLOTS


@pytest.mark.parametrize("speed", [NO_SPEED, replace(SPEED, answer_s=3.0)], ids=["unknown", "whole answers"])
def test_engines_that_do_not_show_when_a_prompt_is_computed_have_no_bound(speed: EngineSpeed) -> None:
    made = bench(objective_s=2.0, speed=speed)
    offer(made, bulk(made), 2.0)
    assert len(served(made, bulk(made))) == SLOTS
