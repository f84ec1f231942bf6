"""Exit codes of `qlm`: 2 for what makes no sense, 1 for what failed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from qlm.cli.main import main

NOBODY = "http://127.0.0.1:9"
ASKS = ("--url", NOBODY)
LOAD = ("bench", NOBODY, "--request-rate", "1")


@pytest.mark.parametrize(
    "words",
    [
        ("requests", "", *ASKS),
        ("cancel", "", *ASKS),
        ("drain", "", *ASKS),
        ("requests", "retry", "", *ASKS),
        ("batches", "show", "", *ASKS),
        ("keys", "revoke", "", *ASKS),
        ("keys", "create", "--tenant", "a", "--expires-in", "5", *ASKS),
        ("queues", "--url", "127.0.0.1:9"),
        ("plan", "show", "--url", "127.0.0.1:9"),
        ("plan", "explain", "x", "--url", "ftp://127.0.0.1"),
        (*LOAD, "--request-rate", "-1"),
        (*LOAD, "--extra-body", "[]"),
        (*LOAD, "--slo", "tpot:5"),
        (*LOAD, "--skip", "5", "--num-prompts", "5"),
        ("bench", "score", "missing.json"),
        ("bench", "score", "."),
        ("bench", "--compare", "missing.json", "missing.json"),
        ("bench", "127.0.0.1:9", "--request-rate", "1", "--model", "m"),
        ("bench", "ftp://127.0.0.1", "--request-rate", "1", "--model", "m"),
        ("bench", "http://127.0.0.1:99999", "--request-rate", "1", "--model", "m"),
        ("profile", "127.0.0.1:9", "--accelerator", "A100"),
        ("profile", "--accelerator", "A100"),
        ("profile", NOBODY),
        ("adopt", "--config", "missing.yaml"),
    ],
)
def test_what_makes_no_sense_ends_with_2(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(
    "words",
    [
        ("queues", *ASKS),
        ("requests", "x", *ASKS),
        ("keys", "create", "--tenant", "a", "--expires-in", "1d", *ASKS),
        ("plan", "show", *ASKS),
        ("plan", "explain", "x", *ASKS),
        (*LOAD, "--num-prompts", "1"),
        ("profile", NOBODY, "--accelerator", "A100"),
    ],
)
def test_what_cannot_be_reached_ends_with_1(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
