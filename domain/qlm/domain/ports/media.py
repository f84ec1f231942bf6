"""Port to the images, sound and video of prompts: too large for messages of the global queue."""

from typing import Final, Protocol

from qlm.domain.ids import RequestId

MEDIA_KEPT_S: Final = 31 * 86_400
"""Time for which the media of a request are kept that never ends: longer than any deadline."""


class MediaReader(Protocol):
    """What an agent asks for before it sends a prompt with media to its engine."""

    async def media(self, id: RequestId) -> bytes | None:
        """Return the media of a request (`formats.media`); None if there are none any more.

        Raises:
            StoreUnavailableError: The store cannot be reached.
        """
        ...


class MediaStore(MediaReader, Protocol):
    """The media of requests that have not ended: an end or a withdrawal drops them."""

    async def put_media(self, id: RequestId, data: bytes) -> bool:
        """Store the media of a request that is about to be queued, for at most `MEDIA_KEPT_S`.

        They are safe when this returns, as far as the store keeps anything.

        Returns:
            False if other media are stored under this id: nothing was changed then.

        Raises:
            StoreUnavailableError: They may not be stored.
        """
        ...

    async def drop_media(self, id: RequestId) -> None:
        """Drop the media of a request that the store does not know.

        Raises:
            StoreUnavailableError: They may still be stored.
        """
        ...
