import pytest

from qlm.gateway.api.bodies.constraints import completion_grammar
from qlm.gateway.api.bodies.json_object import DEPTH_MAX, parse_json
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.schema import PROBLEMS_MAX, CompletionBody, parse_chat, parse_completion
from qlm.gateway.sessions.families.members import answers_wanted
from support.chat_bodies import CHAT, refusal_of_chat

COMPLETION = {"model": "m", "prompt": "Once"}
EMPTY = {"model": "", "user": ""}


def refusal_of_completion(**fields: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_completion(COMPLETION | fields)
    return caught.value


def test_defaults_are_those_of_the_openai_api() -> None:
    body = parse_completion(COMPLETION)
    assert (body.temperature, body.top_p, body.stream, body.stops) == (None, None, False, ())


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("a", "a"), (["a"], "a"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])],
    ids=["text", "list of one", "token ids", "list of one with token ids"],
)
def test_prompt_may_be_text_or_token_ids_or_one_of_them_in_a_list(prompt: object, read: object) -> None:
    assert parse_completion(COMPLETION | {"prompt": prompt}).prompt == read


@pytest.mark.parametrize(
    "prompt", [5, [], "", [-1], [1, "a"], [[1], []], [True], [[]], [[[1]]], [["a"]], [[1, "a"]], [""]]
)
def test_other_prompts_are_refused_with_what_is_expected(prompt: object) -> None:
    error = refusal_of_completion(prompt=prompt)
    assert (error.status, error.param) == (400, "prompt")


def test_each_of_several_prompts_has_a_body_of_its_own() -> None:
    for prompt in (["a", "b"], [[1], [2]]):
        body = parse_completion(COMPLETION | {"prompt": prompt, "n": 2})
        assert [(each.prompt, each.n) for each in body.singles] == [(each, 2) for each in prompt]


def test_prompts_are_counted_without_a_body_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    body = parse_completion(COMPLETION | {"prompt": ["a", "b", "c"], "n": 2})
    monkeypatch.delattr(CompletionBody, "singles")
    assert answers_wanted(body) == 6


def test_a_body_with_very_many_problems_is_refused_without_a_list_of_them() -> None:
    many = dict.fromkeys(map(str, range(PROBLEMS_MAX + 1)), 1)
    error = refusal_of_completion(**many)
    assert error.message == f"the body has {len(many)} wrong values or fields; expected none"


def test_an_error_names_field_value_and_expectation() -> None:
    error = refusal_of_completion(temperature=3)
    assert error.message == "temperature is 3; expected less than or equal to 2"
    assert error.body() == {
        "error": {
            "message": error.message,
            "type": "invalid_request_error",
            "param": "temperature",
            "code": "invalid_value",
        }
    }


def test_an_unknown_field_is_refused_by_name() -> None:
    error = refusal_of_completion(frobnicate=1)
    assert (error.param, error.code) == ("frobnicate", "unknown_parameter")


def test_an_unknown_field_inside_an_object_is_refused_with_its_path() -> None:
    assert refusal_of_completion(slo={"deadline_ms": 5, "x": 1}).param == "slo.x"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"foo": 1}}, "stream_options.foo"),
        ({"stream_options": {"include_usage": 7}}, "stream_options.include_usage"),
        ({"stream_interval": 2}, "stream_interval"),
        ({"strict": True}, "strict"),
        ({"structured_output": {}}, "structured_output"),
        ({"str": 1}, "str"),
        ({"float": 1}, "float"),
        ({"list[": 1}, "list["),
        ({"constrained-x": 1}, "constrained-x"),
        ({"slo": {"strange": 1}}, "slo.strange"),
        ({"slo": {"deadline_at": [1]}}, "slo.deadline_at"),
        ({"stop": [1]}, "stop"),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1"),
    ],
    ids=str,
)
def test_an_error_keeps_the_name_of_the_field_whatever_it_is(fields: dict[str, object], param: str) -> None:
    for error in (refusal_of_completion(**fields), refusal_of_chat(**fields)):
        assert (error.status, error.param) == (400, param)
        assert error.message.startswith(f"{param} is ")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion({"model": "m"})
    assert (caught.value.param, caught.value.code) == ("prompt", "missing_required_parameter")


@pytest.mark.parametrize(
    "neutral",
    [
        {"n": 1},
        {"n": None},
        {"logprobs": None},
        {"logprobs": False},
        {"response_format": {"type": "text"}},
        {"store": False},
        {"store": True},
        {"prompt_cache_key": "team-a"},
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
        {"request_id": "mine"},
        {"routed_experts_prompt_start": 0},
        {"return_token_offsets": False},
        {"mm_payload": "tensors"},
        {"suffix": None},
        {"echo": False},
        {"best_of": 1},
        {"metadata": {"team": "a"}},
        {"user": None},
    ],
    ids=str,
)
def test_unsupported_completion_fields_are_accepted_at_neutral_values(neutral: dict[str, object]) -> None:
    assert parse_completion(COMPLETION | neutral).prompt == "Once"


@pytest.mark.parametrize(
    "neutral",
    [
        {"tools": None},
        {"tools": []},
        {"parallel_tool_calls": True},
        {"logprobs": False},
        {"modalities": ["text"]},
        {"include_reasoning": True},
        {"include_reasoning": False},
        {"mm_payload": "tensors"},
        {"verbosity": "medium"},
    ],
    ids=str,
)
def test_unsupported_chat_fields_are_accepted_at_neutral_values(neutral: dict[str, object]) -> None:
    assert parse_chat(CHAT | neutral).messages[0].content == "Hi"


@pytest.mark.parametrize(
    ("further", "field"),
    [
        ({}, None),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}, None),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"chat_template_kwargs": {}, "include_reasoning": True, "reasoning_effort": None}, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages[0].role"),
    ],
)
def test_a_conversation_beyond_plain_text_says_what_it_needs_a_render_tier_for(
    further: dict[str, object], field: str | None
) -> None:
    assert parse_chat(CHAT | further).needs_render == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("best_of", True),
        ("mm_payload", "none"),
        ("routed_experts_prompt_start", 1),
        ("chat_template", "{{ messages }}"),
    ],
)
def test_unsupported_fields_are_refused_by_name_otherwise(field: str, value: object) -> None:
    error = refusal_of_chat(**{field: value})
    assert (error.status, error.param, error.code) == (400, field, "unsupported_value")


VLLM_SHARED: dict[str, object] = {
    "model": None, "n": 1, "stop": [], "stream": False, "stream_options": None, "use_beam_search": False,
    "length_penalty": 1.0, "stop_token_ids": [], "include_stop_str_in_output": False, "ignore_eos": False,
    "min_tokens": 0, "skip_special_tokens": True, "spaces_between_special_tokens": True, "bad_words": [],
    "echo": False, "priority": 0, "request_id": "a6c9511d314e34f8", "session_id": None,
    "routed_experts_prompt_start": 0, "return_token_offsets": False, "mm_payload": "tensors",
    "return_mm_kwargs": None, "vllm_xargs": None, "stream_interval": None,
}  # fmt: skip
"""What `model_dump` of vLLM 0.32 makes of requests of both routes, without further nulls."""


def test_what_vllm_fills_in_is_accepted() -> None:
    chat = {"logprobs": False, "top_logprobs": 0, "tool_choice": "none", "include_reasoning": True}
    chat |= {"parallel_tool_calls": True, "add_generation_prompt": True, "continue_final_message": False}
    assert parse_chat(VLLM_SHARED | CHAT | chat | {"add_special_tokens": False}).output_limit[1] is None
    completion = {"max_tokens": 16, "suffix": None, "add_special_tokens": True}
    assert parse_completion(VLLM_SHARED | COMPLETION | completion).max_tokens == 16


def test_log_probabilities_would_show_reasoning_that_is_left_out() -> None:
    scored = CHAT | {"logprobs": True, "top_logprobs": 2}
    assert parse_chat(scored).engine_logprobs == 2
    assert parse_chat(scored | {"include_reasoning": True}).engine_logprobs == 2
    assert parse_chat(scored | {"include_reasoning": False}).engine_logprobs is None


def test_the_newer_output_limit_wins() -> None:
    body = parse_chat(CHAT | {"max_tokens": 5, "max_completion_tokens": 7})
    assert body.output_limit == ("max_completion_tokens", 7)


def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    """Clients that have one type of numbers write all of them so; vLLM takes them."""
    raw = b'{"prompt": "a", "max_tokens": 5.0, "n": 2.0, "seed": -3.0, "logprobs": 1.0, "priority": 1e1}'
    body = parse_completion(parse_json(raw))
    read = (body.max_tokens, body.n, body.seed, body.logprobs, body.priority)
    assert (read, {type(each) for each in read}) == ((5, 2, -3, 1, 10), {int})
    chat = parse_chat(CHAT | {"max_completion_tokens": 7.0, "logprobs": True, "top_logprobs": 2.0})
    assert (chat.max_completion_tokens, chat.top_logprobs) == (7, 2)
    for wrong in (5.5, 1e300, "5", True):
        assert refusal_of_chat(max_tokens=wrong).param == "max_tokens"
    assert "expected a valid integer" in refusal_of_chat(max_tokens=1e300).message


def test_a_model_and_a_user_may_be_empty_as_in_vllm() -> None:
    for read in (parse_completion(COMPLETION | EMPTY), parse_chat(CHAT | EMPTY)):
        assert (read.model, read.user) == ("", "")


def test_many_stop_strings_are_accepted() -> None:
    stops = [f"</{n}>" for n in range(64)]
    assert (
        parse_chat(CHAT | {"stop": stops}).stop
        == parse_completion(COMPLETION | {"stop": stops}).stop
        == stops
    )


@pytest.mark.parametrize("stop", ["", ["a"] * 65, [""], [1], 3])
def test_wrong_stop_strings_are_refused(stop: object) -> None:
    assert refusal_of_completion(stop=stop).param == "stop"


@pytest.mark.parametrize("bias", [{"a": 1}, {"-1": 1}, {"1": 101}, {"1": "x"}])
def test_wrong_logit_biases_are_refused(bias: object) -> None:
    param = refusal_of_completion(logit_bias=bias).param
    assert param is not None
    assert param.startswith("logit_bias")


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b'{"a": NaN}', b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize(("begin", "end"), [(b'{"a":', b"}"), (b"[", b"]"), (b'[{"a":[', b"]}]")])
@pytest.mark.parametrize("repeats", [101, 250, 900, 1020, 5000])
def test_a_body_with_too_many_levels_is_refused(begin: bytes, end: bytes, repeats: int) -> None:
    raw = b'{"model": "m", "prompt": "p", "metadata": ' + begin * repeats + b"1" + end * repeats + b"}"
    with pytest.raises(ApiError) as caught:
        parse_json(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
    assert len(caught.value.message) < 200


def test_levels_are_counted_and_not_brackets() -> None:
    deepest = b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1)
    assert parse_json(b'{"a": ' + deepest + b"}")["a"]
    with pytest.raises(ApiError, match="nested too deeply; expected at most 100 levels"):
        parse_json(b'{"a": [' + deepest + b"]}")
    assert parse_json(b'{"a": "' + b"[{" * 1000 + b'", "b": [' + b"[1]," * 1000 + b"{}]}")


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refusal_of_completion(model="x" * 5000).message) < 400
    named = refusal_of_completion(**{"x" * 5000: 1})
    assert named.param is not None and len(named.param) < 250 and len(named.message) < 400


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"slo": {"deadline": 5}}, "deadline_ms"),
        ({"slo": {"ttft": 5}}, "ttft_ms"),
        ({"max_token": 5}, "max_tokens"),
        ({"stream_options": {"include_usages": True}}, "include_usage"),
    ],
)
def test_a_misspelt_field_is_answered_with_the_one_meant(fields: dict[str, object], meant: str) -> None:
    assert refusal_of_completion(**fields).message.endswith(f"; did you mean {meant}?")


def test_a_field_like_no_other_is_answered_with_those_there_are_if_they_are_few() -> None:
    few = refusal_of_completion(slo={"zzz": 5}).message
    assert "did you mean" not in few
    assert "; possible here: " in few and "deadline_ms" in few
    many = refusal_of_completion(zzz=5).message
    assert "did you mean" not in many and "possible here" not in many


@pytest.mark.parametrize("name", ["Seed", "GET", "max_token"])
def test_an_unknown_field_is_named_however_it_is_written(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion({"prompt": "Once", name: 1})
    assert (caught.value.param, caught.value.code) == (name, "unknown_parameter")


def test_a_json_object_has_no_schema_whatever_stands_beside_it() -> None:
    form = {"type": "json_object", "json_schema": {"name": "a"}}
    body = parse_completion({"prompt": "Once", "response_format": form})
    assert body.response_format is not None
    grammar = completion_grammar(body.response_format.model_dump(), None)
    assert grammar == '{"structured_outputs":{"json_object":true}}'
