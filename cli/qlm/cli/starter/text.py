"""The text of a first configuration file, with comments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import yaml

_SEPARATORS: Final = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class StarterModel:
    """A model to serve.

    Attributes:
        id: Its name.
        path: Folder of its weights; None for an emulated model.
        context_tokens: Most tokens of prompt and answer.
    """

    id: str
    path: str | None = None
    context_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class StarterInstance:
    """An instance.

    Attributes:
        accelerator: Its kind.
        gpu: Index of its GPU; None if it is emulated.
        gpus: Number of its GPUs.
        models: Models that it may serve, the first one at its start; all of the file if it is empty.
    """

    accelerator: str
    gpu: int | None = None
    gpus: int = 1
    models: tuple[str, ...] = ()


def accelerator_of(name: str, known: Sequence[str]) -> str:
    """Return the kind of a GPU by the name that its driver gives it: a kind with a profile, if it is one.

    Args:
        name: Such as `NVIDIA A100-SXM4-80GB`.
        known: Kinds with profiles.
    """
    words = [word for word in _SEPARATORS.split(name) if word not in ("", "NVIDIA", "Tesla", "GeForce")]
    of_profile = next((word for word in words if word in known), None)
    return of_profile or "-".join(words)[:40] or "GPU"


def gpus_in(listing: str, known: Sequence[str]) -> list[StarterInstance]:
    """Return an instance for each GPU in the lines `INDEX, NAME` of nvidia-smi."""
    found = []
    for line in listing.splitlines():
        index, comma, name = line.partition(",")
        if comma and index.strip().isdecimal():
            found.append(StarterInstance(accelerator_of(name.strip(), known), int(index)))
    return found


def starter_text(
    models: Sequence[StarterModel], instances: Sequence[StarterInstance], slo: Mapping[str, float]
) -> str:
    """Return a configuration file.

    Instances that may serve all models begin with different ones.

    Args:
        models: At least one.
        instances: At least one.
        slo: Objective of requests that name none; batch if it is empty.
    """
    names = [each.id for each in models]

    def rotated(at: int) -> list[str]:
        first = at % len(names)
        return names[first:] + names[:first]

    return "\n".join(
        [
            "# Configuration of QLM: qlm serve --config FILE. docs/reference/configuration.md has every key.",
            "# Lines that begin with # show defaults or examples.",
            "",
            "models:                       # names that clients use; context_tokens is prompt plus answer",
            *(line for each in models for line in _model(each)),
            "",
            "instances:                    # one per GPU; the first model is brought up at the start",
            *(line for at, each in enumerate(_named(instances)) for line in _instance(*each, rotated(at))),
            "",
            f"default_slo: {_flow(slo)}    # of requests that name no objective; {{}} is batch",
            "# interactive_slo: {ttft_ms: 1000, tpot_ms: 100}    # of service_tier: priority",
            "",
            *_VLLM * any(each.path is not None for each in models),
            *_PLACES,
        ]
    )


_VLLM: Final = (
    "vllm:",
    "  python: python3             # of the environment that has vLLM",
    "  # kv_cache_bytes: 40000000000    # set it if models share a GPU: docs/bring-a-model.md",
    "",
)
_PLACES: Final = (
    "# http: {host: 127.0.0.1, port: 8000}     # for clients; api_keys: required asks them for keys",
    "# grpc: {host: 127.0.0.1, port: 8001}     # the same over gRPC; port 0 for none",
    "# admin: {host: 127.0.0.1, port: 8090}    # for operators and Prometheus: qlm queues, qlm doctor",
    "# data_dir: qlm-data                      # the queue of qlm serve, and logs of engines",
    "# broker: sqlite      # for parts in several processes: amqp://USER:PASSWORD@HOST:5672/%2F",
    "# store: embedded     # and redis://:PASSWORD@HOST:6379/0; QLM_BROKER and QLM_STORE replace both",
    "",
)


def _model(model: StarterModel) -> list[str]:
    first = f"  - id: {_scalar(model.id)}"
    if model.path is None:
        engine = ["    engine: emulated          # the speed of a real model, and nonsense as text"]
    else:
        engine = ["    engine: vllm", f"    path: {_scalar(model.path)}"]
    return [first, *engine, f"    context_tokens: {model.context_tokens}"]


def _named(instances: Sequence[StarterInstance]) -> list[tuple[str, StarterInstance]]:
    """Number the instances of each kind."""
    count: dict[str, int] = {}
    named = []
    for each in instances:
        kind = _SEPARATORS.sub("-", each.accelerator).strip("-").lower() or "gpu"
        named.append((f"{kind}-{count.setdefault(kind, 0)}", each))
        count[kind] += 1
    return named


def _instance(id: str, instance: StarterInstance, all_models: Sequence[str]) -> list[str]:
    names = ", ".join(map(_scalar, instance.models or all_models))
    lines = [
        f"  - id: {_scalar(id)}",
        f"    accelerator: {_scalar(instance.accelerator)}          # the kind, as in the profiles",
        f"    models: [{names}]",
    ]
    if instance.gpus > 1:
        lines.append(f"    gpus: {instance.gpus}")
    if instance.gpu is not None:
        lines.append(f'    environment: {{CUDA_VISIBLE_DEVICES: "{instance.gpu}"}}')
    return [*lines, "    # host_memory_gib: 64       # of sleeping models"]


def _flow(slo: Mapping[str, float]) -> str:
    return "{" + ", ".join(f"{_scalar(key)}: {_number(value)}" for key, value in slo.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _scalar(text: str) -> str:
    """Return a text as a YAML value; quoted unless it is a plain word."""
    plain = re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./-]*", text) and text.lower() not in _YAML_WORDS
    return text if plain else yaml.safe_dump(text, default_style='"', width=inf).rstrip("\n")


_YAML_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
