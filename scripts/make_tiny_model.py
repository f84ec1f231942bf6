"""Make a tiny Llama with random weights, its own tokenizer and a chat template, without any download.

Run it with the Python of .venv-vllm:  .venv-vllm/bin/python -m scripts.make_tiny_model DIR [--seed N]

With --kind talks its weights are not random (`talking_model`): its answers end, and it calls tools. With
--kind sees it takes images (`seeing_model`).

The same seed gives the same files. Two seeds give two models that answer differently and share a tokenizer.
A folder that already holds the wanted model is left alone.
"""

import argparse
import hashlib
import os
import random
import shutil
import tempfile
from pathlib import Path

from scripts import seeing_model, talking_model

VOCABULARY = 2000
SPECIAL_TOKENS = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

STEMS = """
able accept account act add agent allow answer appear apply arrive ask assign bad base batch become begin
book bound break bring build busy call carry case change chat check choose city class clear client close
cold come cost count cover day deadline decide depend differ do down draw drive each early eat end engine
enough estimate even event every fair fall fast few field figure file fill find first fly follow forget form
free full gate get give glad go good great group grow half hand happen head hear help hold hope hour house
idea ill instance just keep kind know land large last late lead learn least leave less let life light limit
line list little live load long look lose low make many mark matter mean measure meet memory middle mind
miss model morning most move much name near need never new next night note number object observe offer often
old open order other own page part pass pay people place plan play point prompt pull push put queue quick
quiet quite rank rate read ready real reason record repeat reply request rest return right river road run
same say sea second see send serve set short show side sign simple sit sleep slow small some soon sort speak
stand start state stay step stop story stream strong such sure swap table take talk tell tenant thing think
time token top touch trace true try turn under understand unit use value very virtual wait walk want warm
watch water way week well wide will win wish word work world write year yes young
"""
ENDINGS = ["", "", "", "s", "ed", "ing", "er", "ly", "ness", "ment"]
SMALL_WORDS = "the a of to and in is that it was for on are as with at be this have from or one by not but"


def corpus(lines: int = 6000) -> list[str]:
    """Write plain sentences out of English stems and endings: enough different words for the vocabulary."""
    chance = random.Random(20)
    stems = STEMS.split()
    chance.shuffle(stems)
    weights = [1.0 / rank for rank in range(1, len(stems) + 1)]  # as words of a language: few are frequent
    text = []
    for _ in range(lines):
        words = []
        for stem in chance.choices(stems, weights, k=chance.randint(4, 12)):
            words += [chance.choice(SMALL_WORDS.split()), stem + chance.choice(ENDINGS)]
        text.append(" ".join(words).capitalize() + chance.choice([".", ".", "?", "!", ", 1234567890"]))
    return text


def make_tokenizer(folder: Path) -> None:
    """Train a byte-level BPE tokenizer on `corpus` and save it with the chat template."""
    # Imported late: these take seconds, and most calls find the model already made.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise RuntimeError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, expected {VOCABULARY}")
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)


LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    # Ten times the usual spread: at the usual one the best two tokens are nearly tied, so rounding
    # decides, and 200 greedy tokens hold 9 different ones; here they hold about 185.
    "initializer_range": 0.2,
}


def make_weights(folder: Path, seed: int) -> None:
    """Save a four-layer Llama with grouped-query attention and random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **LLAMA))
    model.to(torch.bfloat16).save_pretrained(folder)


def main() -> None:
    """Make the model unless it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="where the model goes; replaced if it differs"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides the weights (default 0)")
    parser.add_argument(
        "--kind",
        choices=["plain", "talks", "sees"],
        default="plain",
        help="plain: endless answers; talks: answers end, and it calls tools; sees: it takes images",
    )
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    options = f" seed {arguments.seed} {arguments.kind}\n"
    modules = (__file__, talking_model.__file__, seeing_model.__file__)
    sources = b"".join(Path(file).read_bytes() for file in modules)
    made_by = hashlib.sha256(sources).hexdigest() + options
    stamp = folder / ".made-by"
    if stamp.exists() and stamp.read_text() == made_by:
        return

    folder.parent.mkdir(parents=True, exist_ok=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make_tokenizer(fresh)
        if arguments.kind == "talks":
            talking_model.make(fresh)
        elif arguments.kind == "sees":
            seeing_model.make(fresh, LLAMA, arguments.seed)
        else:
            make_weights(fresh, arguments.seed)
        (fresh / stamp.name).write_text(made_by)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.chmod(0o755)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    print(f"made the tiny model {folder} (seed {arguments.seed})")


if __name__ == "__main__":
    main()
