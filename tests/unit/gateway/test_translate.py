from dataclasses import replace
from typing import Any

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.domain.formats.clusters import Clusters
from qlm.domain.formats.extensions import NO_REQUEST_EXTENSIONS, ClassExtensions, RequestExtensions
from qlm.domain.formats.strands import TaskName, strand_of, strand_of_task
from qlm.domain.group import request_class
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.request import AnswerKind, RequestMetadata
from qlm.domain.slo import DeadlineSlo, TokenSlo
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.schema import parse_chat, parse_completion
from qlm.gateway.api.translate import KEY_TENANT, Arrival, chat_messages, to_metadata, with_prompt
from qlm.gateway.core.class_choice import ClassChoice
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.tasks.memory import TaskCall, TaskKey
from qlm.gateway.core.tasks.urgency import Urgency
from qlm.gateway.core.tokenizer import ServedModel
from qlm.gateway.tokenizers.byte import ByteTokenizer

SERVED = ServedModel(ModelSpec(id=ModelId("m"), tokenizer="byte", context_tokens=100), ByteTokenizer())
LIMITS = GatewayLimits()
CLASSES = ClassChoice(LIMITS.slo_steps, LIMITS.classes_max)
PROMPT = tuple(range(20))


def metadata(
    headers: dict[str, str] | None = None, prompt: tuple[int, ...] = PROMPT, **fields: Any
) -> RequestMetadata:
    body = parse_completion({"model": "m", "prompt": list(prompt)} | fields)
    arrival = Arrival(id=RequestId("r"), headers=headers or {}, now_ns=5_000_000_000)
    return to_metadata(body, prompt, SERVED, LIMITS, arrival, CLASSES)


def test_each_sampling_field_reaches_the_domain() -> None:
    sampling = metadata(
        max_tokens=9,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        seed=7,
        frequency_penalty=0.2,
        presence_penalty=-0.2,
        repetition_penalty=1.1,
        ignore_eos=True,
        stop_token_ids=[3],
        logit_bias={"5": -1.5},
    ).sampling
    assert (sampling.max_tokens, sampling.min_tokens, sampling.temperature) == (9, 2, 0.5)
    assert (sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0.9, 40, 0.1, 7)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.2, -0.2)
    assert (sampling.repetition_penalty, sampling.ignore_eos) == (1.1, True)
    assert (sampling.stop_token_ids, sampling.logit_bias) == ((3,), ((5, -1.5),))


def test_the_models_own_end_reaches_the_domain() -> None:
    # An agent that takes a request over must see that its answer has ended.
    assert metadata().sampling.eos_token_ids == tuple(ByteTokenizer().eos_ids)


def test_answer_fields_reach_the_domain() -> None:
    answer = metadata(stop=["x", "y"], include_stop_str_in_output=True, skip_special_tokens=False).answer
    assert (answer.kind, answer.stop) == (AnswerKind.COMPLETION, ("x", "y"))
    assert (answer.include_stop, answer.skip_special_tokens) == (True, False)


def test_minus_one_switches_top_k_off_as_zero_does() -> None:
    assert metadata(top_k=-1).sampling.top_k == 0


@pytest.mark.parametrize(
    ("configured", "chat", "completion"), [(None, 80, 16), (7, 7, 7), (50, 50, 50), (90, 80, 80)]
)
def test_without_an_output_limit_the_context_bounds_chats_and_16_tokens_completions(
    configured: int | None, chat: int, completion: int
) -> None:
    limits = GatewayLimits(default_max_tokens=configured)
    arrival = Arrival(id=RequestId("r"), headers={}, now_ns=0)
    messages = [{"role": "user", "content": "hi"}]
    for body, expected in (
        (parse_chat({"model": "m", "messages": messages}), chat),
        (parse_completion({"model": "m", "prompt": "hi"}), completion),
    ):
        assert to_metadata(body, PROMPT, SERVED, limits, arrival, CLASSES).sampling.max_tokens == expected


def test_sixteen_tokens_need_not_fit() -> None:
    assert metadata(prompt=(1,) * 90).sampling.max_tokens == 10


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "param"),
    [(100, None, "prompt"), (101, 1, "prompt"), (99, 101, "max_tokens"), (1, 101, "max_tokens")],
)
def test_what_does_not_fit_the_context_is_refused(
    prompt_tokens: int, max_tokens: int | None, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        metadata(prompt=(1,) * prompt_tokens, max_tokens=max_tokens)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.code == "context_length_exceeded"
    # LiteLLM 1.106 looks for the first words of this, and vLLM's clients for all of them.
    assert caught.value.message.startswith("This model's maximum context length is 100 tokens. However, ")
    assert "; expected at most " in caught.value.message


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "granted"), [(99, 1, 1), (99, 2, 1), (99, 100, 1), (30, 100, 70)]
)
def test_an_output_limit_of_at_most_the_context_is_cut_to_its_room_as_in_vllm(
    prompt_tokens: int, max_tokens: int, granted: int
) -> None:
    assert metadata(prompt=(1,) * prompt_tokens, max_tokens=max_tokens).sampling.max_tokens == granted


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": (257,)}, "prompt"),
        ({"stop_token_ids": [257]}, "stop_token_ids"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ],
)
def test_values_beyond_the_model_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        metadata(**fields)
    assert caught.value.field == field


def test_the_tenant_is_the_user_then_the_fairness_header_then_default() -> None:
    header = {"x-gateway-inference-fairness-id": "team-b"}
    assert metadata(header, user="team-a").tenant == "team-a"
    assert metadata(header).tenant == "team-b"
    assert metadata(header, user="").tenant == "team-b"
    assert metadata({"x-llm-d-inference-fairness-id": "team-c"} | header).tenant == "team-c"
    assert metadata().tenant == "default"
    with pytest.raises(InvalidValueError, match="fairness"):
        metadata({"x-llm-d-inference-fairness-id": "x" * 101})


def test_a_user_that_is_too_long_for_a_name_is_a_tenant_of_its_own() -> None:
    users = ["x" * 101, "x" * 102, "x" * 100 + "y", "\N{SNOWMAN}" * 4096]
    tenants = [metadata(user=each).tenant for each in users]
    assert tenants == [metadata(user=each).tenant for each in users]
    assert len({*tenants, "x" * 100}) == 5
    for user, tenant in zip(users, tenants, strict=True):
        assert len(tenant) == 100 and tenant.startswith(user[:60])
    assert metadata(user="x" * 100).tenant == "x" * 100
    assert metadata({KEY_TENANT: "team-a"}, user=users[0]).tenant == "team-a"


def test_lower_priority_goes_first_and_makes_a_class_of_its_own() -> None:
    assert metadata(priority=-3).cls.priority == -3
    assert metadata(priority=-3).cls.queue != metadata().cls.queue


def test_a_long_prompt_is_in_the_cluster_of_its_length() -> None:
    undivided = metadata().cls
    clusters = Clusters(found={undivided: (len(PROMPT),)})
    arrival = Arrival(id=RequestId("r"), headers={}, now_ns=5_000_000_000)
    names = []
    for prompt in (PROMPT, (*PROMPT, 1)):
        body = parse_completion({"model": "m", "prompt": list(prompt)})
        made = to_metadata(body, prompt, SERVED, LIMITS, arrival, CLASSES, clusters)
        assert replace(made.cls, cluster="all") == undivided
        names.append(made.cls.cluster)
    assert names == ["to-20", "over-20"]


def test_requests_of_one_bucket_share_a_class_with_the_bucket_as_target() -> None:
    first = request_class(ModelId("m"), DeadlineSlo(deadline_ms=21_000), 0)
    second = request_class(ModelId("m"), DeadlineSlo(deadline_ms=24_000), 0)
    assert first == second
    assert first.target_ms == pytest.approx(20_000)
    assert request_class(ModelId("m"), TokenSlo(ttft_ms=450), 0).target_ms == pytest.approx(400)


def test_the_metadata_keeps_the_end_of_the_prompt_and_the_request_all_of_it() -> None:
    made = metadata()
    assert made.prompt_tail == PROMPT[-8:]
    request = with_prompt(made, PROMPT)
    assert request.prompt_ids == PROMPT
    assert request.metadata() == made


def test_text_parts_are_joined_by_line_feeds() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = parse_chat({"model": "m", "messages": [{"role": "user", "content": parts}]})
    assert chat_messages(body.messages)[0].content == "a\nb"


def test_the_probability_that_a_client_asks_for_goes_with_its_request() -> None:
    asked = {"deadline_ms": 500, "p_met_min": 0.9}
    assert metadata(slo=asked).extensions == RequestExtensions(p_met=0.9)
    assert metadata({"x-qlm-p-met-min": "0.5"}).extensions == RequestExtensions(p_met=0.5)
    assert metadata().extensions is NO_REQUEST_EXTENSIONS
    assert metadata(slo=asked | {"p_met_min": 0}).extensions is NO_REQUEST_EXTENSIONS


def test_a_promise_goes_with_the_request_to_its_class() -> None:
    promise = ClassExtensions(p_met=0.95)
    asked = {"deadline_ms": 500, "p_met": 0.95}
    assert metadata(slo=asked).extensions == RequestExtensions(cls=promise)
    assert metadata({"x-qlm-p-met": "0.95"}).extensions == RequestExtensions(cls=promise)
    both = metadata({"x-qlm-p-met": "0.5"}, slo=asked | {"p_met_min": 0.7})
    assert both.extensions == RequestExtensions(cls=promise, p_met=0.7)
    with pytest.raises(
        InvalidValueError, match=r"x-qlm-p-met is .*; expected a probability from 0 to 0\.999"
    ):
        metadata({"x-qlm-p-met": "1"})


def test_a_call_of_a_task_carries_its_task_and_waits_in_the_class_of_its_urgency() -> None:
    body = parse_completion({"model": "m", "prompt": list(PROMPT)})
    for hopeless in (False, True):
        call = TaskCall(
            key=TaskKey("default", "t"), deadline_ns=9 * 10**9, calls_left=3, urgency=Urgency(2.0, hopeless)
        )
        arrival = Arrival(id=RequestId("r"), headers={}, now_ns=5_000_000_000, task=call)
        made = to_metadata(body, PROMPT, SERVED, LIMITS, arrival, CLASSES)
        assert made.slo == DeadlineSlo(deadline_ms=2000)
        assert made.cls.late is hopeless
        extensions = made.extensions
        assert (extensions.task_id, extensions.task_calls, extensions.task_deadline_ns) == ("t", 2, 9 * 10**9)


def test_calls_of_a_task_wait_in_the_class_of_its_strand_and_other_requests_do_not() -> None:
    body = parse_completion({"model": "m", "prompt": list(PROMPT)})
    clusters = Clusters(strands={ModelId("m"): 8})
    found = set[int | None]()
    for due_s in (0.5, 2.0, 30.0):
        urgency = Urgency(due_s, hopeless=False)
        call = TaskCall(key=TaskKey("default", "t"), deadline_ns=9 * 10**9, calls_left=3, urgency=urgency)
        for task in (call, None):
            arrival = Arrival(id=RequestId("r"), headers={}, now_ns=5_000_000_000, task=task)
            made = to_metadata(body, PROMPT, SERVED, LIMITS, arrival, CLASSES, clusters)
            if task is None:
                assert made.cls.cluster == "all"
            else:
                found.add(strand_of(made.cls))
    assert found == {strand_of_task(TaskName("default", "t"), 8)}
