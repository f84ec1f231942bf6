"""Bodies of requests: correct ones, and what mutations make of them."""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

from benchmarks.fuzz.values import NAMES, Pairs, mangled, odd_value, written
from benchmarks.fuzz.values import Literal as Text

Api = Literal["completions", "chat/completions"]
Tree = Any
Slot = tuple[Any, Any]
"""A container in a tree, and a key or index in it."""

OUTPUT_TOKENS_MAX: Final = 8

_OPTIONS: Final[Sequence[Callable[[random.Random], dict[str, Any]]]] = (
    lambda rng: {"temperature": rng.choice((0, 0.7, 2))},
    lambda rng: {"top_p": rng.choice((0.1, 1))},
    lambda rng: {"top_k": rng.choice((-1, 0, 40))},
    lambda rng: {"seed": rng.choice((None, 0, -(2**63), 2**63 - 1))},
    lambda rng: {"stream": rng.choice((True, False))},
    lambda rng: {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    lambda rng: {"stop": rng.choice(("zq", ["zq", "\n"], None))},
    lambda rng: {"logit_bias": {"65": 1, "256": -100.0}},
    lambda rng: {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.1},
    lambda rng: {"priority": rng.randint(-10, 10)},
    lambda rng: {"service_tier": rng.choice(("auto", "default", "flex", "priority"))},
    lambda rng: {"user": rng.choice(("one", "two", "\U0001f600"))},
    lambda rng: {"slo": {"deadline_ms": rng.choice((5000, 60_000.0)), "on_miss": rng.choice(("serve",
    "drop"))}},
    lambda rng: {"slo": {"ttft_ms": rng.uniform(100, 60_000), "tpot_ms": rng.uniform(10, 1000)}},
    lambda rng: {"slo": {"ttft_ms": rng.uniform(100, 60_000), "tokens_per_s": rng.uniform(1, 100)}},
    lambda rng: {"slo": {"deadline_at": rng.choice(("0001-01-01T00:00:00+01:00", "2199-01-01T00:00:00Z",
    1))}},
    lambda rng: {"slo": {"ttft_ms": 5000, "p_met_min": rng.choice((0, 0.5, 0.999))}},
    lambda rng: {"resume_grace_s": rng.choice((0, 1, 3600))},
    lambda rng: {"min_tokens": 1, "skip_special_tokens": False, "include_stop_str_in_output": True},
    lambda rng: {"stop_token_ids": [256, 90], "n": 1, "logprobs": None, "tools": None},
)  # fmt: skip


def correct(api: Api, model: str, name: str, rng: random.Random) -> dict[str, Any]:
    """Return a body that is accepted, mostly; `name` is part of its prompt."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": rng.randint(1, OUTPUT_TOKENS_MAX),
        "ignore_eos": True,
        "resume_grace_s": 0,
    }
    prompt = f"request {name}: {rng.random()}"
    if api == "chat/completions":
        body["messages"] = [{"role": "system", "content": "Answer."}, {"role": "user", "content": prompt}]
    else:
        body["prompt"] = rng.choice((prompt, [prompt], list(prompt.encode())))
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        body |= rng.choice(_OPTIONS)(rng)
    return body


def mutated(body: dict[str, Any], rng: random.Random) -> Tree:
    """Return a body after one to four structural mutations."""
    tree: Tree = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        slots = list(_slots(tree))
        tree = _mutate(tree, rng.choice(slots), rng) if slots else odd_value(rng)
    return tree


def encoded(tree: Tree, rng: random.Random) -> bytes:
    """Write a body, in UTF-8 or, seldom, in something else; damage some."""
    text = written(tree, escaped=rng.random() < 0.5)
    encoding = "utf-8"
    if rng.random() < 0.04:
        encoding = rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "utf-7"))
    errors = "surrogatepass" if encoding.startswith("utf-") and encoding != "utf-7" else "replace"
    data = text.encode(encoding, errors)
    return mangled(data, rng) if rng.random() < 0.12 else data


def noise(rng: random.Random) -> bytes:
    """Return bytes that are no body, or one of another shape."""
    some: Sequence[bytes] = (
        b"", b" ", b"null", b"0", b'"text"', b"[]", b"{}", b"[" * 20_000, b'{"a":' * 5000, b"\xff\xfe{\0}\0",
        b"{" + b" " * 10_000 + b"}", b'{"model": "mistral-7b"' * 50, b"model=mistral-7b&prompt=x",
        b"--b\r\n\r\n--b--",
        rng.randbytes(rng.randint(1, 3000)),
    )  # fmt: skip
    return rng.choice(some)


def _slots(tree: Tree) -> Iterator[Slot]:
    keys: Sequence[Any] = ()
    if isinstance(tree, dict):
        keys = list(tree)
    elif isinstance(tree, list):
        keys = range(min(len(tree), 20))
    for key in keys:
        yield tree, key
        yield from _slots(tree[key])


def _mutate(tree: Tree, slot: Slot, rng: random.Random) -> Tree:
    holder, key = slot
    value = holder[key]
    match rng.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(NAMES)] = value
        case 2 if isinstance(holder, dict):
            holder[rng.choice((str(key).upper(), f" {key}", f"{key}\0", f"{key}.x"))] = holder.pop(key)
        case 3:
            holder[key] = rng.choice(([value], {"a": value}, [value, value], str(value), [value] * 500))
        case 4 if isinstance(value, dict):
            holder[key] = Pairs((*value.items(), *((name, odd_value(rng)) for name in list(value)[:2])))
        case 5 if isinstance(holder, dict):
            holder[rng.choice(NAMES)] = odd_value(rng)
        case 6 if tree is holder and isinstance(tree, dict):
            return Pairs((*tree.items(), (key, odd_value(rng))))
        case 7 if isinstance(value, (int, float)) and not isinstance(value, bool):
            holder[key] = rng.choice((-value, value + 1, value * 1e6, float(value), Text(f"{value}e2")))
        case _:
            holder[key] = odd_value(rng)
    return tree
