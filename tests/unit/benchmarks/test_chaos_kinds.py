"""Kinds of `make chaos`: selection by name and group, saved rounds, and what relays change."""

import json

import pytest

from benchmarks.chaos import report
from benchmarks.chaos.faults.kinds import GROUPS, KINDS, chosen
from benchmarks.chaos.play import Round
from benchmarks.chaos.recovery import Recovery
from benchmarks.chaos.relays import Relays
from benchmarks.chaos.verdict import Verdict, judge


def test_groups_and_names_select_kinds_in_the_order_of_a_round() -> None:
    assert [kind.name for kind in chosen("flush, gateway")] == ["gateway", "flush+agent", "flush+crowd"]
    assert [kind.name for kind in chosen(",".join(GROUPS))] == list(KINDS)
    with pytest.raises(ValueError, match="unknown kind 'gatewy'; there are kill, flush"):
        chosen("agent,gatewy")


def test_names_of_kinds_and_groups_do_not_collide() -> None:
    assert not set(GROUPS) & set(KINDS)


def test_a_saved_round_is_read_as_it_was() -> None:
    recovery = Recovery(
        fault="flush+crowd",
        hit="redis emptied",
        repaired_s=0.1,
        open=3,
        new_request_s=None,
        at_once_s=None,
        all_ended_s=1.0,
        silence_s=0.5,
    )
    verdict = Verdict(lost=1, unkept=1, incidents=["lost: x", "unkept: y"])
    verdict.accepted["stream"] = 7
    made = Round(recoveries=[recovery], unkept=["y"], skipped=["engine"], verdict=verdict)
    saved = json.loads(json.dumps(report.as_json([made])))
    assert report.from_json(saved) == [made]


def test_a_promise_that_was_not_kept_fails_the_round() -> None:
    verdict = judge([], {}, [], ["launched-0 kept an engine that hangs"])
    assert not verdict.clean
    assert verdict.unkept == 1
    assert verdict.incidents == ["unkept: launched-0 kept an engine that hangs"]


def test_a_relayed_process_gets_the_addresses_of_its_relays_alone() -> None:
    relays = Relays(control=1, ports={"gateway-0/broker": 11, "gateway-0/store": 12})
    config = {"broker": "amqp://guest:guest@127.0.0.1:5672/%2F", "store": "redis://127.0.0.1:6379/0"}
    assert relays.config("gateway-1", config) == config
    assert relays.config("gateway-0", config) == {
        "broker": "amqp://guest:guest@127.0.0.1:11/%2F",
        "store": "redis://127.0.0.1:12/0",
    }
