"""Tokens of a rendered prompt that stand for media."""

from typing import Any

import pytest

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.media import Media, Placeholder, decode_media, encode_media, media_digest
from qlm.gateway.api.errors import ApiError
from qlm.gateway.render.media.placeholders import media_of

PARTS = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
IMAGE, MARK, TEXT = 9, 8, 1


def answer(**places: list[tuple[int, int]]) -> dict[str, Any]:
    ranges = {
        modality: [{"offset": offset, "length": length} for offset, length in items]
        for modality, items in places.items()
    }
    return {"features": {"mm_placeholders": ranges, "mm_hashes": {}, "kwargs_data": None}}


def places(prompt: list[int], given: dict[str, Any], parts: Any = PARTS) -> dict[str, list[Placeholder]]:
    return {
        name: list(each)
        for name, each in decode_media(media_of(given, tuple(prompt), parts)).placeholders.items()
    }


def test_a_run_of_equal_tokens_is_the_place() -> None:
    prompt = [TEXT, IMAGE, IMAGE, IMAGE, TEXT]
    assert places(prompt, answer(image=[(1, 3)])) == {"image": [Placeholder(1, 3, 3)]}


def test_marks_around_it_are_left_out() -> None:
    prompt = [TEXT, MARK, MARK, IMAGE, IMAGE, IMAGE, MARK, TEXT]
    assert places(prompt, answer(image=[(1, 6)])) == {"image": [Placeholder(3, 3, 6)]}


def test_items_of_a_modality_are_in_the_order_of_the_prompt() -> None:
    prompt = [IMAGE, TEXT, IMAGE, IMAGE, 5]
    given = answer(image=[(2, 2), (0, 1)], audio=[(4, 1)])
    assert places(prompt, given, PARTS * 3) == {
        "image": [Placeholder(0, 1, 1), Placeholder(2, 2, 2)],
        "audio": [Placeholder(4, 1, 1)],
    }


@pytest.mark.parametrize(
    "prompt",
    [
        [IMAGE, IMAGE, MARK, IMAGE, IMAGE, MARK],
        [IMAGE, MARK],
        [MARK, IMAGE, MARK],
        [IMAGE, 7, IMAGE, 7, IMAGE, MARK],
        [MARK, MARK, IMAGE, IMAGE],
    ],
)
def test_where_marks_may_be_meant_the_request_is_refused(prompt: list[int]) -> None:
    with pytest.raises(ApiError, match="marks row by row") as caught:
        places(prompt, answer(image=[(0, len(prompt))]))
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize("given", [
        {}, {"features": None}, answer(), answer(image=[(0, 1), (1, 1)]),
        answer(image=[(0, 0)]), answer(image=[(1, 2)]), answer(image=[(5, 1)]),
    ],
)  # fmt: skip
def test_an_answer_without_the_places_is_a_defect_of_the_tier(given: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        places([IMAGE, IMAGE], given)
    assert (caught.value.status, caught.value.code) == (500, "render_failed")


def test_media_are_encoded_and_decoded() -> None:
    media = Media(parts=PARTS, placeholders={"image": [Placeholder(3, 4, 5)]})
    data = encode_media(media)
    assert decode_media(data) == media
    assert media_digest(data) == media_digest(encode_media(decode_media(data)))
    assert len(media_digest(data)) == 32


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 1, "parts": []}'])
def test_damaged_media_cannot_be_decoded(data: bytes) -> None:
    with pytest.raises(UndecodableDataError):
        decode_media(data)
