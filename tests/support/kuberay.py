"""The pods that the KubeRay operator makes of a RayCluster: what it adds to the templates, as of KubeRay 1.7.

It was read in its source (ray-operator/controllers/ray/common/pod.go). Told here is what a process can see:
the command, the environment, the container that waits for the head. Not told are labels and ports that only
its own services and monitors need.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from support.chart import NAMESPACE, Manifest, Pod, of_kind, pods

SHELL = ["/bin/bash", "-c", "--"]
HEAD_PORT = 6379
_SWITCHED = ("log-color", "include-dashboard", "include-log-monitor")
"""Options of `ray start` that take a truth value; others are given or not."""

_UNITS = {"": 1, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}

Container = Mapping[str, Any]


def pods_run(manifests: tuple[Manifest, ...]) -> Iterator[Pod]:
    """List all pods as they are run: as rendered, but those of a RayCluster as KubeRay makes them."""
    clusters = of_kind(manifests, "RayCluster")
    for pod in pods(manifests):
        cluster, _, group = pod.name.partition("/")
        yield _made(pod, clusters[cluster], group) if group else pod


def _made(pod: Pod, cluster: Manifest, group: str) -> Pod:
    """Make a pod of a template."""
    name, spec = cluster["metadata"]["name"], cluster["spec"]
    address = f"{name}-head-svc.{NAMESPACE}.svc.cluster.local"
    heads = group == "head"
    found = {each["groupName"]: each for each in spec["workerGroupSpecs"]}
    given = (spec["headGroupSpec"] if heads else found[group])["rayStartParams"]
    params = _params(given, pod.container, "" if heads else address)
    head = {"name": "FQ_RAY_IP", "value": address}, {"name": "RAY_IP", "value": f"{name}-head-svc"}
    own = _environment(params, "127.0.0.1" if heads else address)
    started = {
        **pod.container,
        "command": SHELL,
        "args": [f"ulimit -n ${{RAY_START_ULIMIT_OPEN_FILES:-65536}}; {_ray_start(params, heads)}"],
        "env": [*pod.container["env"], *(() if heads else head), *own],
    }
    waits = {
        **{key: pod.container[key] for key in ("env", "volumeMounts", "securityContext", "image")},
        "name": "wait-gcs-ready",
        "command": SHELL,
        "args": [f"until ray health-check --address {address}:{HEAD_PORT}; do sleep 5; done"],
    }
    labels = {
        **pod.labels,
        "ray.io/cluster": name,
        "ray.io/group": "headgroup" if heads else group,
        "ray.io/node-type": "head" if heads else "worker",
    }
    made = {**pod.spec, "containers": [started], "initContainers": [] if heads else [waits]}
    return dataclasses.replace(pod, spec=made, labels=labels)


def _params(given: Mapping[str, str], container: Container, head: str) -> dict[str, str]:
    """Complete the parameters of `ray start`; for workers with the address of the head."""
    own = {
        "metrics-export-port": "8080",
        "dashboard-agent-listen-port": "52365",
        "memory": str(_bytes(container["resources"]["limits"]["memory"])),
        **({"address": f"{head}:{HEAD_PORT}"} if head else {"dashboard-host": "0.0.0.0"}),
    }
    return {**own, **given, "block": "true"}


def _bytes(quantity: str) -> int:
    found = re.fullmatch(r"(\d+)(\w*)", quantity)
    assert found is not None
    return int(found[1]) * _UNITS[found[2]]


def _ray_start(params: Mapping[str, str], heads: bool) -> str:
    """Write the command line: values are words of a shell, as they are."""
    reported = [f"ray start{' --head' if heads else ''}"]
    for name, value in sorted(params.items()):
        if value not in ("true", "false") or name in _SWITCHED:
            reported.append(f"--{name}={value}")
        elif value == "true":
            reported.append(f"--{name}")
    return " ".join(reported)


def _environment(params: Mapping[str, str], head: str) -> list[dict[str, Any]]:
    """List what a container gets beside its own."""
    fields = {
        "RAY_CLUSTER_NAME": "metadata.labels['ray.io/cluster']",
        "RAY_CLUSTER_NAMESPACE": "metadata.namespace",
        "RAY_CLOUD_INSTANCE_ID": "metadata.name",
        "RAY_NODE_TYPE_NAME": "metadata.labels['ray.io/group']",
    }
    values = {
        "KUBERAY_GEN_RAY_START_CMD": _ray_start(params, "address" not in params),
        "RAY_PORT": str(HEAD_PORT),
        "RAY_ADDRESS": f"{head}:{HEAD_PORT}",
        "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
        "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
    }
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in values.items()),
    ]
