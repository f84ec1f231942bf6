"""LoRA adapters of the tiny model, with random weights that change its answers."""

import json
import random
import struct
from array import array
from pathlib import Path
from typing import Final

RANK: Final = 4
_TARGETS: Final = ("q_proj", "o_proj")


def tiny_adapter(folder: Path, model: Path, seed: int) -> Path:
    """Write an adapter of a Llama into a new folder, in the files of PEFT; return the folder.

    Args:
        folder: Where.
        model: Folder of the model.
        seed: Adapters of different seeds answer differently.
    """
    shape = json.loads((model / "config.json").read_text("utf-8"))
    hidden, chance = shape["hidden_size"], random.Random(seed)
    sizes: dict[str, tuple[int, int]] = {}
    for layer in range(shape["num_hidden_layers"]):
        for target in _TARGETS:
            module = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            sizes[f"{module}.lora_A.weight"] = (RANK, hidden)
            sizes[f"{module}.lora_B.weight"] = (hidden, RANK)
    header, weights = {}, array("f")
    for name, (rows, columns) in sizes.items():
        begin = len(weights) * weights.itemsize
        weights.extend(chance.gauss(0.0, 0.5) for _ in range(rows * columns))
        end = len(weights) * weights.itemsize
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, end]}
    folder.mkdir(parents=True)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": 4 * RANK,
        "target_modules": list(_TARGETS),
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
    head = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(
        struct.pack("<Q", len(head)) + head + weights.tobytes()
    )
    return folder
