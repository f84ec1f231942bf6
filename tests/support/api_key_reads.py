"""API keys that a gateway reads for each call, and never takes from what it knows."""

import pytest

from qlm.gateway.keys import key_ring


def read_keys_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keys be old as soon as they are read."""
    monkeypatch.setattr(key_ring, "FRESH_S", 0.0)
    monkeypatch.setattr(key_ring, "READS_APART_S", 0.0)
