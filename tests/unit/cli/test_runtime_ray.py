"""Agents under Ray, from the configuration: what is refused, what each takes, which change makes another."""

import asyncio
import contextlib
import functools
import importlib.util
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.listeners.access import monitor_rules
from qlm.cli.config.settings import Config, parse_config
from qlm.cli.main import main
from qlm.cli.runtime import ray
from qlm.cli.runtime.backends import Backends
from qlm.cli.runtime.ray import agent_spec, resources_of
from qlm.cli.runtime.wiring import agent_settings
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.shell.tasks import end_tasks
from support.flaky import until
from support.ports import free_port

SERVERS = {"broker": "amqp://127.0.0.1/", "store": "redis://127.0.0.1"}


def config(**more: Any) -> Config:
    raw: dict[str, Any] = {
        "models": [{"id": "mistral-7b"}, {"id": "real", "engine": "vllm", "path": "weights"}],
        "instances": [
            {"id": "emulated", "accelerator": "A10", "models": ["mistral-7b"]},
            {"id": "real", "accelerator": "A100", "gpus": 2, "models": ["real"]},
            {"id": "attached", "accelerator": "A100", "models": ["real"], "url": "http://127.0.0.1:8100"},
        ],
    }
    return parse_config(raw | SERVERS | more, "qlm.yaml")


def taken(made: Config) -> list[dict[str, float]]:
    return [dict(resources_of(made, instance)) for instance in made.instances]


def qlm(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [str(Path(sys.executable).with_name("qlm")), *words]
    env = {**os.environ, **environment}
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_gpus_are_taken_by_engines_that_need_them_and_stood_for_otherwise() -> None:
    emulated, attached = {"accelerator_type:A10": 1}, {"accelerator_type:A100": 1}
    assert taken(config()) == [emulated, {"GPU": 2, "accelerator_type:A100": 0.001}, attached]
    assert taken(config(vllm={"cpu": True}))[1] == {"accelerator_type:A100": 2}
    named = config(ray={"resources": {"A100x2": {"GPU": 2, "accelerator_type:A100-80G": 0.001}}})
    assert taken(named) == [emulated, {"GPU": 2, "accelerator_type:A100-80G": 0.001}, attached]


@pytest.mark.parametrize(
    ("ray", "words"),
    [
        ({"address": "ray://head:10001"}, ["ray", "ray://head:10001", "expected auto, or host:port"]),
        ({"address": "head"}, ["'head'", "expected auto, or host:port"]),
        ({"address": "head:0"}, ["'head:0'"]),
        ({"namespace": ""}, ["ray.namespace is ''"]),
        ({"resources": {"A10": {}}}, ["ray.resources.A10 is {}", "at least 1"]),
        ({"resources": {"A10": {"GPU": 0}}}, ["ray.resources.A10.GPU is 0", "above 0"]),
        ({"resources": {"A10": {"GPU": 1.5}}}, ["1.5 of GPU in resources.A10", "a whole number"]),
        ({"adress": "auto"}, ["ray.adress"]),
    ],
)
def test_a_wrong_section_is_shown_in_one_sentence(ray: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        config(ray=ray)
    assert all(word in str(refused.value) for word in ["qlm.yaml", *words]), str(refused.value)


def test_another_recipe_for_what_an_agent_reads_and_the_same_for_the_rest() -> None:
    def recipes(**more: Any) -> list[str]:
        made = config(**more)
        return [agent_spec(made, instance, 20).config_hash for instance in made.instances]

    first = recipes()
    assert len(set(first)) == 3
    assert recipes(http={"port": 1234}, planner="edf", ray={"namespace": "other"}) == first
    assert not set(recipes(store="redis://elsewhere")) & set(first)
    assert recipes(admin={"port": 1234}) == first
    assert not set(recipes(admin={"token": "of-the-operators"})) & set(first)
    models = [
        {"id": "mistral-7b", "context_tokens": 2048},
        {"id": "real", "engine": "vllm", "path": "weights"},
    ]
    assert [now == second for now, second in zip(recipes(models=models), first, strict=True)] == [
        False,
        True,
        True,
    ]


def test_an_agent_travels_with_paths_that_mean_the_same_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = config(vllm={"python": "venv/bin/python"}, profiles=["profiles"])
    spec = agent_spec(made, made.instances[1], 20)
    monkeypatch.chdir("/")
    own, level = pickle.loads(pickle.dumps(spec.work)).args
    assert level == 20
    assert (own.data_dir, own.profiles) == (tmp_path / "qlm-data", (tmp_path / "profiles",))
    assert (own.models[0].path, own.vllm.python) == (tmp_path / "weights", tmp_path / "venv/bin/python")
    assert [instance.id for instance in own.instances] == ["real"]
    plain = agent_spec(config(), config().instances[1], 20).work
    assert isinstance(plain, functools.partial)
    assert plain.args[0].vllm.python == Path("python3"), "looked up where the agent runs"


def test_an_agent_under_ray_has_the_settings_of_the_whole_configuration() -> None:
    made = config(broker_ack_timeout_s=60, operations={"evict": False, "warm_ahead": False})
    own, _ = pickle.loads(pickle.dumps(agent_spec(made, made.instances[1], 20).work)).args
    assert agent_settings(own) == agent_settings(made)
    assert not agent_settings(own).preempts


def test_an_agent_under_ray_shows_metrics_to_operators_only() -> None:
    made = config(monitor={"host": "0.0.0.0"}, admin={"host": "0.0.0.0", "token": "of-the-operators"})
    own, _ = pickle.loads(pickle.dumps(agent_spec(made, made.instances[1], 20).work)).args
    assert monitor_rules(own) == monitor_rules(made)
    assert monitor_rules(own).accepts_operator("Bearer of-the-operators")
    assert not monitor_rules(own).accepts_operator("")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["--runtime", "ray"], "broker is 'sqlite'; expected an amqp:// address and store a redis:// one"),
        (["--ray-address", "auto"], "--ray-address is 'auto' without --runtime ray"),
        (["--runtime", "ray", "--ray-address", "there"], "'there'; expected auto, or host:port"),
        (["--broker", "amqp://127.0.0.1/"], "expected sqlite with embedded"),
    ],
)
def test_serve_says_what_is_missing_for_ray(words: list[str], printed: str) -> None:
    result = CliRunner().invoke(main, ["serve", *words])
    assert result.exit_code == 2
    assert printed in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra `ray` is not installed")
def test_an_address_where_nobody_listens_is_shown_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    words = ["--broker", SERVERS["broker"], "--store", SERVERS["store"], "--ray-address", address]
    printed = qlm("serve", "--runtime", "ray", *words)
    assert (printed.returncode, printed.stderr) == (
        1,
        f"qlm: no Ray cluster at '{address}': connection refused\n",
    )


def test_without_the_package_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('not here')")
    words = ["serve", "--runtime", "ray", "--broker", SERVERS["broker"], "--store", SERVERS["store"]]
    printed = qlm(*words, PYTHONPATH=str(tmp_path))
    assert (printed.returncode, printed.stderr) == (
        1,
        "qlm: --runtime ray needs the package ray, which cannot be imported (not here): "
        "pip install -e '.[ray]' in a clone of QLM, or pip install 'WHEEL[ray]'\n",
    )


async def test_an_outage_before_an_agent_starts_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = 0

    async def away(*_: object, **__: object) -> Backends:
        nonlocal tried
        tried += 1
        raise StoreUnavailableError("no Redis")

    for name in ("log_to_stderr", "_remove_thread_limit_of_ray", "settle_heap"):
        monkeypatch.setattr(ray, name, lambda *_: None)
    monkeypatch.setattr(ray, "monitoring", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(ray, "open_backends", away)
    monkeypatch.setattr(ray, "RESTART_PAUSE_S", 0.001)
    instance = {"id": "emulated", "accelerator": "A10", "models": ["mistral-7b"]}
    made = config(models=[{"id": "mistral-7b"}], instances=[instance])
    agent = asyncio.create_task(ray.run_agent(made, logging.INFO, "text"))
    await until(lambda: tried > 3 or agent.done())
    await end_tasks([agent])
    assert tried > 3
    assert caplog.messages == ["emulated: no Redis"]
