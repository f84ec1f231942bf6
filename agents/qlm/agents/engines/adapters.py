"""LoRA adapters with which `vllm serve` is started."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qlm.domain.errors import InvalidValueError

SLOTS_MAX: Final = 8
"""Most adapters in one batch, unless `--max-loras` says another number: each takes accelerator memory."""

SETTINGS_FILE: Final = "adapter_config.json"

_RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of `--max-lora-rank`."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of a model.

    Attributes:
        name: Its name.
        path: Its folder.
        rank: Its rank.
    """

    name: str
    path: Path
    rank: int


def read_adapter(name: str, path: Path) -> Adapter:
    """Return the adapter in a folder.

    Raises:
        InvalidValueError: Its settings are not there, or have no rank.
    """
    try:
        rank = json.loads((path / SETTINGS_FILE).read_bytes())["r"]
    except (OSError, ValueError, LookupError, TypeError):
        rank = None
    if type(rank) is not int or rank < 1:
        expected = f"a folder with weights and {SETTINGS_FILE}, whose r is the rank"
        raise InvalidValueError(f"the path of the adapter {name}", str(path), expected)
    return Adapter(name, path, rank)


def lora_arguments(adapters: Sequence[Adapter]) -> tuple[str, ...]:
    """Return the arguments of `vllm serve` that make it serve adapters."""
    if not adapters:
        return ()
    rank = max(each.rank for each in adapters)
    modules = (json.dumps({"name": each.name, "path": str(each.path)}) for each in adapters)
    return (
        "--enable-lora",
        "--max-loras",
        str(min(len(adapters), SLOTS_MAX)),
        "--max-lora-rank",
        str(next((each for each in _RANKS if each >= rank), rank)),
        "--lora-modules",
        *modules,
    )
