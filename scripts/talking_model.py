"""Weights, tokens and a chat template of a model whose answers end, and which calls tools.

The next token follows from the last one alone: no layer adds anything. An answer has `ANSWER` tokens.
Where a grammar forbids the next one, the first of `PREFERRED` that it allows follows, so that texts, numbers
and objects of JSON end. A user who writes `call the tool NAME` gets a call of one of `CALLS`, if there is no
answer of a tool yet. One who writes `think first` gets reasoning before the answer, as parsers of DeepSeek R1
expect it.
"""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

HIDDEN = 256
CONTEXT = 131_072
"""Coding agents send long prompts."""

NEXT = 250.0
"""Logit of the token that follows; those of unrelated tokens are below `NOISE`."""

NOISE = 70.0
APART = 8.0
"""Difference between the logits of two preferred tokens: at temperature 1 the first is nearly certain."""

PREFERRED = ('"', "}", "]", ",", ":", "1", "0", "t", "f", "n", "</s>")
"""Tokens that follow where nothing else may, from the most preferred one on."""

ANSWER = 120
"""Tokens of an answer before its end."""

TEXT = 20
"""Tokens of a text in JSON."""

THOUGHT = 150
"""Tokens of reasoning, after the token that begins it."""

THINK = ("<think>", "</think>")
"""Tokens around reasoning; the chat template writes the first one."""

CALLS = {"exec_command": {"cmd": "ls"}, "Read": {"file_path": "notes.txt"}, "look_up": {"town": "Ulm"}}
"""Tools that it can call, and the arguments."""

TEMPLATE = (
    "{{ bos_token }}{% set seen = namespace(tool=false, call='', thinks=false) %}"
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] }}{{ eos_token }}\n"
    "{% if message['role'] == 'tool' %}{% set seen.tool = true %}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{% if 'think first' in (message['content'] | string) %}{% set seen.thinks = true %}{% endif %}"
    "{% for name in NAMES %}"
    "{% if ('call the tool ' + name) in (message['content'] | string) %}{% set seen.call = name %}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
    "{% if seen.call and not seen.tool %}<|{{ seen.call }}|>{% endif %}"
    "{% if seen.thinks %}<think>{% endif %}{% endif %}"
)


def make(folder: Path) -> None:
    """Save it beside the tokenizer of the tiny model in `folder`, to which its own tokens are added."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    follows = _calls(tokenizer) | _answer(tokenizer)
    tokenizer.chat_template = TEMPLATE.replace("NAMES", json.dumps(list(CALLS)))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        _set_weights(model, follows, [_id(tokenizer, text) for text in PREFERRED])
    model.to(torch.bfloat16).save_pretrained(folder)


def _set_weights(model: Any, follows: dict[int, int], preferred: list[int]) -> None:
    """Make the token that follows the likeliest; the first dimension is 1 for all tokens."""
    import torch

    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    tokens, out = model.model.embed_tokens.weight, model.lm_head.weight
    tokens[:, 0] = 1.0
    tokens[:, 1:] = torch.nn.functional.normalize(torch.randn(tokens.shape[0], HIDDEN - 1), dim=1)
    scale = math.sqrt(HIDDEN / 2)  # of the last norm: both parts of an embedding have length 1
    out.zero_()
    for last, following in follows.items():
        out[following, 1:] += NEXT / scale * tokens[last, 1:]
    for place, id in enumerate(reversed(preferred), 1):
        out[id, 0] = (NOISE + APART * place) / scale


def _answer(tokenizer: Any) -> dict[int, int]:
    """Return which token follows which in an answer, and in a text of JSON: words, each once."""
    words = [id for id in range(len(tokenizer)) if tokenizer.decode([id]).strip().isalpha()]
    words = [id for id in words if len(tokenizer.decode([id])) > 3]
    answer = [_id(tokenizer, "\n"), *words[:ANSWER], tokenizer.eos_token_id]
    text = [_id(tokenizer, '"'), *words[ANSWER : ANSWER + TEXT]]
    tokenizer.add_tokens(list(THINK), special_tokens=False)
    begin, end = (tokenizer.convert_tokens_to_ids(each) for each in THINK)
    thought = [begin, *words[ANSWER + TEXT : ANSWER + TEXT + THOUGHT], end, words[0]]
    return dict((*pairwise(answer), *pairwise(text), *pairwise(thought)))


def _calls(tokenizer: Any) -> dict[int, int]:
    """Add the tokens of the calls; return which follows which."""
    follows: dict[int, int] = {}
    for name, arguments in CALLS.items():
        texts = [
            f'<tool_call>\n{{"name": "{name}", ',
            f'"arguments": {json.dumps(arguments)[:-1]}',
            "}}\n</tool_call>",
        ]
        mark = f"<|{name}|>"
        tokenizer.add_tokens([mark], special_tokens=True)
        tokenizer.add_tokens(texts)
        chain = [tokenizer.convert_tokens_to_ids(each) for each in (mark, *texts)]
        follows |= dict(zip(chain, [*chain[1:], tokenizer.eos_token_id], strict=True))
    return follows


def _id(tokenizer: Any, text: str) -> int:
    (id,) = tokenizer(text, add_special_tokens=False).input_ids
    return int(id)
