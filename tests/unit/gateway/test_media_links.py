"""Media of conversations: fetched from allowed addresses alone and within limits, in place of their URLs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import pytest

from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.schema import parse_chat
from qlm.gateway.render.media.inlining import Inlined, inlined
from qlm.gateway.render.media.limits import MediaLimits
from qlm.gateway.render.media.links import Links
from support.pictures import GREEN, RED, data_url, served

HERE = [ip_network("127.0.0.1/32")]
FILES = {"red": RED, "green": GREEN, "large": bytes(5000)}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(FILES) as url:
        yield url


@asynccontextmanager
async def fetching(networks: Any = HERE, **limits: Any) -> AsyncIterator[Links]:
    links = Links(MediaLimits(**limits), networks)
    try:
        yield links
    finally:
        await links.close()


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def inline(links: Links, *parts: dict[str, Any]) -> Inlined:
    user: dict[str, Any] = {"role": "user", "content": list(parts)}
    plain = {"messages": [{"role": "system", "content": "a"}, user]}
    return await inlined(parse_chat(plain), plain["messages"], links)


async def refusal(links: Links, *parts: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await inline(links, *parts)
    assert caught.value.status == 400
    return caught.value


async def test_media_take_the_place_of_their_urls_in_order(site: str) -> None:
    text = {"type": "text", "text": "b"}
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    async with fetching() as links:
        given = image(f"{site}/red") | {"cache_control": {}}
        found = await inline(links, given, text, image(data_url(GREEN)), sound, image(f"{site}/to/green"))
    red, green = image(data_url(RED)), image(data_url(GREEN))
    assert found.parts == [red, green, sound, green]
    assert found.messages[1]["content"] == [red, text, green, sound, green]
    assert given["image_url"] == {"url": f"{site}/red"}, "what the client sent stays as it is"


async def test_text_alone_stays_as_it_is() -> None:
    async with fetching() as links:
        found = await inline(links, {"type": "text", "text": "b"})
    assert (found.parts, len(found.messages)) == ((), 2)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433"])
async def test_addresses_that_are_not_public_are_not_connected_to(site: str, host: str) -> None:
    async with fetching(networks=()) as links:
        error = await refusal(links, image(f"http://{host}:{site.rpartition(':')[2]}/red"))
    assert (error.param, error.code) == ("messages[1].content[0].image_url.url", "media_unavailable")


async def test_a_redirect_leads_to_allowed_addresses_alone() -> None:
    with served({}) as other, served({}, redirects={"away": other.replace("127.0.0.1", "127.0.0.2")}) as site:
        async with fetching() as links:
            error = await refusal(links, image(f"{site}/away"))
    assert "127.0.0.2 is not public, and not in media.allowed_networks" in error.message


async def test_what_cannot_be_fetched_says_why(site: str) -> None:
    async with fetching() as links:
        missing = await refusal(links, image(f"{site}/none"))
        nowhere = await refusal(links, image("http://127.0.0.1:1/a"))
        unknown = await refusal(links, image("http://name.invalid/a"))
    assert "it answered 404" in missing.message
    assert {missing.code, nowhere.code, unknown.code} == {"media_unavailable"}


async def test_a_server_that_hangs_costs_the_time_limit() -> None:
    finished = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await finished.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, fetching(timeout_s=0.1) as links:
        error = await refusal(links, image(f"http://127.0.0.1:{port}/a"), image(data_url(RED)))
        finished.set()
    assert "it took more than 0.1 s" in error.message


async def test_media_are_limited_together(site: str) -> None:
    size = len(RED)
    async with fetching(bytes_max=1024, items_max=3) as links:
        fitting = image(data_url(bytes([1]) * (1024 - size)))
        assert (await inline(links, fitting, image(f"{site}/red"))).parts
        errors = [
            await refusal(links, image(data_url(bytes([1]) * 1025))),
            await refusal(links, image(data_url(bytes([1]) * (1025 - size))), image(f"{site}/red")),
            await refusal(links, image(f"{site}/large")),
        ]
        many = await refusal(links, *[image(data_url(RED))] * 4)
    assert [error.code for error in errors] == ["media_too_large"] * 3
    assert "at most 1024 (media.bytes_max)" in errors[0].message
    assert "has 4 media; expected at most 3 (media.items_max)" in many.message


async def test_each_of_several_answers_counts(site: str) -> None:
    user = {"role": "user", "content": [image(data_url(RED)), image(f"{site}/green")]}
    size = len(RED) + len(GREEN)
    async with fetching(bytes_max=max(1024, 3 * size)) as links:
        for n, fits in ((3, True), (40, False)):
            plain: dict[str, Any] = {"messages": [user], "n": n}
            try:
                found = await inlined(parse_chat(plain), plain["messages"], links)
            except ApiError as error:
                assert (fits, error.code) == (False, "media_too_large")
                assert f"for {n} answers together" in error.message
            else:
                assert (fits, len(found.parts)) == (True, 2)


async def test_media_that_are_fetched_are_limited_while_they_come() -> None:
    with served({"large": bytes(900_000)}) as place:
        async with fetching(bytes_max=1_000_000) as links:
            error = await refusal(links, *[image(f"{place}/large")] * 50)
    assert error.code == "media_too_large"


async def test_the_scheme_of_a_url_may_be_in_capitals(site: str) -> None:
    async with fetching() as links:
        found = await inline(
            links, image(site.replace("http", "HTTP") + "/red"), image("DATA" + data_url(RED)[4:])
        )
    assert found.parts == [image(data_url(RED))] * 2


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;charset=utf-8;base64,AAAA",
        "ftp://example.com/a", "file:///etc/passwd", "/etc/passwd",
        "data:image/png,raw", "data:image/png;base64",
        "data:image/png;base64,", "data:image/png;base64,%%%%", "data:image/png;base64,AAA",
        "https://" + "a" * 9000,
    ],
)  # fmt: skip
async def test_other_urls_are_refused_unfetched(url: str) -> None:
    async with fetching() as links:
        error = await refusal(links, image(url))
    assert error.param == "messages[1].content[0].image_url.url"


async def test_without_fetching_urls_are_refused(site: str) -> None:
    async with fetching(fetch=False) as links:
        assert (await inline(links, image(data_url(RED)))).parts
        assert "media.fetch is off" in (await refusal(links, image(f"{site}/red"))).message
