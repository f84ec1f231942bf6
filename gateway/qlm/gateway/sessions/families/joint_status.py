"""The state of several answers to one call as that of one request."""

from collections.abc import Sequence
from typing import cast

from qlm.gateway.api.fields.requests import RequestAnswer, RequestStatus


def joint_status(
    shown: RequestStatus, members: Sequence[RequestStatus], prompts: Sequence[int]
) -> RequestAnswer:
    """Return the state of all answers: late if one is, begun with the first, and ended with the last.

    Args:
        shown: The state and the end of all of them.
        members: The state of each.
        prompts: Places among them of one answer to each prompt: each prompt counts once, as in `usage`.
    """
    joint = cast("RequestAnswer", dict(shown))
    joint["prompt_tokens"] = sum(members[place]["prompt_tokens"] for place in prompts)
    joint["output_tokens"] = sum(each["output_tokens"] for each in members)
    joint["cancel_requested"] = any(each["cancel_requested"] for each in members)
    first = [each["first_token_s"] for each in members if each["first_token_s"] is not None]
    joint["first_token_s"] = min(first, default=None)
    ends = [each["ended_s"] for each in members if each["ended_s"] is not None]
    joint["ended_s"] = max(ends) if len(ends) == len(members) else None
    if shown["outcome"] is None or shown["outcome"].ok:
        met = [each["met"] for each in members]
        joint["met"] = False if False in met else None if None in met else True
        late = [each["late_by_s"] for each in members if each["late_by_s"] is not None]
        joint["late_by_s"] = None if joint["met"] is None else max(late, default=None)
    return joint
