"""Arguments of vLLM for KV cache in host memory."""

import json
from typing import Any, Final

_POLICY: Final = {
    "eviction_policy": "EndedFirst",
    "cache_policy_module_path": "qlm.agents.vllm_offloading.ended_first",
}


def offloading(size_bytes: int, *, ended_first: bool = False) -> str:
    """Return the `--kv-transfer-config` of vLLM 0.32 for KV blocks in host memory.

    Args:
        size_bytes: Size of all of them.
        ended_first: Drop those of ended requests first (`ended_first`), not those used longest ago.
    """
    # Two settings differ from the connector's defaults: it would offload prompts only, so that the output of
    # a resumed request would be recomputed, and a failed load would fail its request.
    extra: dict[str, Any] = {"cpu_bytes_to_use": size_bytes, "offload_prompt_only": False}
    return json.dumps(
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra | _POLICY if ended_first else extra,
        }
    )
