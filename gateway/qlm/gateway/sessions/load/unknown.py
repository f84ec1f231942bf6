"""The error for a request that the store does not know: not yet, or no longer."""

from qlm.domain.ids import RequestId
from qlm.domain.shown import cut
from qlm.gateway.api.errors import ApiError, unavailable
from qlm.gateway.sessions.load.load_watch import LoadWatch


async def unknown(load: LoadWatch, id: RequestId, absent: ApiError) -> ApiError:
    """Return the error for a request that the store does not know.

    The queue may be read meanwhile, and only then make the store complete: look once more before raising it.

    Args:
        load: Knows whether the store is whole.
        id: The request.
        absent: The error if a whole store does not know it.

    Raises:
        StoreUnavailableError: The store is unavailable.
    """
    if await load.rebuilding():
        return unavailable(
            f"request {cut(id)} is not known yet: the shared state is being rebuilt", "state_rebuilding"
        )
    return absent
