"""What `qlm doctor` finds, with a gateway that answers by a script."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qlm.cli.config.default import emulated_config
from qlm.cli.inspect import readiness_checks
from qlm.cli.inspect.admin_client import AdminClient, AdminError
from qlm.cli.inspect.doctor import examine, examine_ranges
from qlm.cli.inspect.finding import Finding
from qlm.cli.main import main
from qlm.cli.profiling.used_beyond import lines_of_config
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.file import profile_text
from qlm.rct_estimator.profiles.points import FitPoint, FitPoints

READY = {"status": "ok", "broker": "ok", "store": "ok"}


class ScriptedClient(AdminClient):
    """Answers GETs by path; an exception is raised."""

    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__("http://scripted")
        self._answers = answers

    def get(self, path: str, **query: Any) -> Any:
        answer = self._answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_in_any_state(self, path: str) -> Any:
        return self.get(path)

    def text(self, path: str) -> str:
        return str(self.get(path))


def an_instance(
    id: str,
    active: str | None = "m",
    *models: str,
    error: str = "",
    budgets: dict[str, int | None] | None = None,
) -> dict[str, Any]:
    return {
        "id": id,
        "accelerator": "A10",
        "active_model": active,
        "operations": operations(),
        "models": [*models, *([active] if active else [])],
        "error": error,
        "capacity": {"seqs_max": 8, **(budgets or {})} if active else None,
    }


def operations(swaps: int = 0, thrashed: int = 0, lost_s: float = 0.0) -> dict[str, Any]:
    lost = [{"class": "c", "count": swaps, "seconds": lost_s}]
    return {"model_swaps": swaps, "swaps_thrashed": thrashed, "swap_lost": lost, "observed_s": 600.0}


def a_class(model: str, queued: int) -> dict[str, Any]:
    return {"model": model, "queued": queued}


LEADER = {"id": "host-1a2b3c", "since_s": 1_700_000_000.0, "incarnation": 5, "term": 2}


def findings(
    instances: list[dict[str, Any]],
    classes: list[dict[str, Any]] | None = None,
    *,
    dead: int = 0,
    leader: dict[str, Any] | None = LEADER,
    store: dict[str, Any] | Exception | None = None,
    listeners: dict[str, Any] | Exception | None = None,
    ready: dict[str, str] = READY,
    seen: dict[str, Any] | None = None,
    attainment: list[dict[str, Any]] | None = None,
    metrics: str = "",
) -> dict[str, Finding]:
    answers = {
        "/readyz": ready,
        "/metrics": metrics,
        "/admin/v1/store": store or {"warnings": []},
        "/admin/v1/listeners": listeners or {"warnings": []},
        "/admin/v1/controller": {"leader": leader},
        "/admin/v1/instances": {"instances": instances, **(seen or {})},
        "/admin/v1/queues": {"classes": classes or [], "attainment": attainment or []},
        "/admin/v1/dead": {"letters": [], "total": dead},
    }
    found = examine(ScriptedClient(answers))
    assert len({finding.check for finding in found}) == len(found)
    return {finding.check: finding for finding in found}


def test_a_healthy_cluster_has_no_bad_finding() -> None:
    found = findings([an_instance("a"), an_instance("b")], [a_class("m", 3)])
    assert set(found) == {"disk", "gateway", "controller", "instances"}
    assert all(finding.ok and not finding.remedy for finding in found.values())
    assert found["instances"].detail == "2 live, 2 with a model awake"


def test_without_a_gateway_only_this_machine_is_looked_at() -> None:
    found = examine(ScriptedClient({"/readyz": AdminError("no QLM gateway answers")}))
    assert [(finding.check, finding.ok) for finding in found] == [("disk", True), ("gateway", False)]
    assert found[1].detail == "no QLM gateway answers"
    assert found[1].remedy


def test_what_was_found_before_the_gateway_answers_no_further_is_kept() -> None:
    refused = AdminError("calls of operators need the admin token")
    found = findings([an_instance("a")], listeners=refused)
    assert {check: finding.ok for check, finding in found.items()} == {
        "disk": True,
        "gateway": True,
        "other checks": False,
    }
    assert found["other checks"].detail == "calls of operators need the admin token"


def test_a_store_that_drops_keys_is_a_finding() -> None:
    dropped = "Redis at h drops keys: maxmemory-policy is allkeys-lru; expected noeviction"
    found = findings([an_instance("a")], store={"warnings": [dropped]})["store"]
    assert (found.ok, found.detail) == (False, dropped)
    assert "CONFIG SET" in found.remedy


def test_a_listener_that_is_open_to_anyone_is_a_finding() -> None:
    exposed = "the gateway listens for HTTP on 0.0.0.0:8000"
    found = findings([an_instance("a")], listeners={"warnings": [exposed]})["listeners"]
    assert (found.ok, found.detail) == (False, exposed)
    assert found.remedy


def test_a_gateway_of_an_earlier_version_is_not_asked_about_its_store_and_listeners() -> None:
    absent = AdminError("404", "not_found")
    assert not {"store", "listeners"} & set(findings([an_instance("a")], store=absent, listeners=absent))


def test_who_leads_is_shown_and_that_nobody_does_is_a_finding() -> None:
    led = findings([an_instance("a")])["controller"]
    assert led.ok
    assert led.detail.startswith("host-1a2b3c leads, it took over ")
    none = findings([an_instance("a")], leader=None)["controller"]
    assert not none.ok
    assert none.remedy


def test_no_instance_at_all_is_a_finding() -> None:
    assert not findings([])["instances"].ok


def test_an_instance_without_an_awake_model_is_a_finding() -> None:
    found = findings([an_instance("a"), an_instance("b", None)])
    assert (found["instances"].ok, found["instances"].detail) == (False, "2 live, 1 with a model awake")


def test_an_engine_that_failed_is_shown_with_its_own_words() -> None:
    found = findings([an_instance("a"), an_instance("b", error="m: out of memory")])
    assert found["instance b"].detail == "m: out of memory"
    assert not found["instance b"].ok
    assert "instance a" not in found


def test_requests_that_wait_for_a_model_nobody_serves_are_counted_over_all_its_classes() -> None:
    found = findings([an_instance("a")], [a_class("gone", 3), a_class("gone", 2), a_class("m", 9)])
    assert found["model gone"].detail == "5 requests wait, no live instance serves it"
    assert "model m" not in found


def test_an_empty_class_of_a_model_nobody_serves_is_no_finding() -> None:
    assert "model gone" not in findings([an_instance("a")], [a_class("gone", 0)])


def test_a_disk_that_is_nearly_full_is_a_finding(monkeypatch: Any) -> None:
    monkeypatch.setattr(readiness_checks, "DISK_FREE_MIN_BYTES", 1 << 62)
    found = findings([an_instance("a")])
    assert not found["disk"].ok
    assert "free some space" in found["disk"].remedy


def test_dead_letters_are_a_finding() -> None:
    finding = findings([an_instance("a")], dead=3)["dead letters"]
    assert not finding.ok
    assert finding.detail == "3 messages could not be decoded"
    assert "qlm requests --dead" in finding.remedy


def budgets(reported: int | None, expected: int | None) -> dict[str, int | None]:
    return {"batched_tokens_max": reported, "batched_tokens_expected": expected}


def test_an_engine_with_another_token_budget_than_its_profile_is_a_finding() -> None:
    agreeing = [budgets(8192, 8192), budgets(None, 8192), budgets(2048, None), {}, None]
    instances = [an_instance(f"i{n}", budgets=each) for n, each in enumerate(agreeing)]
    found = findings([*instances, an_instance("asleep", None), an_instance("b", budgets=budgets(2048, 8192))])
    finding = found["token budget of b"]
    assert not finding.ok
    assert finding.detail == (
        "the engine of m computes up to 2048 tokens per iteration, "
        "and its profile or the configuration says 8192"
    )
    assert "batched_tokens_max of the instance to 2048" in finding.remedy
    assert "--max-num-batched-tokens 8192" in finding.remedy
    assert [name for name in found if name.startswith("token budget")] == ["token budget of b"]


def test_profiles_used_beyond_what_was_timed_are_named_once_and_are_no_fault(tmp_path: Path) -> None:
    point = FitPoint(4, 512, 6144, 64, 1024, 100.0)
    fit = FitPoints(points=(point,), error_mean=0.0, error_max=0.0)
    for number, profile in enumerate(builtin_profiles()):
        limits = replace(profile, batched_tokens_max=2048, fit=fit)
        (tmp_path / f"{number}.yaml").write_text(profile_text(limits))
    config = emulated_config({}).model_copy(update={"profiles": [tmp_path]})
    models = [each.model_copy(update={"context_tokens": 7000}) for each in config.models]

    def details(seqs_max: int) -> list[str]:
        instances = [each.model_copy(update={"seqs_max": seqs_max}) for each in config.instances]
        used = config.model_copy(update={"instances": instances, "models": models})
        found = examine_ranges(lines_of_config(used))
        assert all(finding.ok for finding in found)
        return [finding.detail for finding in found]

    assert details(64) == []
    named = details(256)
    assert all(line.endswith("is extrapolated to 256 requests in a batch (timed to 68)") for line in named)
    assert len(set(named)) == len(named) > 1


def test_each_part_that_readiness_finds_away_is_named_with_its_cure() -> None:
    ready = {"status": "unavailable", "broker": "ok", "store": "Redis at h is away", "sessions": "stopping"}
    found = findings([], ready=ready)
    assert set(found) == {"disk", "gateway", "store", "sessions"}
    assert (found["gateway"].ok, found["store"].ok) == (True, False)
    assert found["gateway"].detail == "it answers, and cannot accept requests without its store and sessions"
    assert found["store"].detail == "Redis at h is away"
    assert "start Redis again" in found["store"].remedy
    assert "its log" in found["sessions"].remedy


def test_without_the_queue_the_cluster_is_still_examined() -> None:
    ready = READY | {"status": "unavailable", "broker": "RabbitMQ at h is away"}
    found = findings([an_instance("a")], ready=ready, dead=3)
    assert not found["broker"].ok
    assert "start RabbitMQ again" in found["broker"].remedy
    assert found["instances"].ok
    assert "dead letters" not in found


def test_the_disk_is_that_of_the_gateways_data() -> None:
    full = {"path": "/data/qlm", "free_bytes": 400_000_000, "total_bytes": 10**12}
    found = findings([an_instance("a")], store={"warnings": [], "disk": full})["disk"]
    assert (found.ok, found.detail) == (False, "0.4 GB free in /data/qlm")
    assert found.remedy


CONFIGURED = [
    {"id": "a", "accelerator": "A10", "models": ["m"]},
    {"id": "b", "accelerator": "A10", "models": ["m", "n"]},
]


def test_an_instance_without_a_live_agent_is_lost() -> None:
    found = findings([an_instance("a")], seen={"configured": CONFIGURED})
    assert found["instance b"].detail == "it is configured (A10, for m, n) and has no live agent"
    assert "qlm agent b" in found["instance b"].remedy
    assert found["instances"].ok


def test_an_instance_that_waits_for_a_node_is_not_called_lost() -> None:
    unplaced = [{"id": "b", "state": "waiting for a place", "why": "no node has an A10"}]
    found = findings([an_instance("a")], seen={"configured": CONFIGURED, "unplaced": unplaced})
    assert found["instance b"].detail.startswith("it waits for a place under Ray: no node has an A10")


def test_agents_of_another_configuration_are_named() -> None:
    live = [an_instance("a", "m", "x"), an_instance("b", "m", "n"), an_instance("c")]
    found = findings(live, seen={"configured": CONFIGURED})
    assert found["configuration of a"].detail == (
        "models of its agent: m, x, of the gateway's configuration: m"
    )
    assert found["configuration of c"].detail == "it is live with m, and the gateway's configuration lacks it"
    assert "configuration of b" not in found
    assert all(found[f"configuration of {id}"].remedy for id in "ac")


def test_a_second_agent_of_an_instance_is_named() -> None:
    why = "a second agent (process 7 on h) was refused: process 5 on g, session s has the instance"
    found = findings([an_instance("a")], seen={"refused_agents": [{"id": "a", "why": why}]})["agents of a"]
    assert (found.ok, found.detail) == (False, f"within 10 minutes {why}")
    assert "stop what starts the second agent" in found.remedy


def test_a_gateway_of_an_earlier_version_knows_no_configured_instances() -> None:
    assert set(findings([an_instance("a")])) == {"disk", "gateway", "controller", "instances"}


def test_an_instance_whose_swaps_thrash_is_named_and_one_that_swaps_is_not() -> None:
    thrashes = an_instance("a", "m", "n") | {"operations": operations(11, 9, 42.0)}
    swaps = an_instance("b", "m", "n") | {"operations": operations(40, 2, 90.0)}
    found = findings([thrashes, swaps])
    assert found["model swaps of a"].detail == (
        "9 of its 11 swaps brought back a model within 60 s of its own swap; "
        "42 s of 600 s had no serving model"
    )
    assert "give one of n, m an instance of its own" in found["model swaps of a"].remedy
    assert "model swaps of b" not in found


def test_advice_against_swaps_counts_the_models_of_an_instance_of_many() -> None:
    many = [f"organization/a-model-with-a-long-name-{n}" for n in range(14)]
    found = findings([an_instance("a", many[0], *many[1:]) | {"operations": operations(11, 9, 42.0)}])
    assert found["model swaps of a"].remedy.startswith("give one of its 14 models an instance of its own")


def a_late_class(missed: int, judged: int, slo: str = "deadline-2s") -> dict[str, Any]:
    return {
        "model": "m",
        "slo_class": slo,
        "priority": 0,
        "judged": judged,
        "missed": missed,
        "mean_late_by_s": 1.5,
        "max_late_by_s": 4.0,
    }


def test_a_class_with_more_than_a_tenth_late_is_named_with_what_to_add() -> None:
    attainment = [
        a_late_class(11, 100),
        a_late_class(10, 100, "deadline-5s"),
        a_late_class(1, 1, "deadline-9s"),
    ]
    found = findings([an_instance("a")], attainment=attainment)
    late = found["objective deadline-2s of m"]
    assert late.detail == (
        "11 of 100 requests were late, by 1.5s on average, 4.0s at most, in the last 10 minutes"
    )
    assert "add an instance that serves m (it is served by a)" in late.remedy
    assert not {"objective deadline-5s of m", "objective deadline-9s of m"} & set(found)


def test_late_classes_of_a_model_are_one_finding_with_one_cure() -> None:
    attainment = [
        a_late_class(11, 100),
        a_late_class(3, 4, "deadline-5s"),
        a_late_class(9, 9) | {"model": "n"},
    ]
    found = findings([an_instance("a")], attainment=attainment)
    assert {each for each in found if each.startswith("objective")} == {
        "objectives of m",
        "objective deadline-2s of n",
    }
    assert found["objectives of m"].detail == (
        "in the last 10 minutes, "
        "deadline-2s: 11 of 100 requests were late, by 1.5s on average, 4.0s at most; "
        "deadline-5s: 3 of 4 requests were late, by 1.5s on average, 4.0s at most"
    )


def test_requests_that_ended_without_an_answer_need_no_instance() -> None:
    refused = a_late_class(6, 6) | {"mean_late_by_s": None, "max_late_by_s": None}
    remedy = findings([an_instance("a")], attainment=[refused])["objective deadline-2s of m"].remedy
    assert remedy.startswith("they ended without an answer")


def test_long_findings_are_indented_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finding("engine", False, "one two " * 30, "three four " * 30)
    monkeypatch.setattr("qlm.cli.inspect.doctor.examine", lambda client: [found])
    monkeypatch.setenv("COLUMNS", "60")
    lines = CliRunner().invoke(main, ["doctor"]).output.splitlines()
    assert lines[0].startswith("bad  engine: one two") and len(lines) > 8
    assert all(each.startswith("      ") for each in lines[1:])
    assert max(map(len, lines)) <= 60
    monkeypatch.setattr("qlm.cli.inspect.doctor.examine", lambda client: [Finding("disk", True, "room")])
    assert CliRunner().invoke(main, ["doctor"]).output == "ok   disk: room\n"


def test_the_controllers_recommendation_is_what_to_add() -> None:
    metrics = (
        "# HELP qlm_controller_recommended_instances ...\n"
        'qlm_controller_recommended_instances{accelerator="A100"} 3.0\n'
        'qlm_controller_recommended_instances{accelerator="A10"} 1.0\n'
        'qlm_controller_live_instances{accelerator="A100"} 1.0\n'
        'qlm_controller_live_instances{accelerator="A10"} 1.0\n'
    )
    found = findings([an_instance("a")], attainment=[a_late_class(5, 9)], metrics=metrics)
    assert found["objective deadline-2s of m"].remedy.startswith("add 2 x A100 (the controller's")


def test_details_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from engines and files: in brackets they are no markup."""
    found = Finding("engine", False, "no file in [/srv/models]; [rank0] x", "pip install -e '.[plots]'")
    monkeypatch.setattr("qlm.cli.inspect.doctor.examine", lambda client: [found])
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1
    assert done.output.splitlines() == [f"bad  {found.check}: {found.detail}", f"      {found.remedy}"]


@pytest.mark.parametrize("text", ["http: {prot: 1}", None])
def test_a_wrong_configuration_is_no_finding(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    if text is not None:
        file.write_text(text)
    done = CliRunner().invoke(main, ["doctor", "--config", str(file)])
    assert done.exit_code == 2 and "qlm.yaml" in done.stderr
