"""Checks of `qlm doctor`: profiles, disk, gateway, store, controller, instances, models, dead letters."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from qlm.cli.inspect.admin_client import AdminClient, AdminError
from qlm.cli.inspect.finding import Finding
from qlm.cli.inspect.fleet_checks import against_configuration, doubled, thrashing
from qlm.cli.inspect.lateness_checks import late_classes, missing_instances
from qlm.cli.inspect.readiness_checks import OK, disk, disk_here, readiness
from qlm.cli.inspect.render import ago

if TYPE_CHECKING:  # reading a configuration and profiles takes longer to import than all other checks take
    from qlm.cli.config.fleet import InstanceConfig, ModelConfig
    from qlm.cli.speed.choice import Choice
    from qlm.rct_estimator.profiles.profile import Profile


def examine(client: AdminClient) -> list[Finding]:
    """Run all checks; without a gateway, or without a part of it, only those that need none."""
    try:
        ready = client.get_in_any_state("/readyz")
    except AdminError as error:
        return [disk_here(), Finding("gateway", False, str(error), "start it, or look at its log")]
    findings: list[Finding] = []
    try:
        for some in _of_gateway(client, ready):
            findings += some
    except AdminError as error:  # it stops meanwhile, or wants a token
        remedy = "put that right, and run `qlm doctor` again: these checks need answers of the gateway"
        findings.append(Finding("other checks", False, str(error), remedy))
    return findings


def _of_gateway(client: AdminClient, ready: Any) -> Iterator[Sequence[Finding]]:
    """Run the checks of a gateway that says how ready it is.

    Raises:
        AdminError: It answers no further.
    """
    yield [_disk(client), *readiness(ready)]
    yield _listeners(client)
    if ready.get("store") == OK:
        yield _store(client)
        yield _cluster(client)
    if ready.get("broker") == OK:
        yield _dead_letters(client.get("/admin/v1/dead", limit=1)["total"])


def _cluster(client: AdminClient) -> list[Finding]:
    """Run the checks of what the shared state has."""
    seen, queues = client.get("/admin/v1/instances"), client.get("/admin/v1/queues")
    instances = seen["instances"]
    return [
        _controller(client.get("/admin/v1/controller")["leader"]),
        _instances(instances),
        *against_configuration(seen),
        *doubled(seen),
        *(_instance(each) for each in instances if each["error"]),
        *(finding for each in instances for finding in _token_budget(each)),
        *thrashing(instances),
        *_waiting(queues["classes"], instances),
        *late_classes(queues.get("attainment", ()), instances, missing_instances(client.text("/metrics"))),
    ]


def examine_profiles(
    models: "Iterable[ModelConfig]", instances: "Iterable[InstanceConfig]", profiles: "Sequence[Profile]"
) -> list[Finding]:
    """Say for each model on each kind of accelerator whether its profile is measured, roofline or guessed.

    Raises:
        ConfigError: A model has no profile and its config.json cannot be used.
    """
    from qlm.cli.speed.choice import choose

    by_id = {model.id: model for model in models}
    served = {(name, instance.kind): instance for instance in instances for name in instance.models}
    return [
        _profile(f"profile of {name} on {kind}", choose(by_id[name], instance, profiles))
        for (name, kind), instance in served.items()
    ]


def _profile(check: str, choice: "Choice") -> Finding:
    of_file = choice.basis == "measured"  # which profiles of files are called, derived ones too
    detail = choice.reason if of_file else f"{choice.basis}: {choice.reason}"
    return Finding(check, not choice.warning, detail, choice.warning)


def examine_ranges(lines: Iterable[str]) -> list[Finding]:
    """Name profiles that are used beyond what was timed for them: worth a word, and no fault."""
    remedy = "measure it there with `qlm profile`; beyond what was timed, forecasts are extrapolated"
    return [Finding("range of a profile", True, line, remedy) for line in lines]


def _disk(client: AdminClient) -> Finding:
    """Look at the disk of the gateway's data, or, if it has none, at that of the present folder."""
    try:
        seen = client.get("/admin/v1/store").get("disk")
    except AdminError:  # the shared state is away, or a gateway of an earlier version
        seen = None
    return disk_here() if seen is None else disk(seen)


def _store(client: AdminClient) -> list[Finding]:
    remedy = (
        "a setting: change it in redis.conf and with CONFIG SET; lost requests: let clients send them again; "
        "lost API keys: make them with `qlm keys create`, and give them to the clients"
    )
    return [Finding("store", False, each, remedy) for each in _warnings(client, "/admin/v1/store")]


def _listeners(client: AdminClient) -> list[Finding]:
    remedy = "close the port to strangers, then say so in the configuration of the gateway"
    return [Finding("listeners", False, each, remedy) for each in _warnings(client, "/admin/v1/listeners")]


def _warnings(client: AdminClient, path: str) -> list[str]:
    try:
        return list(client.get(path)["warnings"])
    except AdminError as error:
        if error.code == "not_found":  # a gateway of an earlier version
            return []
        raise


def _controller(leader: dict[str, Any] | None) -> Finding:
    if leader is None:
        remedy = "start `qlm controller`, or look at its log; one that died is replaced within seconds"
        return Finding("controller", False, "no leader: no plans are made", remedy)
    return Finding("controller", True, f"{leader['id']} leads, it took over {ago(leader['since_s'])}")


def _instances(instances: list[dict[str, Any]]) -> Finding:
    awake = [each["id"] for each in instances if each["active_model"]]
    ok = bool(awake) and len(awake) == len(instances)
    remedy = "" if ok else "wait for engines that are starting; else see the log of the agent"
    return Finding("instances", ok, f"{len(instances)} live, {len(awake)} with a model awake", remedy)


def _instance(each: dict[str, Any]) -> Finding:
    return Finding(f"instance {each['id']}", False, each["error"], "see the log of its engine")


def _token_budget(each: dict[str, Any]) -> list[Finding]:
    """Find an engine whose token budget differs from that of its profile and the configuration."""
    capacity = each["capacity"] or {}
    reported, expected = (capacity.get(f"batched_tokens_{name}") for name in ("max", "expected"))
    if reported is None or expected is None or reported == expected:
        return []
    detail = (
        f"the engine of {each['active_model']} computes up to {reported} tokens per iteration, "
        f"and its profile or the configuration says {expected}"
    )
    remedy = (
        f"set batched_tokens_max of the instance to {reported}, "
        f"or start the engine with --max-num-batched-tokens {expected}"
    )
    return [Finding(f"token budget of {each['id']}", False, detail, remedy)]


def _waiting(classes: list[dict[str, Any]], instances: list[dict[str, Any]]) -> list[Finding]:
    """Find models that have waiting requests and no live instance."""
    served = {model for each in instances for model in each["models"]}
    unserved: Counter[str] = Counter()
    for each in classes:
        if each["queued"] and each["model"] not in served:
            unserved[each["model"]] += each["queued"]
    return [
        Finding(
            f"model {model}",
            False,
            f"{queued} requests wait, no live instance serves it",
            "start one that does",
        )
        for model, queued in unserved.items()
    ]


def _dead_letters(total: int) -> list[Finding]:
    if not total:
        return []
    remedy = "`qlm requests --dead` shows why; `qlm requests retry --all` puts back those that can be read"
    return [Finding("dead letters", False, f"{total} messages could not be decoded", remedy)]
