"""Errors about fields of a chat, in the words of the API whose body became that chat."""

import re
from collections.abc import Mapping
from dataclasses import replace

from qlm.gateway.api.errors import ApiError


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return an error that calls fields of a chat by other names."""
    if error.param is None:
        return error
    first = next(iter(re.findall(r"^\w*", error.param)), "")
    if first not in names:
        return error
    rest = error.param.removeprefix(first)
    of_chat = "|".join(map(re.escape, names))
    message = re.sub(rf"\b({of_chat})\b", lambda found: names[found[0]], error.message)
    return replace(error, message=message, param=names[first] + rest)
