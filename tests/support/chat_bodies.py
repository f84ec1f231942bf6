"""Bodies of chats: a small one, and how a changed one is refused."""

from typing import Any, Final

import pytest

from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.schema import parse_chat

CHAT: Final[dict[str, Any]] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def refusal_of_chat(**fields: object) -> ApiError:
    """Return the error of a chat with these fields."""
    with pytest.raises(ApiError) as caught:
        parse_chat(CHAT | fields)
    return caught.value
