"""The Helm chart rendered: manifests, and the pods in them."""

import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/qlm"
EXAMPLES = tuple(sorted((CHART / "examples").glob("values-*.yaml")))
HELM = Path(sys.executable).with_name("helm")

RELEASE, NAMESPACE = "r", "llm"
PREFIX = f"{RELEASE}-qlm"

Manifest = dict[str, Any]


class RefusedError(Exception):
    """Helm does not render these values; the message is what it says."""


def helm(*arguments: str | Path) -> str:
    """Run helm without a cluster."""
    done = subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(done.stdout + done.stderr)
    return done.stdout


@functools.cache
def rendered(example: str, *settings: str) -> tuple[Manifest, ...]:
    """Render an example by its short name (`emulated`), with `--set` settings."""
    values = CHART / f"examples/values-{example}.yaml"
    words = [word for each in settings for word in ("--set-json", each)]
    text = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "-f", values, *words)
    return tuple(each for each in yaml.safe_load_all(text) if each)


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> dict[str, Manifest]:
    """Return the manifests of a kind, by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod template, and who makes pods of it.

    Attributes:
        name: Of the workload; nodes of Ray have their group's behind it.
        replicas: How many pods.
        spec: Of the pod.
        labels: Of the pod.
        annotations: Of the pod.
        claims: Names of the volumes that are claimed for each pod.
    """

    name: str
    replicas: int
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    claims: tuple[str, ...] = ()

    @property
    def component(self) -> str:
        """What part of QLM it is."""
        return self.labels["app.kubernetes.io/component"]

    @property
    def container(self) -> Mapping[str, Any]:
        """Its container; there is one."""
        (only,) = self.spec["containers"]
        found: Mapping[str, Any] = only
        return found

    @property
    def own_image(self) -> bool:
        """Whether it runs an image of QLM's."""
        return str(self.container["image"]).startswith("qlm-")


def pods(manifests: tuple[Manifest, ...]) -> Iterator[Pod]:
    """List the pod templates of all workloads."""
    for each in manifests:
        name, spec = each["metadata"]["name"], each.get("spec", {})
        if each["kind"] in ("Deployment", "StatefulSet"):
            claims = tuple(claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ()))
            yield _pod(name, spec.get("replicas", 1), spec["template"], claims)
        elif each["kind"] == "RayCluster":
            yield _pod(f"{name}/head", 1, spec["headGroupSpec"]["template"])
            for group in spec["workerGroupSpecs"]:
                yield _pod(f"{name}/{group['groupName']}", group["replicas"], group["template"])


def _pod(name: str, replicas: int, template: Mapping[str, Any], claims: tuple[str, ...] = ()) -> Pod:
    about = template["metadata"]
    return Pod(name, replicas, template["spec"], about["labels"], about.get("annotations", {}), claims)


def config_of(manifests: tuple[Manifest, ...]) -> dict[str, Any]:
    """Return the configuration file that the chart writes."""
    text = of_kind(manifests, "ConfigMap")[PREFIX]["data"]["qlm.yaml"]
    found: dict[str, Any] = yaml.safe_load(text)
    return found
