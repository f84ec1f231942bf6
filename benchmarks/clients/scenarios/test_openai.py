"""OpenAI's SDK: each resource that QLM has, and the classes of errors, as its documentation uses them."""

import asyncio
import base64
import http.server
import json
import os
import queue
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

TOWN = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather of a town.", "parameters": TOWN},
}
CHOICES: Any = ["required", {"type": "function", "function": {"name": "weather"}}]
ASKED: Any = [{"role": "user", "content": "Will it rain in Ulm?"}]


class Place(pydantic.BaseModel):
    """Schema of structured answers."""

    town: str
    people: int
    coastal: bool


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def text_of(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def looked_up(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def test_models(client: openai.OpenAI, model: str) -> None:
    listed = client.models.list()
    assert model in [each.id for each in listed]
    assert client.models.retrieve(model).id == model


def test_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=ASKED, max_completion_tokens=20)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id == answer.id.removeprefix("chatcmpl-")


def test_every_option_of_a_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "content": "Hi", "name": "Ann"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "Go on"}]},
        ],
        frequency_penalty=0.5,
        logit_bias={"65": -10},
        logprobs=True,
        max_completion_tokens=8,
        metadata={"a": "b"},
        modalities=["text"],
        n=2,
        parallel_tool_calls=True,
        presence_penalty=0.5,
        prompt_cache_key="k",
        reasoning_effort="none",
        response_format={"type": "text"},
        safety_identifier="s",
        seed=1,
        service_tier="flex",
        store=False,
        temperature=0.5,
        tool_choice="auto",
        tools=[WEATHER],
        top_logprobs=2,
        top_p=0.9,
        user="ann",
        verbosity=None,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.service_tier == "flex"


def test_stop_texts(client: openai.OpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": ASKED, "seed": 5, "max_tokens": 40}
    whole = client.chat.completions.create(**options).choices[0].message.content
    stopped = client.chat.completions.create(**options, stop=[whole[3:5], "\n\n"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == (whole[: whole.index(whole[3:5])], "stop")
    with pytest.raises(openai.BadRequestError, match="with tools") as caught:
        client.chat.completions.create(**options, tools=[WEATHER], stop=["END"])
    assert caught.value.param == "stop"


def test_streams_have_usage_where_asked_for(client: openai.OpenAI, model: str) -> None:
    options: Any = {"model": model, "messages": ASKED, "max_tokens": 10, "stream": True, "seed": 3}
    plain = list(client.chat.completions.create(**options))
    assert all(chunk.usage is None and chunk.choices for chunk in plain)
    usage = list(client.chat.completions.create(**options, stream_options={"include_usage": True}))
    assert usage[-1].choices == []
    assert usage[-1].usage.completion_tokens == 10
    assert text_of(plain) == text_of(usage)
    assert [c.choices[0].finish_reason for c in plain if c.choices[0].finish_reason] == ["length"]


def test_a_closed_stream_ends_its_request(client: openai.OpenAI, model: str, url: str) -> None:
    options: Any = {"model": model, "messages": ASKED, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    with client.chat.completions.create(**options, stream=True) as stream:
        first = next(iter(stream))
    request_id = first.id.removeprefix("chatcmpl-")
    ended_by_s = time.monotonic() + 30
    while (now := looked_up(f"{url}/v1/requests/{request_id}"))["status"] != "ended":
        assert time.monotonic() < ended_by_s
        time.sleep(0.05)
    assert now["outcome"] == "cancelled"


def test_the_asynchronous_client(url: str, model: str) -> None:
    asyncio.run(streamed(url, model))


async def streamed(url: str, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model=model, messages=ASKED, max_tokens=10, stream=True)
        assert [chunk async for chunk in stream][-1].choices[0].finish_reason == "length"
        assert [each.id async for each in client.models.list()]


LATE: Any = {"slo": {"deadline_ms": 1}, "ignore_eos": True}


def test_a_late_whole_answer_says_so(client: openai.OpenAI, model: str) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=ASKED, max_completion_tokens=20, extra_body=LATE
    )
    assert raw.headers["x-qlm-met"] == "false"
    assert int(raw.headers["x-qlm-late-ms"]) > 0
    answer = raw.parse()
    assert answer.usage.completion_tokens == 20
    state = looked_up(f"{str(client.base_url).rstrip('/')}/requests/{answer.id}")
    assert state["met"] is False
    assert state["late_by_s"] == pytest.approx(int(raw.headers["x-qlm-late-ms"]) / 1000, abs=0.25)


def test_a_late_stream_says_so_at_its_end(client: openai.OpenAI, model: str) -> None:
    stream = client.chat.completions.create(
        model=model,
        messages=ASKED,
        max_completion_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=LATE,
    )
    *_, last, usage = stream
    assert last.choices[0].finish_reason == "length"
    for part in (last, usage.usage):  # a field that the SDK does not know is an attribute
        assert part.qlm["met"] is False and part.qlm["late_ms"] > 0


@pytest.mark.parametrize("choice", CHOICES)
def test_tools(client: openai.OpenAI, model: str, choice: Any) -> None:
    options: Any = {"model": model, "tools": [WEATHER], "tool_choice": choice}
    answer = client.chat.completions.create(messages=ASKED, **options)
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"town"}
    history = [*ASKED, message, {"role": "tool", "tool_call_id": call.id, "content": "Rain"}]
    later = client.chat.completions.create(
        model=model, tools=[WEATHER], messages=history, max_completion_tokens=5
    )
    assert later.choices[0].message.role == "assistant"


@pytest.mark.parametrize("choice", CHOICES)
def test_streamed_tools(client: openai.OpenAI, model: str, choice: Any) -> None:
    with client.chat.completions.stream(
        model=model, messages=ASKED, tools=[WEATHER], tool_choice=choice
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = answer.choices[0].message.tool_calls
    assert call.id
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments).keys() == {"town"}


def test_run_of_tools_that_are_functions(client: openai.OpenAI, model: str) -> None:
    tool = openai.pydantic_function_tool(Place, name="place")
    answer = client.chat.completions.parse(
        model=model,
        messages=ASKED,
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "place"}},
    )
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Place)


def test_parsed_answers(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(model=model, messages=ASKED, response_format=Place)
    assert isinstance(answer.choices[0].message.parsed, Place)
    with client.chat.completions.stream(model=model, messages=ASKED, response_format=Place) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Place)


def test_json_objects(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=ASKED, response_format={"type": "json_object"}
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_completions(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=["a", "b"], n=2, max_tokens=4, logprobs=1, echo=False, stop=None, suffix=None
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(answer.choices[0].logprobs.tokens) == 4
    stream = client.completions.create(model=model, prompt=[72, 105], max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream)


def test_responses(client: openai.OpenAI, model: str) -> None:
    answer = client.responses.create(
        model=model,
        input="Hi",
        instructions="Be brief.",
        max_output_tokens=20,
        metadata={"a": "b"},
        truncation="disabled",
        store=True,
        user="ann",
        include=[],
        tools=[],
        text={"format": {"type": "text"}, "verbosity": "medium"},
        reasoning={"effort": None, "summary": None},
        temperature=1,
        top_p=1,
    )
    assert answer.output_text
    assert answer.usage.output_tokens
    assert answer.metadata == {"a": "b"}
    later = client.responses.create(
        model=model, previous_response_id=answer.id, input="And?", max_output_tokens=20, user="ann"
    )
    assert later.previous_response_id == answer.id


def test_parsed_responses_and_tools(client: openai.OpenAI, model: str) -> None:
    answer = client.responses.parse(model=model, input="Ulm", text_format=Place)
    assert isinstance(answer.output_parsed, Place)
    tool: Any = {"type": "function", "name": "weather", "parameters": TOWN, "strict": False}
    options: Any = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    called = client.responses.create(model=model, input=ASKED, **options)
    (call,) = [item for item in called.output if item.type == "function_call"]
    history = [*ASKED, call, {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}]
    assert client.responses.create(model=model, input=history, tools=[tool], max_output_tokens=9).output


def test_streamed_responses(client: openai.OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input="Ulm", text_format=Place) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert isinstance(answer.output_parsed, Place)
    *_, last = client.responses.create(model=model, input="Hi", max_output_tokens=12, stream=True)
    assert last.response.usage.output_tokens == 12
    assert last.response.status == "incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_background_responses(client: openai.OpenAI, model: str) -> None:
    made = client.responses.create(model=model, input="Hi", background=True, max_output_tokens=12)
    assert made.status in ("queued", "in_progress", "incomplete")
    ended_by_s = time.monotonic() + 60
    while (now := client.responses.retrieve(made.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < ended_by_s
        time.sleep(0.05)
    assert now.output_text
    events = list(client.responses.retrieve(made.id, stream=True, starting_after=2))
    assert events[-1].type == "response.incomplete"
    assert min(event.sequence_number for event in events) > 2
    long = client.responses.create(model=model, input="Hi", background=True, extra_body={"ignore_eos": True})
    assert client.responses.cancel(long.id).status == "cancelled"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none")


class _Hook(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted to it; what has no good signature ends in an error, and is not taken."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver = openai.OpenAI(api_key="none", webhook_secret=os.environ["QLM_WEBHOOK_SECRET"])
        posted.put(receiver.webhooks.unwrap(body, dict(self.headers)))
        self.send_response(200)
        self.end_headers()


posted: queue.Queue[Any] = queue.Queue()


def test_webhooks(client: openai.OpenAI, model: str) -> None:
    address = "127.0.0.1", int(os.environ["QLM_WEBHOOK_PORT"])
    with http.server.ThreadingHTTPServer(address, _Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = client.responses.create(model=model, input="Hi", background=True, max_output_tokens=12)
        while (event := posted.get(timeout=60)).data.id != made.id:
            pass  # of a response before this one
        assert event.type == "response.incomplete" and event.id.startswith("evt_")
        with pytest.raises(openai.InvalidWebhookSignatureError):
            headers = {
                "webhook-id": "a",
                "webhook-timestamp": f"{int(time.time())}",
                "webhook-signature": "v1,a",
            }
            client.webhooks.unwrap("{}", headers, secret=os.environ["QLM_WEBHOOK_SECRET"])
        server.shutdown()


def test_files_and_batches(client: openai.OpenAI, model: str) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    bodies = [{"model": model, "messages": ASKED, "max_tokens": 5}, {"model": "none", "messages": ASKED}]
    lines = "\n".join(json.dumps(line | {"custom_id": f"a-{n}", "body": b}) for n, b in enumerate(bodies))
    file = client.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
    assert client.files.content(file.id).text == lines
    assert file.id in [each.id for each in client.files.list(purpose="batch")]
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    ended_by_s = time.monotonic() + 60
    while (batch := client.batches.retrieve(batch.id)).status not in ("completed", "failed"):
        assert time.monotonic() < ended_by_s
        time.sleep(0.1)
    print(batch)
    answers = [json.loads(each) for each in client.files.content(batch.output_file_id).iter_lines()]
    assert answers[0]["response"]["body"]["usage"]["completion_tokens"] == 5
    assert batch.request_counts.total == 2
    assert batch.id in [each.id for each in client.batches.list(limit=5)]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_errors_have_their_classes(client: openai.OpenAI, model: str) -> None:
    chat = client.chat.completions
    with pytest.raises(openai.NotFoundError) as caught:
        chat.create(model="none", messages=ASKED)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        chat.create(model=model, messages=ASKED, temperature=9)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        chat.create(model=model, messages=[{"role": "user", "content": "x " * 200_000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        chat.create(model=model, messages=ASKED, extra_body={"no_such_field": 1})
    assert caught.value.param == "no_such_field"
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model=model, input="x")
    assert caught.value.code == "endpoint_not_supported"


def test_images(client: openai.OpenAI, model: str, takes_images: bool) -> None:
    def ask(url: str) -> str:
        image: Any = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
        content: Any = [{"type": "text", "text": "What is it?"}, image]
        answer = client.chat.completions.create(
            model=model, max_tokens=5, messages=[{"role": "user", "content": content}]
        )
        return answer.choices[0].message.content or ""

    with pytest.raises(openai.BadRequestError) as caught:
        ask("https://127.0.0.1/cat.png")
    assert caught.value.code == "media_unavailable"
    pixel = f"data:image/png;base64,{base64.b64encode(b'a picture').decode()}"
    if takes_images:
        assert ask(pixel)
    else:
        with pytest.raises(openai.BadRequestError, match=r"image|multimodal"):
            ask(pixel)


def test_timeouts(client: openai.OpenAI, model: str) -> None:
    long: Any = {"model": model, "messages": ASKED, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(**long)
