"""What `qlm doctor` finds, with a gateway that answers by a script."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from qlm.cli.config.default import emulated_config
from qlm.cli.inspect import doctor
from qlm.cli.inspect.admin_client import AdminClient, AdminError
from qlm.cli.inspect.doctor import Finding, examine, examine_ranges
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


def an_instance(
    id: str,
    active: str | None = "m",
    *models: str,
    error: str = "",
    budgets: dict[str, int | None] | None = None,
) -> dict[str, Any]:
    return {
        "id": id,
        "active_model": active,
        "models": [*models, *([active] if active else [])],
        "error": error,
        "capacity": {"seqs_max": 8, **(budgets or {})} if active else None,
    }


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
) -> dict[str, Finding]:
    answers = {
        "/readyz": READY,
        "/admin/v1/store": store or {"warnings": []},
        "/admin/v1/listeners": listeners or {"warnings": []},
        "/admin/v1/controller": {"leader": leader},
        "/admin/v1/instances": {"instances": instances},
        "/admin/v1/queues": {"classes": classes or []},
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
    monkeypatch.setattr(doctor, "DISK_FREE_MIN_BYTES", 1 << 62)
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
