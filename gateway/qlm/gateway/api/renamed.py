"""Errors about fields of a chat, in the words of the API whose body became that chat."""

import re
from collections.abc import Mapping
from dataclasses import replace

from qlm.gateway.api.errors import ApiError


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return an error that calls fields of a chat by other names."""
    if error.param is None:
        return error
    first, rest = re.fullmatch(r"(\w*)(.*)", error.param, re.DOTALL).groups()  # type: ignore[union-attr]
    if first not in names:
        return error
    of_chat = "|".join(map(re.escape, names))
    message = re.sub(rf"\b({of_chat})\b", lambda found: names[found[0]], error.message)
    return replace(error, message=message, param=names[first] + rest)
