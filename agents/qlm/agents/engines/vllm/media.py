"""Images, sound and video for `/inference/v1/generate` of vLLM 0.32.

The engine itself makes tensors of them (`/v1/chat/completions/render`), as it does for a chat. Tensors are
tens of times as large as an image, so they exist only between these two calls. The gateway's render tier has
found out where they belong in the prompt.

Measured on vLLM 0.32.0: with features the answer is that of the same chat; the output so far may follow the
prompt, so such an answer resumes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from qlm.domain.errors import EngineGarbledError, EngineRefusedError, UndecodableDataError
from qlm.domain.formats.media import Placeholder, decode_media

RENDER: Final = "/v1/chat/completions/render"


def render_body(media: bytes, model: str) -> bytes:
    """Return the body of the call that makes tensors of encoded media.

    Raises:
        EngineRefusedError: They cannot be read.
    """
    try:
        parts = decode_media(media).parts
    except UndecodableDataError as error:
        raise EngineRefusedError(str(error)) from error
    messages = [{"role": "user", "content": parts}]
    return orjson.dumps({"model": model, "messages": messages, "max_tokens": 1})


def features_of(media: bytes, answer: bytes) -> bytes:
    """Return `features`, as JSON text, of encoded media and what the engine has answered to `render_body`.

    Raises:
        EngineGarbledError: The answer cannot be read.
        EngineRefusedError: The engine makes other tokens of the media than the render tier did.
    """
    wanted = decode_media(media).placeholders
    try:
        made: Mapping[str, Any] = orjson.loads(answer)["features"]
        lengths = {
            modality: [int(each["length"]) for each in sorted(items, key=lambda each: int(each["offset"]))]
            for modality, items in made["mm_placeholders"].items()
        }
        features = {
            "mm_hashes": made["mm_hashes"],
            "mm_placeholders": {modality: _ranges(items) for modality, items in wanted.items()},
            "kwargs_data": made["kwargs_data"],
        }
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EngineGarbledError(f"the engine's features of the media cannot be read: {error!r}") from error
    expected = {modality: [each.whole for each in items] for modality, items in wanted.items()}
    if lengths != expected:
        message = f"the engine makes {lengths} tokens of the media, the render tier {expected}"
        raise EngineRefusedError(f"{message}: start both with the same model and options")
    return orjson.dumps(features)


def _ranges(items: Sequence[Placeholder]) -> list[dict[str, int]]:
    return [{"offset": each.offset, "length": each.length} for each in items]
