"""The descriptors that an agent asks for: one for each generation, and some of its own."""

import logging

import pytest

from qlm.cli.config.default import emulated_config
from qlm.cli.runtime import engines
from qlm.cli.runtime.engines import OWN_FILES, model_host
from qlm.rct_estimator.profiles.builtin import builtin_profiles


@pytest.mark.parametrize("missing", [0, 1])
def test_each_generation_has_one_or_the_log_says_what_to_set(
    missing: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def allow(wanted: int) -> int:
        asked.append(wanted)
        return wanted - missing

    monkeypatch.setattr(engines, "allow_descriptors", allow)
    config = emulated_config({"models": [{"id": "mistral-7b"}], "instances": [
        {"id": "i", "accelerator": "A100", "models": ["mistral-7b"], "seqs_max": 1000}
    ]})  # fmt: skip
    with caplog.at_level(logging.WARNING):
        model_host(config, config.instances[0], builtin_profiles())
    assert asked == [OWN_FILES + 2000]
    lines = [each for each in caplog.messages if "LimitNOFILE=2256" in each and "may open 2255 files" in each]
    assert len(lines) == missing
