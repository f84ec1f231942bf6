"""The configuration file: a mistake is printed in one sentence with file, key, value and expectation."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from qlm.cli.config.default import emulated_config, vllm_config
from qlm.cli.config.errors import LINES_MAX, ConfigError
from qlm.cli.config.settings import Config, load_config, parse_config
from qlm.cli.starter.built_in import EMULATED
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo, TokenSlo

SOUND: dict[str, Any] = {
    "models": [{"id": "mistral-7b"}, {"id": "vicuna-13b"}],
    "instances": [{"id": "a100-0", "accelerator": "A100", "models": ["mistral-7b", "vicuna-13b"]}],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The sound configuration with one key set; `instances.0.url` goes into the first instance."""
    raw: dict[str, Any] = {key: [dict(each) for each in part] for key, part in SOUND.items()}
    *steps, last = path.split(".")
    inner: Any = raw
    for step in steps:
        inner = inner[int(step)] if step.isdigit() else inner.setdefault(step, {})
    inner[last] = value
    return raw


def test_a_sound_configuration_has_defaults_for_the_rest() -> None:
    config = parse_config(SOUND, "qlm.yaml")
    assert config.embedded
    assert (config.http.host, config.http.port) == ("127.0.0.1", 8000)
    assert (config.grpc.host, config.grpc.port, config.grpc.tls) == ("127.0.0.1", 8001, None)
    assert config.default_slo.slo() == DeadlineSlo(deadline_ms=60_000)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("http.port", 0, ["http.port is 0", "at least 1"]),
        ("http.port", "8000", ["http.port is '8000'", "a whole number"]),
        ("http.host", "a\0b", ["http.host is 'a\\x00b'", "a name of this machine"]),
        ("http.host", "bücher..de", ["http.host is 'bücher..de'", "a name of this machine"]),
        ("grpc.host", "::1 ", ["grpc.host is '::1 '", "a name of this machine"]),
        ("monitor.host", "a..b", ["monitor.host is 'a..b'", "a name of this machine"]),
        ("grpc.port", -1, ["grpc.port is -1", "at least 0"]),
        ("grpc.tls", {"cert": "c.pem"}, ["grpc.tls.key is missing"]),
        ("grpc.reflection", True, ["grpc.reflection is True", "no key of this name"]),
        ("stop.grace_s", -1, ["stop.grace_s is -1", "at least 0"]),
        ("stop", {"notice": 1}, ["stop.notice is 1", "no key of this name"]),
        ("limits.queue_depth_max", -5, ["limits.queue_depth_max is -5", "at least 1"]),
        ("emulate.time_scale", float("nan"), ["emulate.time_scale is nan", "a finite number"]),
        ("emulate.time_scale", "fast", ["emulate.time_scale is 'fast'", "a number"]),
        ("models", [], ["models is []", "at least 1"]),
        ("models.0.engine", "tgi", ["models.0.engine is 'tgi'", "'emulated' or 'vllm'"]),
        ("models.0.engine", "vllm", ["models.0 has no path", "weights and tokenizer"]),
        ("models.0.context_tokens", 1.5, ["models.0.context_tokens is 1.5", "a whole number"]),
        ("models.1.id", "mistral-7b", ["'mistral-7b' twice in models", "each once"]),
        ("models.1.adapters", [{"id": "mistral-7b"}], ["'mistral-7b' twice in models", "each once"]),
        ("models.1.adapters", [{"id": "a=b"}], ["models.1.adapters.0.id is 'a=b'"]),
        ("models.1.adapters", [{"id": "a"}, {"id": "a"}], ["'a' twice in models"]),
        ("models.0.id", "", ["models.0.id is ''"]),
        ("instances.0.models", ["gpt-2"], ["'gpt-2'", "a100-0", "mistral-7b"]),
        ("instances.0.id", "a/b", ["instances.0.id is 'a/b'"]),
        ("instances.0.url", "localhost:8100", ["instances.0", "'localhost:8100'", "http://host:port"]),
        ("instances.0.url", "http://h:1", ["instances.0", "exactly one model"]),
        ("instances.0.acelerator", "A10", ["instances.0.acelerator is 'A10'", "no key of this name"]),
        ("instances.0.environment", {"A B": "1"}, ["instances.0.environment", "A B"]),
        ("instances.0.batched_tokens_max", 0, ["instances.0.batched_tokens_max is 0", "at least 1"]),
        ("vllm.batched_tokens_max", "8k", ["vllm.batched_tokens_max is '8k'", "a whole number"]),
        (
            "vllm.extra_args",
            ["--max-num-batched-tokens=512"],
            [
                "vllm",
                "'--max-num-batched-tokens=512' in extra_args",
                "expected the key batched_tokens_max instead",
            ],
        ),
        ("broker", "amqp://h", ["'amqp://h'", "'embedded'", "redis://"]),
        ("default_slo", {"tpot_ms": 5}, ["default_slo", "tpot_ms", "expected deadline_ms"]),
        ("default_slo", {"deadline_ms": 5, "ttft_ms": 5}, ["default_slo", "expected deadline_ms"]),
        ("monitor.port", 0, ["monitor.port is 0", "at least 1"]),
        ("monitor.hots", "::", ["monitor.hots", "no key of this name"]),
        ("tracing.endpoint", "jaeger:4318", ["tracing", "'jaeger:4318'", "http://host:4318"]),
        ("tracing.sample", 1.5, ["tracing.sample is 1.5", "at most 1"]),
        ("default_slo", {"deadline_ms": -1}, ["deadline_ms is -1", "positive"]),
    ],
)
def test_a_wrong_value_is_named_with_file_key_and_expectation(
    path: str, value: Any, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(changed(path, value), "conf/qlm.yaml")
    message, *entailed = str(caught.value).splitlines()
    assert message.startswith("conf/qlm.yaml: ")
    for word in words:
        assert word in message
    # A model whose name is another's now is missing where an instance names it.
    assert len(entailed) == ((path, value) == ("models.1.id", "mistral-7b"))


@pytest.mark.parametrize("missing", ["models", "instances"])
def test_a_missing_section_is_named(missing: str) -> None:
    raw = {key: value for key, value in SOUND.items() if key != missing}
    with pytest.raises(ConfigError, match=f"qlm.yaml: {missing} is missing"):
        parse_config(raw, "qlm.yaml")


def test_all_mistakes_of_a_file_are_named_at_once() -> None:
    raw = changed("http.port", 0) | {"color": "red", "grpc": {"port": "x"}}
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, "qlm.yaml")
    assert str(caught.value).splitlines() == [
        "qlm.yaml: http.port is 0; expected at least 1",
        "qlm.yaml: grpc.port is 'x'; expected a whole number",
        "qlm.yaml: color is 'red'; expected no key of this name",
    ]


def test_mistakes_between_sections_are_named_at_once() -> None:
    raw = changed("http.port", 9000) | {
        "admin": {"port": 9000},
        "grpc": {"host": "127.0.0.2", "port": 9000},  # another address
        "instances": [
            {"id": "a", "accelerator": "A10", "models": ["mistral-7"]},
            {"id": "a", "accelerator": "A10", "models": ["mistral-7b"]},
        ],
    }
    known = [each["id"] for each in SOUND["models"]]
    named = [
        "qlm.yaml: it has 'a' twice in instances; expected each once",
        f"qlm.yaml: it has the model 'mistral-7' in instance a; expected one of {known}; "
        "did you mean mistral-7b?",
        "qlm.yaml: it has the port 9000 in http and in admin; expected a port of its own for each",
    ]
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, "qlm.yaml")
    assert str(caught.value).splitlines() == named
    with pytest.raises(ConfigError) as caught:  # names are compared even where a section is wrong
        parse_config(raw | {"color": "red"}, "qlm.yaml")
    assert str(caught.value).splitlines()[1:] == named[:2]


def test_an_empty_file_is_that_of_trials(tmp_path: Path) -> None:
    path = tmp_path / "qlm.yaml"
    path.write_text("# all by default\n", "utf-8")
    assert load_config(path, {}, {}) == parse_config(EMULATED, "built in")


def test_of_very_many_mistakes_the_first_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(SOUND | {f"x{n}": n for n in range(100)}, "qlm.yaml")
    assert len(str(caught.value).splitlines()) == LINES_MAX + 1
    assert str(caught.value).endswith("(80 more)")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("http.prot", "port"),
        ("instances.0.acelerator", "accelerator"),
        ("models.1.context", "context_tokens"),
        ("modles", "models"),
        ("default_slo.deadline", "deadline_ms"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_one_meant(path: str, meant: str) -> None:
    with pytest.raises(
        ConfigError, match=f"{path} is 1; expected no key of this name; did you mean {meant}\\?"
    ):
        parse_config(changed(path, 1), "qlm.yaml")


@pytest.mark.parametrize(
    ("broker", "store", "fine"),
    [
        ("amqp://guest:guest@mq:5672/", "redis://r:6379/0", True),
        ("amqps://mq", "unix:///run/redis.sock", True),
        ("http://mq", "redis://r", False),
        ("amqp://", "redis://r", False),
        ("amqp://mq:99999", "redis://r", False),
        ("amqp://mq", "memcached://r", False),
        ("amqp://mq", "redis://r 1", False),
    ],
)
def test_servers_are_given_by_sound_addresses(broker: str, store: str, fine: bool) -> None:
    raw = SOUND | {"broker": broker, "store": store}
    if fine:
        assert not parse_config(raw, "qlm.yaml").embedded
        return
    with pytest.raises(ConfigError, match="expected an address such as"):
        parse_config(raw, "qlm.yaml")


@pytest.mark.parametrize(
    ("given", "slo"),
    [
        ({}, BatchSlo()),
        ({"deadline_ms": 9}, DeadlineSlo(deadline_ms=9)),
        ({"ttft_ms": 9}, TokenSlo(ttft_ms=9)),
        ({"ttft_ms": 9, "tpot_ms": 8}, TokenSlo(ttft_ms=9, tpot_ms=8)),
        ({"ttft_ms": 9, "tokens_per_s": 7}, ReadingSlo(ttft_ms=9, tokens_per_s=7)),
    ],
)
def test_each_form_of_objective_is_understood(given: dict[str, float], slo: object) -> None:
    config = parse_config(SOUND | {"default_slo": given}, "qlm.yaml")
    assert config.default_slo.slo() == slo


def written(folder: Path, content: bytes) -> Path:
    path = folder / "qlm.yaml"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"models: [", "is not YAML"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"- 1\n", "holds a list; expected keys"),
        (b"models\n", "holds only 'models'; expected keys"),
        (b"a: 1\na: 2\n", "the key 'a' stands twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b"data_dir: x\nhttp: {port: " + b"9" * 5000 + b"}\n", "(5002 characters) is no number or date"),
        (b"http: {port: 0x" + b"f" * 5000 + b"}\n", "port is a whole number of 6021 digits; expected"),
        (b"http: {port: 2026-13-01}\n", "'2026-13-01' is no number or date that can be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml", {})


def test_overrides_extend_a_section_and_replace_a_value(tmp_path: Path) -> None:
    text = """
http: {host: 127.0.0.2, port: 9000}
models: [{id: mistral-7b}]
instances: [{id: i, accelerator: A10, models: [mistral-7b]}]
"""
    path = written(tmp_path, text.encode())
    config = load_config(path, {"http": {"port": 9001}, "data_dir": "elsewhere"})
    assert (config.http.host, config.http.port, config.data_dir) == ("127.0.0.2", 9001, Path("elsewhere"))


def test_the_configurations_without_a_file_are_sound(tmp_path: Path) -> None:
    assert isinstance(emulated_config({"http": {"port": 1234}}), Config)
    cpu = vllm_config(tmp_path / "tiny", Path("python"), cpu=True, pythonpath=None, overrides={})
    assert (cpu.vllm.cpu, cpu.instances[0].accelerator, cpu.models[0].path) == (
        True,
        "CPU",
        tmp_path / "tiny",
    )


@pytest.mark.parametrize(("given", "id"), [(".", "here"), ("..", "models"), ("../link", "link"), ("x/", "x")])
def test_a_single_vllm_has_the_name_of_its_folder_however_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, id: str
) -> None:
    here = tmp_path / "models/here"
    here.mkdir(parents=True)
    (here.parent / "link").symlink_to(here)
    monkeypatch.chdir(here)
    made = vllm_config(Path(given), Path("python"), cpu=True, pythonpath=None, overrides={})
    assert made.models[0].id == id


SERVED = {"QLM_BROKER": "amqp://user:secret@rabbit:5672/", "QLM_STORE": "redis://:secret@redis:6379/0"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "qlm.yaml"
    path.write_text(yaml.safe_dump(SOUND), "utf-8")
    return path


def test_the_environment_replaces_the_addresses_of_the_file(file: Path) -> None:
    assert load_config(file, {}, {}).embedded
    config = load_config(file, {}, SERVED)
    assert (config.broker, config.store) == (SERVED["QLM_BROKER"], SERVED["QLM_STORE"])


@pytest.mark.parametrize(
    "text",
    [
        "models: [{id: m}]\ninstances: [{id: i, accelerator: A10, models: [m]}]\n"
        'tracing: {endpoint: "otlp://u:secret@h:4318"}',
        'models: [{id: m}]\ninstances: [{id: i, accelerator: A10, models: [m], url: "h://u:secret@h"}]',
        'broker: {address: "amqp://u:secret@h"}',
        'broker: "amqp://u:secret@h',
        'models: "amqp://u:secret@h"',
    ],
)
def test_a_wrong_file_is_shown_without_the_passwords_in_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "qlm.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, {}, {})
    assert "secret" not in str(caught.value)
    assert "//***@h" in str(caught.value)


def test_the_command_line_goes_before_the_environment(file: Path) -> None:
    config = load_config(file, {"broker": "amqp://other:5672/"}, SERVED)
    assert (config.broker, config.store) == ("amqp://other:5672/", SERVED["QLM_STORE"])


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"QLM_BROKER": ""}, ["QLM_BROKER is empty", "expected a value of broker"]),
        ({"QLM_STORE": "redis://redis"}, ["with QLM_STORE of the environment", "sqlite with embedded"]),
        (SERVED | {"QLM_BROKER": "amqp://u:secret@h:99999/"}, ["QLM_BROKER and QLM_STORE", "amqp://***@h"]),
        (SERVED | {"QLM_STORE": "http://u:se/cr@et@h/"}, ["the store 'http://***@h/'", "redis://host:port"]),
    ],
)
def test_a_wrong_address_of_the_environment_is_shown_without_its_password(
    file: Path, environment: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(file, {}, environment)
    message = str(caught.value)
    assert "\n" not in message
    assert "secret" not in message and "se/cr" not in message
    for word in words:
        assert word in message
