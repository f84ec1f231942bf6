"""Warning of a deployment that asks for API keys and has none, such as one whose shared state was emptied."""

from qlm.domain.ports.api_keys import ApiKeys


async def missing_keys(store: ApiKeys, *, required: bool) -> tuple[str, ...]:
    """Return a warning if clients need an API key and there is none.

    Raises:
        StoreUnavailableError: The keys cannot be read.
    """
    if not required or await store.api_keys():
        return ()
    return (
        "http.api_keys is required, and the shared state has no API key (a new deployment, or one whose "
        "store was emptied): every call of a client gets 401; expected keys made with `qlm keys create`",
    )
