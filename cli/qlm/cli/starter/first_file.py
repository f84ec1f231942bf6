"""Writing a first configuration file, for `qlm init`."""

import shutil
import subprocess
from math import isfinite, nan
from pathlib import Path
from typing import Any, Final

import click
import yaml

from qlm.cli.commands.options import errors_in_one_line
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import parse_config
from qlm.cli.runtime.wiring import mistakes_in_profiles
from qlm.cli.scenario.output import write_whole
from qlm.cli.starter.built_in import EMULATED
from qlm.cli.starter.text import StarterInstance, StarterModel, gpus_in, starter_text
from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import builtin_profiles

EMULATED_MODELS: Final = [
    StarterModel(str(each["id"]), context_tokens=each["context_tokens"]) for each in EMULATED["models"]
]
GPU_QUERY: Final = ("--query-gpu=index,name", "--format=csv,noheader")
GPU_QUERY_S: Final = 20.0


def write_first_file(
    file: Path | None, models: tuple[str, ...], accelerators: tuple[str, ...], slo: str, force: bool
) -> None:
    """Write a first configuration into a file, or print it; see `qlm init`."""
    with errors_in_one_line():
        if file is not None and file.exists() and not force:
            raise InvalidValueError("FILE", str(file), "a file that does not exist, or --force")
        chosen = [_model(each) for each in models] or EMULATED_MODELS
        for name in (each.id for each in chosen):
            if [each.id for each in chosen].count(name) > 1:
                raise InvalidValueError("--model", name, "each model once")
        text = starter_text(chosen, _instances(accelerators, chosen), _objective(slo))
        config = parse_config(yaml.safe_load(text), "the options")
        if mistakes := list(mistakes_in_profiles(config)):
            raise ConfigError("\n".join(f"the options: {each}" for each in mistakes))
        if file is not None:
            write_whole(file, text.encode())
    click.echo(text if file is None else f"written to {file}: qlm serve --config {file}", nl=file is not None)


def _model(given: str) -> StarterModel:
    id, equals, path = given.partition("=")
    if not id or (equals and not path):
        raise InvalidValueError("--model", given, "NAME, or NAME=FOLDER")
    return StarterModel(id, str(Path(path).absolute()) if path else None)


def _instances(accelerators: tuple[str, ...], models: list[StarterModel]) -> list[StarterInstance]:
    """Return the instances asked for, else the GPUs of this machine, else emulated ones."""
    if accelerators:
        return [StarterInstance(each, gpus=_gpus(each, models)) for each in accelerators]
    real = any(each.path is not None for each in models)
    found = gpus_in(_gpu_listing(), [each.accelerator for each in builtin_profiles()]) if real else []
    if real and not found:
        raise InvalidValueError("--accelerator", "not given", "a kind, since nvidia-smi lists no GPU here")
    return found or [_built_in(each, models) for each in EMULATED["instances"]]


def _gpus(accelerator: str, models: list[StarterModel]) -> int:
    """Return the least number of GPUs for which all emulated models have a shipped profile, else 1."""
    if not accelerator:
        raise InvalidValueError("--accelerator", accelerator, "a kind, such as A100")
    measured = {(each.model, each.accelerator, each.gpus) for each in builtin_profiles()}
    numbers = sorted({gpus for _, kind, gpus in measured if kind == accelerator})
    emulated = [each.id for each in models if each.path is None]
    return next((n for n in numbers if all((id, accelerator, n) in measured for id in emulated)), 1)


def _built_in(instance: dict[str, Any], models: list[StarterModel]) -> StarterInstance:
    """Return an instance of `qlm serve` without a file, with its own models if no others are asked for."""
    own = tuple(instance["models"]) if models == EMULATED_MODELS else ()
    return StarterInstance(instance["accelerator"], models=own)


def _gpu_listing() -> str:
    """Return what nvidia-smi lists; nothing if it is not installed, or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, *GPU_QUERY], capture_output=True, text=True, timeout=GPU_QUERY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _objective(given: str) -> dict[str, float]:
    if given == "batch":
        return {}
    found = {}
    for each in given.split(","):
        key, _, value = each.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = nan
        if not isfinite(number) or key.strip() in found:
            expected = "KEY=NUMBER,..., such as deadline_ms=60000, each key once; batch for none"
            raise InvalidValueError("--slo", given, expected)
        found[key.strip()] = number
    return found
