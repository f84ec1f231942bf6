"""Fields without effect: accepted at values that change nothing, and only at those.

Clients and benchmark tools fill in defaults of features QLM lacks (`best_of: 1`, `suffix: ""`). Any other
value would change the answer, so it is refused by name rather than ignored.
"""

from collections.abc import Mapping
from typing import Any, Final

from qlm.gateway.api.errors import invalid, shown

_SHARED: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "prediction": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": (),
    "truncate_prompt_tokens": (),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "detokenize": (True,),
    "kv_transfer_params": (),
    "cache_salt": (),
    "mm_processor_kwargs": (),
    "routed_experts_prompt_start": (0,),
    "return_token_offsets": (False,),
    "mm_payload": ("tensors",),
}

COMPLETION: Final[Mapping[str, tuple[object, ...]]] = {
    **_SHARED,
    "suffix": ("",),
    "add_special_tokens": (True,),
    "prompt_embeds": (),
}
"""Neutral values of unsupported fields of /v1/completions; null is neutral everywhere."""

CHAT: Final[Mapping[str, tuple[object, ...]]] = {
    **_SHARED,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "echo": (False,),
    "chat_template": (),
}
"""Neutral values of unsupported fields of /v1/chat/completions; null is neutral everywhere."""


def drop_neutral(body: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]]) -> dict[str, Any]:
    """Return a body without nulls and without unsupported fields at their neutral values.

    Raises:
        ApiError: An unsupported field has another value.
    """
    kept = {}
    for name, value in body.items():
        if value is None:
            continue
        if name not in neutral:
            kept[name] = value
        elif not any(type(value) is type(accepted) and value == accepted for accepted in neutral[name]):
            raise invalid(name, _refusal(name, value, neutral[name]), "unsupported_value")
    return kept


def _refusal(name: str, value: object, accepted: tuple[object, ...]) -> str:
    expected = " or ".join(["null", *map(shown, accepted)])
    return f"{name} is {shown(value)}; expected {expected}: anything else is not supported"
