"""Routes of OpenAI and vLLM for models that QLM does not serve, refused by name."""

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.gateway.api.errors import ApiError

_EMBEDDINGS: Final = "embeddings"
_SCORES: Final = "scores of documents"

UNSUPPORTED: Final[Mapping[str, str]] = {
    "/v1/embeddings": _EMBEDDINGS,
    "/v2/embed": _EMBEDDINGS,
    "/pooling": _EMBEDDINGS,
    "/rerank": _SCORES,
    "/v1/rerank": _SCORES,
    "/v2/rerank": _SCORES,
    "/score": _SCORES,
    "/v1/score": _SCORES,
    "/classify": "classes of texts",
    "/v1/moderations": "moderation",
    "/v1/audio/speech": "speech",
    "/v1/audio/transcriptions": "transcriptions",
    "/v1/audio/translations": "translations of speech",
    "/v1/images/generations": "images",
}
"""What each would answer with."""


async def refuse(request: HttpRequest) -> Response:
    """Refuse a call, with what it would need and where to send it."""
    path = request.url.path
    message = (
        f"{request.method} {path} is not supported: QLM serves models that generate text, and no "
        f"{UNSUPPORTED[path]}; send it to a server of such a model"
    )
    raise ApiError(status=404, message=message, code="endpoint_not_supported")
