"""Variables with secrets that a configuration names: no engine inherits them, wherever its agent runs."""

import asyncio
import contextlib
import logging
import pickle
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qlm.cli.config.addresses import NAMING, secret_variables
from qlm.cli.config.settings import Config, parse_config
from qlm.cli.runtime import ray
from qlm.cli.runtime.ray import agent_spec

NAMES = {"REPORTS_SECRET", "OTHER_SECRET"}


def config(folder: Path, *names: str) -> Config:
    hooks = [
        {"name": name, "url": f"https://{n}.example/", "secret_env": name} for n, name in enumerate(names)
    ]
    raw = {
        "data_dir": str(folder / "data"),
        "models": [{"id": "a", "engine": "vllm", "path": str(folder), "render": {}}],
        "instances": [{"id": "i", "accelerator": "A100", "models": ["a"]}],
        "webhooks": {"endpoints": hooks},
    }
    return parse_config(raw, "test")


def patterns(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of a schema that take a text of some form, with the form."""
    if isinstance(schema, dict):
        for key, inner in schema.get("properties", {}).items():
            yield from ((key, each["pattern"]) for each in inner.get("anyOf", [inner]) if "pattern" in each)
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else ():
        yield from patterns(inner)


def test_every_key_that_names_a_variable_is_one_of_a_secret() -> None:
    naming = {
        key for key, pattern in patterns(Config.model_json_schema()) if pattern.startswith("^[A-Za-z_]")
    }
    assert "secret_env" in naming
    assert all(key.endswith(NAMING) for key in naming)


def test_the_names_are_found_wherever_they_stand(tmp_path: Path) -> None:
    assert secret_variables(config(tmp_path, *NAMES)) == NAMES
    assert not secret_variables(config(tmp_path))


async def test_an_agent_under_ray_knows_them_without_the_section_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = config(tmp_path, *NAMES)
    spec = agent_spec(made, made.instances[0], logging.INFO)
    given: list[Collection[str]] = []

    async def serve(*arguments: Any, patient: bool) -> None:
        given.append(arguments[-1])

    async def nothing(*_: object, **__: object) -> Any:
        return SimpleNamespace()

    watching = SimpleNamespace(broker_outage=None, watching=contextlib.nullcontext)
    telemetry = SimpleNamespace(faults=None, health=watching)
    for name in ("log_to_stderr", "_remove_thread_limit_of_ray", "settle_heap"):
        monkeypatch.setattr(ray, name, lambda *_: None)
    monkeypatch.setattr(ray, "open_telemetry", lambda *_, **__: telemetry)
    monkeypatch.setattr(ray, "monitoring", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(ray, "open_backends", nothing)
    monkeypatch.setattr(ray, "kill_orphaned_engines", nothing)
    monkeypatch.setattr(ray, "serve_instance", serve)
    await asyncio.wait_for(pickle.loads(pickle.dumps(spec.work))(), 60)
    assert [set(each) for each in given] == [NAMES]


def test_an_agent_under_ray_is_replaced_when_a_name_changes(tmp_path: Path) -> None:
    def recipe(*names: str) -> str:
        made = config(tmp_path, *names)
        return agent_spec(made, made.instances[0], logging.INFO).config_hash

    assert recipe("REPORTS_SECRET") == recipe("REPORTS_SECRET")
    assert recipe("REPORTS_SECRET") != recipe("OTHER_SECRET")
