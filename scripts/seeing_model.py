"""A tiny Idefics3 with random weights around a Llama: its answers depend on the images in its prompt.

Of the models of vLLM 0.32 it needs nothing that the CPU build lacks. Its prompts have marks around images.
"""

from pathlib import Path
from typing import Any

IMAGE = "<image>"
MARKS = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
"""Further tokens of its processor."""

SIDE = 56
"""Width and height of an image for the encoder, pixels; patches have a quarter of it."""

SCALE = 2
"""Patches in a row that become one token."""

SPREAD = 0.2
"""Ten times the usual one, as of the tiny Llama: rounding decides nothing."""

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endif %}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def make(folder: Path, text: dict[str, Any], seed: int) -> None:
    """Save it beside the tokenizer of the tiny model in `folder`, to which the tokens of images are added.

    Args:
        folder: Where the tokenizer is.
        text: Configuration of the Llama, without its vocabulary.
        seed: Decides the weights.
    """
    import torch
    from transformers import (
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
    )
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([IMAGE, *MARKS], special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    end = text["eos_token_id"]
    config = Idefics3Config(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": SIDE,
            "patch_size": SIDE // 4,
            "initializer_range": SPREAD,
        },
        text_config={**text, "model_type": "llama", "vocab_size": len(tokenizer), "pad_token_id": end},
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        scale_factor=SCALE,
        pad_token_id=end,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    Idefics3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)
    size = {"longest_edge": SIDE}
    images = Idefics3ImageProcessorPil(size=size, max_image_size=size, do_image_splitting=False)
    tokens = (4 // SCALE) ** 2
    Idefics3Processor(images, tokenizer, image_seq_len=tokens, chat_template=TEMPLATE).save_pretrained(folder)
