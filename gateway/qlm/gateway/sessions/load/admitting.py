"""The admission of new requests, each by the load as this gateway knows it, or after a fresh look."""

from typing import Final

from qlm.domain.request import RequestMetadata
from qlm.gateway.api.errors import ApiError, retry_headers, unavailable
from qlm.gateway.core.admission import Admit, Load, Refuse, decide, overload
from qlm.gateway.core.forecast import admission_query
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.sessions.families.beside import Beside
from qlm.gateway.sessions.load.load_watch import LoadWatch

_ERRORS: Final = {400: "invalid_request_error", 429: "rate_limit_error", 503: "server_error"}
"""OpenAI's kinds of error, by the status of a refusal."""


class Admitting:
    """Admits or refuses requests for one gateway."""

    def __init__(self, load: LoadWatch, limits: GatewayLimits) -> None:
        self._load = load
        self._limits = limits

    def check_load(self) -> None:
        """Check what holds for every request.

        Raises:
            ApiError: This gateway has too little processor, or the store is away.
        """
        if (why := self._load.store_away()) is not None:
            # A restart is over in seconds. What lasts for longer, as a Redis that is full, lasts.
            retry_after_s = min(self._load.away_s, self._limits.retry_after_max_s)
            message = f"the shared state is not available: {why}"
            raise unavailable(message, "store_unavailable", retry_after_s)
        if (refusal := overload(self._load.late_s, self._limits)) is not None:
            raise _refused(refusal)

    async def looked_again(self, metadata: RequestMetadata, beside: Beside) -> bool:
        """Look at the queue again if it is full only with what came since the latest look; return whether.

        Some of that may have left the queue. During the look anything may happen to other requests.
        """
        if self._verdict(self._load.load, metadata, beside) == Admit():
            return False
        if self._verdict(self._load.observed, metadata, beside) != Admit():
            return False
        await self._load.look_again()
        return True

    def admit(self, metadata: RequestMetadata, beside: Beside) -> None:
        """Admit a request together with the others of its call.

        Raises:
            ApiError: It is refused, now or for good.
        """
        self.check_load()
        verdict = self._verdict(self._load.load, metadata, beside)
        if isinstance(verdict, Refuse):
            raise _refused(verdict)

    def _verdict(self, load: Load, metadata: RequestMetadata, beside: Beside) -> Admit | Refuse:
        forecast, query = self._load.forecast(), admission_query(metadata)
        tokens = metadata.prompt_tokens * beside.n + beside.prompt_tokens * beside.n
        return decide(load, self._limits, metadata.cls, tokens, forecast, query, 1 + beside.requests)


def _refused(verdict: Refuse) -> ApiError:
    return ApiError(
        status=verdict.status,
        message=verdict.message,
        kind=_ERRORS[verdict.status],
        code=verdict.reason,
        headers=retry_headers(verdict.retry_after_s) | {"x-llm-d-request-dropped-reason": verdict.reason},
    )
