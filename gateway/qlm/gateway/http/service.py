"""Models, health, readiness and metrics of a gateway."""

import asyncio
import shutil
from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from qlm.broker.topology import DEAD
from qlm.domain.errors import QlmError
from qlm.domain.request import NS_PER_S
from qlm.gateway.api.fields.openai import Model, ModelList
from qlm.gateway.api.fields.service import Disk, Health, Listeners, Readiness, StoreSettings
from qlm.gateway.core.tokenizer import ServedModel
from qlm.gateway.http.responses import Json, NotReady
from qlm.gateway.keys.missing import missing_keys
from qlm.gateway.observability.metrics import CONTENT_TYPE
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.readiness import readiness
from qlm.gateway.webhooks.warnings import webhook_warnings


async def list_models(gateway: Gateway, request: HttpRequest) -> Json[ModelList]:
    """Answer GET /v1/models: the models that clients may name."""
    return Json({"object": "list", "data": [_model(gateway, served) for served in gateway.models]})


async def get_model(gateway: Gateway, request: HttpRequest) -> Json[Model]:
    """Answer GET /v1/models/{id}: one of these models."""
    return Json(_model(gateway, gateway.models.named(request.path_params["id"])))


async def healthz(gateway: Gateway, request: HttpRequest) -> Json[Health]:
    """Answer GET /healthz: the process answers."""
    return Json({"status": "ok"})


async def readyz(gateway: Gateway, request: HttpRequest) -> Json[Readiness] | NotReady[Readiness]:
    """Answer GET /readyz: whether requests can be accepted: broker and store can write."""
    content = await readiness(gateway)
    return Json(content) if content["status"] == "ok" else NotReady(content)


async def health(gateway: Gateway, request: HttpRequest) -> Json[Readiness] | NotReady[Readiness]:
    """Answer GET /health: the same as /readyz, for clients that ask vLLM."""
    return await readyz(gateway, request)


async def metrics(gateway: Gateway, request: HttpRequest) -> Response:
    """Answer GET /metrics: metrics for Prometheus."""
    gateway.metrics.dead_letters(await _dead_letters(gateway))
    return Response(gateway.metrics.render(), media_type=CONTENT_TYPE)


async def _dead_letters(gateway: Gateway) -> int | None:
    """Return the number of dead letters; None if the queue does not answer."""
    try:
        async with asyncio.timeout(gateway.limits.probe_timeout_s):
            return await gateway.broker.depth(DEAD)
    except (TimeoutError, QlmError):
        return None


def _disk(folder: Path | None) -> Disk | None:
    if folder is None:
        return None
    usage = shutil.disk_usage(folder)
    return {"path": str(folder.absolute()), "free_bytes": usage.free, "total_bytes": usage.total}


def _model(gateway: Gateway, served: ServedModel) -> Model:
    return {
        "id": served.name,
        "object": "model",
        "created": gateway.started_ns // NS_PER_S,
        "owned_by": "qlm",
        "max_model_len": served.spec.context_tokens,
        "parent": served.spec.id if served.adapter else None,
    }


async def get_store(gateway: Gateway, request: HttpRequest) -> Json[StoreSettings]:
    """Answer GET /admin/v1/store: what breaks QLM's promises in the shared state, and the disk it is on."""
    configured = gateway.configured
    keys = await missing_keys(gateway.store, gateway.clock.now_ns(), required=configured.keys_required)
    events = await webhook_warnings(gateway.store, gateway.webhooks)
    warnings = [*await gateway.store.warnings(), *keys, *events]
    return Json({"warnings": warnings, "disk": _disk(configured.data_dir)})


async def get_listeners(gateway: Gateway, request: HttpRequest) -> Json[Listeners]:
    """Answer GET /admin/v1/listeners: which listeners of this gateway are open to anyone."""
    return Json({"warnings": list(gateway.exposures)})
