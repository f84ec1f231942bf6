"""List the request fields and content parts of the installed vLLM; run it with the Python of `.venv-vllm`.

Its output belongs into scripts/reference_pages/vllm_fields.json, of which docs/reference/request-fields.md is
written.
"""

import json

import vllm
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.renderers.chat_utils import MM_PARSER_MAP

fields = {
    "version": vllm.__version__,
    "chat": sorted(ChatCompletionRequest.model_fields),
    "completion": sorted(CompletionRequest.model_fields),
    "response": sorted(ResponsesRequest.model_fields),
    "parts": sorted(MM_PARSER_MAP),
}
print(json.dumps(fields, indent=1))
