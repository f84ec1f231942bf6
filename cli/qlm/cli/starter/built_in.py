"""The models and accelerators that are served where a configuration names none: all are emulated."""

from typing import Any, Final

EMULATED: Final[dict[str, Any]] = {
    "models": [
        {"id": "mistral-7b", "context_tokens": 8192},
        {"id": "llama-3-8b", "context_tokens": 8192},
        {"id": "vicuna-13b", "context_tokens": 4096},
    ],
    "instances": [
        {"id": "a10-0", "accelerator": "A10", "models": ["mistral-7b", "llama-3-8b"]},
        {"id": "a100-0", "accelerator": "A100", "models": ["llama-3-8b", "mistral-7b", "vicuna-13b"]},
        {"id": "a100-1", "accelerator": "A100", "models": ["vicuna-13b", "llama-3-8b", "mistral-7b"]},
    ],
}
