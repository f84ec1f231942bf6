"""Handlers of the live page, and their routes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.published import PublishedKind
from qlm.domain.shown import cut
from qlm.gateway.api.errors import STOPPING, ApiError, unavailable
from qlm.gateway.api.fields.live import LiveExplanation
from qlm.gateway.api.fields.queues import GroupFields
from qlm.gateway.api.ids import request_id
from qlm.gateway.http.admin import configured_instances, request_details
from qlm.gateway.http.page.files import PAGE, page_files
from qlm.gateway.http.responses import Json, StreamAnswer
from qlm.gateway.live.explaining import Explain, Question
from qlm.gateway.live.feed import LiveFeed
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.operators.queue_listing import group_fields, holders_of

VIEWERS_MAX: Final = 100
"""Open viewers of a gateway; beyond, 503."""

Handler = Callable[[HttpRequest], Awaitable[Response]]


class LivePage:
    """The live page of one gateway.

    Attributes:
        feed: What its viewers receive.
    """

    def __init__(self, gateway: Gateway, explain: Explain) -> None:
        """Serve nothing yet.

        Args:
            gateway: The gateway.
            explain: Puts the place of a group or request into words.
        """
        self._gateway = gateway
        self._explain = explain
        self.feed = LiveFeed(gateway)
        self._one = asyncio.Lock()

    def routes(self) -> Sequence[Route]:
        """Return the routes: those of files, and those of data, which are for operators only."""
        files = [Route(path, partial(self.get_file, path), methods=["GET"]) for path in page_files()]
        return [
            *files,
            Route(f"{PAGE}/", self.to_page, methods=["GET"]),
            Route(f"{PAGE}/events", self.get_events, methods=["GET"]),
            Route(f"{PAGE}/explanation", self.get_explanation, methods=["GET"]),
        ]

    async def to_page(self, request: HttpRequest) -> Response:
        """Answer GET /ui/: a redirect to the page, whose addresses are relative."""
        return RedirectResponse("../ui", status_code=308)

    async def get_file(self, path: str, request: HttpRequest) -> Response:
        """Answer GET /ui and its files: 304 if the browser has it already."""
        file = page_files()[path]
        if file.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=file.headers)
        return Response(file.content, headers=file.headers)

    async def get_events(self, request: HttpRequest) -> StreamAnswer:
        """Answer GET /ui/events: the events of the page, until the viewer leaves or the gateway stops."""
        if self.feed.stopping:
            raise unavailable("this gateway is stopping; try again", STOPPING)
        if self.feed.viewers >= VIEWERS_MAX:
            raise unavailable(f"{VIEWERS_MAX} pages are open already", "too_many_viewers")
        viewer = self.feed.viewer()
        return StreamAnswer(viewer, disconnected=viewer.close, closed=viewer.leave, headers={})

    async def get_explanation(self, request: HttpRequest) -> Json[LiveExplanation]:
        """Answer GET /ui/explanation?of=: why a group or request is where it is; one at a time."""
        name = request.query_params.get("of", "").strip()
        async with self._one:
            question = await self._question(name)
            try:
                parts = await self._explain(question)
            except InvalidValueError as error:
                message = f"the live plan cannot be explained: {error}"
                raise unavailable(message, "plan_not_explained") from error
        if parts is None:
            message = f"no group of the plan and no known request is named {cut(name)!r}"
            raise ApiError(status=404, message=message, param="of", code="not_found")
        return Json({"name": name, "parts": parts, "request": question["request"]})

    async def _question(self, name: str) -> Question:
        gateway = self._gateway
        plan = await gateway.store.published(PublishedKind.PLAN)
        request = await request_details(gateway, request_id(name)) if name else None
        classmates: Sequence[GroupFields] = ()
        if request is not None and request["waits"] is not None:
            view = await gateway.store.view()
            groups = [
                group for each in view.classes if each.cls.queue == request["queue"] for group in each.groups
            ]
            holders = holders_of(view)
            classmates = [group_fields(each, holders) for each in sorted(groups, key=lambda each: each.seq)]
        return {
            "name": name,
            "plan": None if plan is None else plan.decode(),
            "request": request,
            "classmates": classmates,
            "configured": configured_instances(gateway),
            "now_s": gateway.clock.now_ns() / 1e9,
        }
