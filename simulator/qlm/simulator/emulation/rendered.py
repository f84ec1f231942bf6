"""What an emulated model makes of a conversation: token ids, a grammar, and the places of media."""

import secrets
from collections.abc import Mapping
from typing import Any

from qlm.simulator.emulation.media import features
from qlm.simulator.emulation.render_parsing import constraint_of, prompt_text
from qlm.simulator.emulation.vllm_requests import VllmApiError


def rendered(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of `/v1/chat/completions/render`.

    Raises:
        VllmApiError: The body cannot be rendered.
    """
    try:
        constraint, prompt = constraint_of(body), prompt_text(body)
        token_ids = list(prompt.encode())
        media = features(body["messages"], token_ids, tensors=body.get("mm_payload") != "none")
    except (LookupError, TypeError, AttributeError) as error:
        raise VllmApiError(400, f"The request cannot be rendered: {error!r}.") from error
    return {
        "request_id": f"chatcmpl-{secrets.token_hex(8)}",
        "model": body.get("model"),
        "token_ids": token_ids,
        "features": media,
        "sampling_params": {"structured_outputs": constraint},
    }
