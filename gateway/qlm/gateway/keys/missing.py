"""Warning of a deployment that asks for API keys and has none, such as one whose shared state was emptied."""

from qlm.domain.errors import StoreDataError
from qlm.domain.ports.api_keys import ApiKeys, Scope


async def missing_keys(store: ApiKeys, now_ns: int, *, required: bool) -> tuple[str, ...]:
    """Return a warning if clients need an API key and there is none that is valid, or they are damaged.

    Raises:
        StoreUnavailableError: The keys cannot be read.
    """
    if not required:
        return ()
    try:
        keys = await store.api_keys()
    except StoreDataError as error:
        return (f"http.api_keys is required, and the API keys cannot be read: {error}",)
    if any(Scope.INFER in key.scopes and not key.expired(now_ns) for key in keys):
        return ()
    if keys:
        return (
            f"http.api_keys is required, and each of the {len(keys)} API keys has expired or is for "
            "operators: every call of a client gets 401 or 403; expected keys made with `qlm keys create`",
        )
    return (
        "http.api_keys is required, and the shared state has no API key (a new deployment, or one whose "
        "store was emptied): every call of a client gets 401; expected keys made with `qlm keys create`",
    )
