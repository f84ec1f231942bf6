"""What the gateway says of itself: models, health, readiness, metrics."""

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.broker.topology import DEAD
from qlm.domain.errors import QlmError
from qlm.gateway.answers import Json, NotReady
from qlm.gateway.fields.openai import Model, ModelList
from qlm.gateway.fields.service import Health, Readiness
from qlm.gateway.gateway import Gateway
from qlm.gateway.metrics import CONTENT_TYPE
from qlm.gateway.readiness import readiness
from qlm.gateway.tokenizer import ServedModel


async def list_models(gateway: Gateway, request: HttpRequest) -> Json[ModelList]:
    """Answer GET /v1/models: the models that clients may name."""
    return Json({"object": "list", "data": [_model(served) for served in gateway.models.values()]})


async def get_model(gateway: Gateway, request: HttpRequest) -> Json[Model]:
    """Answer GET /v1/models/{id}: one of them."""
    return Json(_model(gateway.served(request.path_params["id"])))


async def healthz(gateway: Gateway, request: HttpRequest) -> Json[Health]:
    """Answer GET /healthz: the process answers."""
    return Json({"status": "ok"})


async def readyz(gateway: Gateway, request: HttpRequest) -> Json[Readiness] | NotReady[Readiness]:
    """Answer GET /readyz: broker and store can be reached, so requests can be accepted."""
    content = await readiness(gateway)
    return Json(content) if content["status"] == "ok" else NotReady(content)


async def metrics(gateway: Gateway, request: HttpRequest) -> Response:
    """Answer GET /metrics: what Prometheus scrapes."""
    gateway.metrics.dead_letters(await _dead_letters(gateway))
    return Response(gateway.metrics.render(), media_type=CONTENT_TYPE)


async def _dead_letters(gateway: Gateway) -> int | None:
    """Count dead letters; None if the queue does not answer."""
    try:
        async with asyncio.timeout(gateway.limits.probe_timeout_s):
            return await gateway.broker.depth(DEAD)
    except (TimeoutError, QlmError):
        return None


def _model(served: ServedModel) -> Model:
    return {
        "id": served.spec.id,
        "object": "model",
        "created": 0,
        "owned_by": "qlm",
        "max_model_len": served.spec.context_tokens,
    }
