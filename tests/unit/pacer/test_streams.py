"""Paced streams: async and plain iterators, and chunks of the OpenAI SDK."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletionChunk

from qlm.domain.shell.tasks import end_tasks
from qlm.pacer.core.items import TEXT, ItemPacer
from qlm.pacer.core.options import PacerOptions
from qlm.pacer.core.pacer import Pacer
from qlm.pacer.openai import CHAT, COMPLETION
from qlm.pacer.streams import pace, pace_sync

FAST = PacerOptions(rate=2000)  # eight characters per millisecond
TEXTS = ["One", " two", " three", " four", ". Five", " six", "."]


async def arriving(items: list[Any], error: Exception | None = None) -> AsyncIterator[Any]:
    for item in items:
        await asyncio.sleep(0)
        yield item
    if error is not None:
        raise error


def arriving_sync(items: list[Any], error: Exception | None = None) -> Iterator[Any]:
    yield from items
    if error is not None:
        raise error


def chunk(delta: dict[str, Any], finish_reason: str | None = None, index: int = 0) -> ChatCompletionChunk:
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    fields = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return ChatCompletionChunk.model_validate({**fields, "choices": [choice]})


async def test_an_async_stream_keeps_its_text() -> None:
    pacer = Pacer(FAST)
    got = [text async for text in pace(arriving(TEXTS), TEXT, pacer)]
    assert "".join(got) == "".join(TEXTS)
    assert pacer.report().graphemes == len("".join(TEXTS))


async def test_an_async_stream_is_spread_over_time() -> None:
    started_s = time.monotonic()
    pacer = Pacer(PacerOptions(rate=1, graphemes_per_token=0.1, max_lag_ms=120))
    got = [(time.monotonic() - started_s, text) async for text in pace(arriving([" a b c d"]), TEXT, pacer)]
    # A busy machine may be late, so that words come together, but never early.
    assert "".join(text for _, text in got) == " a b c d"
    assert got[-1][0] >= 0.119


async def test_an_error_comes_after_the_text_before_it_and_at_once() -> None:
    got: list[str] = []
    pacer = Pacer(PacerOptions(rate=0.001))
    with pytest.raises(ConnectionError, match="gone"):
        async for text in pace(arriving(TEXTS, ConnectionError("gone")), TEXT, pacer):
            got.append(text)
    assert "".join(got) == "".join(TEXTS)


async def test_a_consumer_that_stops_early_ends_the_source() -> None:
    ended = asyncio.Event()

    async def source() -> AsyncIterator[str]:
        try:
            yield "One"
            await asyncio.Event().wait()
        finally:
            ended.set()

    stream = pace(source(), TEXT, Pacer())
    assert await anext(stream) == "One"
    await stream.aclose()  # type: ignore[attr-defined]
    await asyncio.wait_for(ended.wait(), 10)


def test_a_plain_stream_keeps_its_text() -> None:
    assert "".join(pace_sync(arriving_sync(TEXTS), TEXT, Pacer(FAST))) == "".join(TEXTS)


def test_an_error_of_a_plain_stream_comes_after_the_text_before_it() -> None:
    got: list[str] = []
    source = arriving_sync(TEXTS, ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        got.extend(pace_sync(source, TEXT, Pacer(PacerOptions(rate=0.001))))
    # `extend` keeps what came before the error.
    assert "".join(got) == "".join(TEXTS)


def test_a_plain_stream_waits_for_text_that_is_due_beyond_all_times() -> None:
    taken = threading.Event()

    def source() -> Iterator[str]:
        yield "One two "
        assert taken.wait(10)
        raise ConnectionError("gone")

    stream = pace_sync(source(), TEXT, Pacer(PacerOptions(rate=1e-300)))
    assert next(stream) == "One"
    taken.set()
    got: list[str] = []
    with pytest.raises(ConnectionError, match="gone"):
        got.extend(stream)
    assert "".join(got) == " two "


async def test_chat_chunks_keep_their_order_and_all_that_is_not_text() -> None:
    call = {"tool_calls": [{"index": 0, "id": "call-1", "function": {"name": "f", "arguments": "{}"}}]}
    sent = [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": text}) for text in TEXTS),
        chunk(call),
        chunk({"content": "After it"}),
        chunk({}, "stop"),
    ]
    got = [each async for each in pace(arriving(sent), CHAT, Pacer(FAST))]
    assert got[0] is sent[0]
    at = got.index(sent[-3])
    assert "".join(each.choices[0].delta.content for each in got[1:at]) == "".join(TEXTS)
    assert "".join(each.choices[0].delta.content for each in got[at + 1 : -1]) == "After it"
    assert got[-1] is sent[-1]
    assert {each.id for each in got} == {"chat-1"}


def test_chunks_with_empty_content_divide_no_word_and_pass() -> None:
    items = ItemPacer(Pacer(FAST), CHAT)
    for text in ("One tw", "", "o \U0001f1e9", "", "\U0001f1ea"):
        items.push(chunk({"content": text}), 0)
    items.end(0)
    texts = [each.choices[0].delta.content for each in items.release(1000)]
    assert texts == ["One two", "", " \U0001f1e9\U0001f1ea", ""]


def test_words_of_two_choices_are_not_mixed() -> None:
    sent = [chunk({"content": f" w{number}"}, index=number % 2) for number in range(10)]
    got = list(pace_sync(arriving_sync(sent), CHAT, Pacer(FAST)))
    for index in (0, 1):
        texts = [each.choices[0].delta.content for each in got if each.choices[0].index == index]
        assert "".join(texts) == "".join(f" w{number}" for number in range(index, 10, 2))


def completion(text: str) -> Completion:
    choice = CompletionChoice.model_construct(index=0, text=text, finish_reason=None, logprobs=None)  # type: ignore[arg-type]
    return Completion.model_construct(
        id="c", object="text_completion", created=1, model="m", choices=[choice]
    )


def test_completion_chunks_keep_their_text() -> None:
    sent = [completion(text) for text in TEXTS]
    got = list(pace_sync(arriving_sync(sent), COMPLETION, Pacer(FAST)))
    assert "".join(each.choices[0].text for each in got) == "".join(TEXTS)


@pytest.mark.parametrize("of_chunk", [True, False])
def test_token_ids_of_a_chunk_come_once(of_chunk: bool) -> None:
    """They passed with each word of it."""
    chat, plain = chunk({"content": "some more words "}), completion("some more words")
    for sent, shape in ((chat, CHAT), (plain, COMPLETION)):
        if of_chunk:
            sent.__dict__["prompt_token_ids"] = [4, 5]
        else:
            sent.choices[0].__dict__["token_ids"] = [4, 5]
        assert list(pace_sync(arriving_sync([sent]), shape, Pacer(FAST))) == [sent]


def test_an_item_without_text_waits_for_the_text_before_it_only() -> None:
    items = ItemPacer(Pacer(PacerOptions(rate=10, graphemes_per_token=1)), TEXT)
    items.push("", 0)
    assert items.wake_at == 0
    assert items.release(0) == [""]
    items.push("one two", 0)
    items.push("", 0)
    assert items.release(0) == ["one"]
    assert items.release(299) == []
    assert items.release(300) == [" two", ""]
    items.end(300)
    assert items.done


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_that_arrives_with_text_ends_the_reader(turns: int) -> None:
    texts: asyncio.Queue[str] = asyncio.Queue()
    began = asyncio.Event()

    async def source() -> AsyncIterator[str]:
        while True:
            yield await texts.get()

    async def read() -> None:
        async for _ in pace(source(), TEXT, Pacer(PacerOptions(rate=0.001))):
            began.set()

    reading = asyncio.create_task(read())
    texts.put_nowait("".join(TEXTS))
    await began.wait()
    await asyncio.sleep(0.01)  # until the reader waits for the time of the next text
    texts.put_nowait("more")
    for _ in range(turns):
        await asyncio.sleep(0)
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=5)
    await end_tasks([reading])
    assert done
