"""Arguments of vLLM that `vllm.extra_args` may not hold: without effect behind QLM, or breaking it.

QLM tokenizes prompts and turns tokens into answers itself; vLLM receives and returns token ids. So what
configures vLLM's own OpenAI endpoints would be accepted and ignored. What QLM sets itself would be
overridden, since vLLM takes the last value of an argument.
"""

from collections.abc import Mapping, Sequence
from typing import Final

_OWN_TEXT: Final = "none: gateways turn conversations into tokens, by the template in the model's folder"
_RENDER: Final = "it in render.extra_args of the model: its render tier parses answers"
_REASONING: Final = f"{_RENDER}, and its engines get it from there (with render.url: render.reasoning_parser)"
_BATCHING: Final = "the key batching of an instance instead"
_ADAPTERS: Final = "the key adapters of the model instead"
_LOOPBACK: Final = "none: agents call engines on loopback, without credentials"

REFUSED: Final[Mapping[str, str]] = {
    "--max-num-batched-tokens": "the key batched_tokens_max instead",
    "--max-num-seqs": "the key seqs_max instead",
    "--max-model-len": "the key context_tokens of the model instead",
    "--served-model-name": "the key id of the model instead",
    "--scheduler-cls": _BATCHING,
    "--scheduling-policy": _BATCHING,
    "--host": _LOOPBACK,
    "--port": "none: agents choose a free port at each start",
    "--generation-config": "the key generation_config of the model instead",
    "--override-generation-config": "the key generation_config of the model instead, a folder with that file",
    "--chat-template": _OWN_TEXT,
    "--chat-template-content-format": _OWN_TEXT,
    "--default-chat-template-kwargs": _OWN_TEXT,
    "--trust-request-chat-template": _OWN_TEXT,
    "--response-role": _OWN_TEXT,
    "--tokenizer": "none: gateways take the tokenizer in the model's folder",
    "--tokenizer-mode": "none: gateways take the tokenizer in the model's folder",
    "--enable-auto-tool-choice": _RENDER,
    "--exclude-tools-when-tool-choice-none": _RENDER,
    "--tool-call-parser": _RENDER,
    "--tool-parser-plugin": _RENDER,
    "--tool-strict-level": _RENDER,
    "--tool-server": _RENDER,
    "--reasoning-parser": _REASONING,
    "--reasoning-parser-plugin": _REASONING,
    "--enable-lora": _ADAPTERS,
    "--lora-modules": _ADAPTERS,
    "--return-tokens-as-token-ids": "none: gateways return no log probabilities",
    "--enable-force-include-usage": "none: clients ask for the usage of a stream by stream_options",
    "--api-key": _LOOPBACK,
    "--ssl-keyfile": _LOOPBACK,
    "--ssl-certfile": _LOOPBACK,
    "--uds": _LOOPBACK,
    "--root-path": _LOOPBACK,
    "--config": "its options one by one",
}
"""What to expect in place of each."""


def check_extra_args(words: Sequence[str]) -> None:
    """Refuse arguments that would not do what they say.

    Raises:
        ValueError: There is one; the message names it and what to do instead.
    """
    for word in words:
        if word.startswith("--") and (flag := _refused(flag_of(word))) is not None:
            short = "" if flag == flag_of(word) else f" (short for {flag})"
            raise ValueError(f"has {word!r}{short} in extra_args; expected {REFUSED[flag]}")


def _refused(flag: str) -> str | None:
    """Return the refused flag that vLLM reads it as; one that may be short for several, it refuses itself."""
    if flag in REFUSED:
        return flag
    meant = [each for each in REFUSED if each.startswith(flag)]
    return meant[0] if len(meant) == 1 else None


def flag_of(word: str) -> str:
    """Return the flag of an argument; vLLM reads `--a_b`, `--a-b=1` and `--a-b.c` as `--a-b`."""
    return word.partition("=")[0].partition(".")[0].replace("_", "-")
