"""Reader of ShareGPT conversations: text whose tokens are counted by a given tokenizer."""

import importlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from qlm.domain.errors import InvalidValueError
from qlm.simulator.workload.csv_table import open_text
from qlm.simulator.workload.formats import ZeroOutput
from qlm.simulator.workload.trace import Trace, dropped_times

_BATCH: Final = 4096
"""Texts tokenized at a time."""


def read_sharegpt(path: Path, tokenizer: Path, zero_output: ZeroOutput = ZeroOutput.DROP) -> Trace:
    """Read ShareGPT_V3_unfiltered_cleaned_split.json: the first two turns of each conversation.

    The file is a JSON list of objects with `conversations`, a list of turns with `from` and `value`. The
    first turn is the prompt and the second the answer, as in vLLM's serving benchmark. Conversations with
    fewer turns or an empty prompt, which no server accepts, are skipped.

    Args:
        path: The file.
        tokenizer: A tokenizer.json.
        zero_output: Treatment of conversations with an empty answer.

    Raises:
        InvalidValueError: A file cannot be read or has another format; names file and conversation.
    """
    pairs = [pair for pair in _pairs(path) if pair[0]]
    if not pairs:
        raise InvalidValueError(str(path), "no conversation of two turns", "at least one")
    counter = _Counter(tokenizer)
    prompts, outputs = (counter.counts([pair[side] for pair in pairs]) for side in (0, 1))
    empty = np.flatnonzero(outputs == 0)
    if len(empty) and zero_output is ZeroOutput.REFUSE:
        raise InvalidValueError(str(path), f"{len(empty)} empty answers", "none (or zero_output: drop)")
    kept = np.flatnonzero((outputs > 0) & (prompts > 0))
    if not len(kept):
        raise InvalidValueError(str(path), "no conversation with an answer", "at least one")
    whole = Trace(
        path=path,
        prompt_tokens=prompts,
        output_tokens=outputs,
        dropped_ns=dropped_times(None, kept, len(pairs)),
    )
    return whole.at(kept)


def _pairs(path: Path) -> list[tuple[str, str]]:
    with open_text(path):
        raw = path.read_bytes()
    try:
        plain = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        where = f"{path}:{error.lineno}"
        raise InvalidValueError(where, error.msg, "a whole JSON list of conversations in UTF-8") from None
    if not isinstance(plain, list):
        raise InvalidValueError(str(path), type(plain).__name__, "a JSON list of conversations")
    pairs = (_pair(f"{path}: [{index}]", entry) for index, entry in enumerate(plain))
    return [pair for pair in pairs if pair is not None]


def _pair(where: str, entry: Any) -> tuple[str, str] | None:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list):
        raise InvalidValueError(where, entry, "an object with the list conversations")
    if len(turns) < 2:
        return None
    for index, turn in enumerate(turns[:2]):
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise InvalidValueError(f"{where}.conversations[{index}]", turn, "an object with the text value")
    return turns[0]["value"], turns[1]["value"]


class _Counter:
    """Counter of tokens by a tokenizer.json."""

    def __init__(self, file: Path) -> None:
        try:
            # Part of another installation extra and slow to load: only this reader needs it.
            library = importlib.import_module("tokenizers")
        except ImportError:
            expected = "the package tokenizers to count tokens with it"
            raise InvalidValueError("tokenizer", str(file), expected) from None
        if not file.is_file():
            raise InvalidValueError("tokenizer", str(file), "a tokenizer.json file")
        try:
            self._tokenizer = library.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise InvalidValueError("tokenizer", f"{file}: {error}", "a tokenizer.json file") from None

    def counts(self, texts: list[str]) -> np.ndarray:
        counts: list[int] = []
        for start in range(0, len(texts), _BATCH):
            batch = self._tokenizer.encode_batch_fast(texts[start : start + _BATCH], add_special_tokens=False)
            counts.extend(len(encoding) for encoding in batch)
        return np.array(counts, dtype=np.int64)
