"""The routes of a gateway, by the listener that serves them, and how those without parameters are found."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from qlm.gateway.http import admin, admin_dead_letters, completions, requests, service
from qlm.gateway.http.document import about
from qlm.gateway.http.files import admin as admin_batches
from qlm.gateway.http.files import batches, files
from qlm.gateway.http.keys import admin as admin_keys
from qlm.gateway.http.messages_api import create as messages_api
from qlm.gateway.http.responses_api import create as responses_api
from qlm.gateway.http.responses_api import deleted
from qlm.gateway.http.responses_api import input_items as response_input
from qlm.gateway.http.responses_api import stored as stored_responses
from qlm.gateway.http.vllm import tokens
from qlm.gateway.sessions.gateway import Gateway

Handler = Callable[[Gateway, HttpRequest], Awaitable[Response]]
Routes = Sequence[tuple[str, str, Handler]]
Answer = Callable[[HttpRequest], Awaitable[Response]]
ErrorAnswer = Callable[[HttpRequest, Exception], Awaitable[Response]]

_PARAMETER: Final = "{"

HEALTH_ROUTES: Final[Routes] = (
    ("GET", "/healthz", service.healthz),
    ("GET", "/readyz", service.readyz),
)
"""Of both listeners, for anyone."""

ADMIN_DOCUMENT_ROUTES: Final[Routes] = (
    ("GET", "/openapi.json", about.get_admin_document),
    ("GET", "/docs", about.get_page),
)
"""Of the listener of operators, for anyone: a browser sends no token, and nothing in it is secret."""

PUBLIC_ROUTES: Final[Routes] = (
    ("POST", "/v1/chat/completions", completions.create_chat_completion),
    ("POST", "/v1/completions", completions.create_completion),
    ("POST", "/v1/responses", responses_api.create_response),
    ("GET", "/v1/responses/{id}", stored_responses.get_response),
    ("DELETE", "/v1/responses/{id}", deleted.delete_response),
    ("GET", "/v1/responses/{id}/input_items", response_input.list_input_items),
    ("POST", "/v1/responses/{id}/cancel", stored_responses.cancel_response),
    ("POST", "/v1/messages", messages_api.create_message),
    ("POST", "/v1/messages/count_tokens", messages_api.count_tokens),
    ("GET", "/v1/models", service.list_models),
    ("GET", "/v1/models/{id:path}", service.get_model),
    ("GET", "/v1/requests/{id}/events", requests.resume_stream),
    ("GET", "/v1/requests/{id}", requests.get_request),
    ("POST", "/v1/requests/{id}/cancel", requests.cancel_request),
    ("DELETE", "/v1/requests/{id}", requests.delete_request),
    ("POST", "/v1/files", files.create_file),
    ("GET", "/v1/files", files.list_files),
    ("GET", "/v1/files/{id}", files.get_file),
    ("GET", "/v1/files/{id}/content", files.get_content),
    ("DELETE", "/v1/files/{id}", files.delete_file),
    ("POST", "/v1/batches", batches.create_batch),
    ("GET", "/v1/batches", batches.list_batches),
    ("GET", "/v1/batches/{id}", batches.get_batch),
    ("POST", "/v1/batches/{id}/cancel", batches.cancel_batch),
    ("POST", "/v1/batches/{id}/pause", batches.pause_batch),
    ("POST", "/v1/batches/{id}/resume", batches.resume_batch),
    ("GET", "/health", service.health),
    ("POST", "/tokenize", tokens.tokenize),
    ("POST", "/detokenize", tokens.detokenize),
    ("GET", "/version", about.get_version),
    ("GET", "/openapi.json", about.get_document),
    ("GET", "/docs", about.get_page),
    *HEALTH_ROUTES,
)
"""Of the listener of clients."""

ADMIN_ROUTES: Final[Routes] = (
    ("GET", "/metrics", service.metrics),
    ("GET", "/admin/v1/queues", admin.list_queues),
    ("GET", "/admin/v1/groups", admin.list_groups),
    ("GET", "/admin/v1/requests", admin.list_requests),
    ("GET", "/admin/v1/requests/{id}", admin.get_request_details),
    ("POST", "/admin/v1/requests/{id}/cancel", admin.cancel_any_request),
    ("GET", "/admin/v1/plan", admin.get_plan),
    ("GET", "/admin/v1/forecast", admin.get_forecast),
    ("GET", "/admin/v1/clusters", admin.list_clusters),
    ("GET", "/admin/v1/history", admin.get_history),
    ("GET", "/admin/v1/controller", admin.get_controller),
    ("GET", "/admin/v1/store", service.get_store),
    ("GET", "/admin/v1/listeners", service.get_listeners),
    ("GET", "/admin/v1/instances", admin.list_instances),
    ("POST", "/admin/v1/instances/{id}/drain", admin.drain_instance),
    ("GET", "/admin/v1/dead", admin_dead_letters.list_dead),
    ("DELETE", "/admin/v1/dead", admin_dead_letters.delete_all_dead),
    ("POST", "/admin/v1/dead/retry", admin_dead_letters.retry_all_dead),
    ("POST", "/admin/v1/dead/{id}/retry", admin_dead_letters.retry_dead),
    ("DELETE", "/admin/v1/dead/{id}", admin_dead_letters.delete_dead),
    ("GET", "/admin/v1/batches", admin_batches.list_all_batches),
    ("GET", "/admin/v1/batches/{id}", admin_batches.get_any_batch),
    ("POST", "/admin/v1/batches/{id}/cancel", admin_batches.cancel_any_batch),
    ("POST", "/admin/v1/batches/{id}/pause", admin_batches.pause_any_batch),
    ("POST", "/admin/v1/batches/{id}/resume", admin_batches.resume_any_batch),
    ("POST", "/admin/v1/keys", admin_keys.create_key),
    ("GET", "/admin/v1/keys", admin_keys.list_keys),
    ("DELETE", "/admin/v1/keys/{id}", admin_keys.revoke_key),
)
"""Of the listener of operators, beside those of health."""


class LiteralRoutes:
    """The last middleware: answers calls of routes without parameters, and passes all others on.

    Starlette tries its routes one after the other, and has eight coroutines between its middleware and a
    handler, through which each step of an answer goes. Here it is one.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[tuple[str, str, Answer]],
        errors: Mapping[Any, ErrorAnswer],
    ) -> None:
        """Answer some routes of an application.

        Args:
            app: The application, which has these routes too.
            routes: Method, path and handler; those with parameters are left to the application.
            errors: Answers to errors of handlers, by class. Others are raised.
        """
        self._app = app
        self._answers = {(method, path): answer for method, path, answer in routes if _PARAMETER not in path}
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the call, or pass it on."""
        answer = self._answers.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if answer is None:
            await self._app(scope, receive, send)
            return
        request = HttpRequest(scope, receive, send)
        try:
            response = await answer(request)
        except Exception as error:
            response = await self._error_of(error)(request, error)
        await response(scope, receive, send)

    def _error_of(self, error: Exception) -> ErrorAnswer:
        for kind in type(error).__mro__:
            if (answer := self._errors.get(kind)) is not None:
                return answer
        raise error
