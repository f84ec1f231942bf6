"""The processes of a rendered chart on this machine: what would run in its containers, on loopback.

What a container is told stays as it is, but for what has no place on one machine:

* names and ports of Services become 127.0.0.1 and a free port;
* addresses to listen on in configuration files become 127.0.0.1, ports to listen on free ones;
* paths at which volumes are mounted become folders of the container, with what the volume holds;
* nodes of Ray listen on free ports, and have their files where paths are short, as those of sockets must be;
  the head is told to stay on loopback (by a variable that is meant for other systems), and nodes know it by a
  name that Ray does not replace by the machine's address to others.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from support.chart import NAMESPACE, PREFIX, Manifest, Pod, of_kind
from support.ports import free_port, free_ports

SERVED = {"gateway": 8000, "gateway-admin": 8090, "rabbitmq": 5672, "redis": 6379, "ray-head": 6379}
"""Ports of Services, by what follows the name of the release."""

_RAY_HEAD = "Localhost"
_RAY_PORTS = ("node-manager-port", "object-manager-port", "min-worker-port", "max-worker-port")
_RAY_WORKERS_MAX = 20
"""Ports for processes of agents, on each node of Ray."""


class Cluster:
    """Rendered manifests with a place for each of their pods.

    Args:
        manifests: All of them.
        folder: Takes a folder for each pod.
    """

    def __init__(self, manifests: tuple[Manifest, ...], folder: Path) -> None:
        self._secrets = {name: each["stringData"] for name, each in of_kind(manifests, "Secret").items()}
        self._configs = {name: each["data"] for name, each in of_kind(manifests, "ConfigMap").items()}
        self._folder = folder
        self._places = 0
        self.ports = {name: free_port() for name in SERVED}

    def place(self, pod: Pod, index: int) -> "Place":
        """Make the folder of a pod with what is mounted, and rewrite what its container is told."""
        home = self._folder / f"{pod.name}-{index}"
        port = self.ports.get(pod.component, 0) if index == 0 else free_port()
        self._places += 1
        place = Place(pod, index, home, port, self, self._folder / str(self._places))
        place.mount(self._configs)
        return place

    def environment(self, pod: Pod, index: int) -> dict[str, str]:
        """Resolve the environment of a container, as its manifest has it."""
        found = {}
        for each in pod.container.get("env", ()):
            source = each.get("valueFrom", {})
            if "secretKeyRef" in source:
                wanted = source["secretKeyRef"]
                found[each["name"]] = self._secrets[wanted["name"]][wanted["key"]]
            elif "fieldRef" in source:
                found[each["name"]] = _field(pod, index, source["fieldRef"]["fieldPath"])
            else:
                found[each["name"]] = each["value"]
        return found


def _field(pod: Pod, index: int, path: str) -> str:
    """What Kubernetes knows of a pod, by the path of the field."""
    labels = {**pod.labels, "apps.kubernetes.io/pod-index": str(index)}
    fields = {f"metadata.labels['{name}']": value for name, value in labels.items()}
    name = f"{pod.name.replace('/', '-')}-{index}"
    return {**fields, "metadata.namespace": NAMESPACE, "metadata.name": name}[path]


class Place:
    """One pod on this machine.

    Attributes:
        port: Where it listens, if it has a Service.
        listening: Ports by section of the configuration file, which are the names of the container's ports.
        home: Its folder.
    """

    def __init__(self, pod: Pod, index: int, home: Path, port: int, cluster: Cluster, short: Path) -> None:
        self.pod, self.home, self.port = pod, home, port
        self.listening: dict[str, int] = {}
        self._index, self._cluster = index, cluster
        self._admin_port = cluster.ports["gateway-admin"] if index == 0 else free_port()
        mounts = pod.container["volumeMounts"]
        self._moved = {each["mountPath"]: str(home / each["mountPath"].lstrip("/")) for each in mounts}
        self._moved |= {"/tmp": str(short)} if "/tmp" in self._moved else {}
        for name, served in SERVED.items():
            self._moved[f"{PREFIX}-{name}:{served}"] = f"127.0.0.1:{cluster.ports[name]}"
        for service in (f"{PREFIX}-ray-head-svc", f"{PREFIX}-ray-head-svc.{NAMESPACE}.svc.cluster.local"):
            self._moved[f"{service}:{SERVED['ray-head']}"] = f"{_RAY_HEAD}:{cluster.ports['ray-head']}"
        if pod.component == "ray-head":  # of which KubeRay tells it so
            self._moved[f"127.0.0.1:{SERVED['ray-head']}"] = f"127.0.0.1:{port}"
            self.listening["gcs-server"] = port
        node, objects, workers = free_port(), free_port(), free_ports(_RAY_WORKERS_MAX + 1)
        self._ray_ports = dict(zip(_RAY_PORTS, (node, objects, workers[0], workers[-1]), strict=True))
        self.listening["raylet"] = node

    @property
    def environment(self) -> dict[str, str]:
        """What the container has in its environment."""
        given = self._cluster.environment(self.pod, self._index)
        found = {name: self.moved(value) for name, value in given.items()}
        if "RAY_AUTH_MODE" in found:
            found["RAY_TMPDIR"] = self._moved["/tmp"]
        if self.pod.component == "ray-head":
            found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        return found

    @property
    def command(self) -> list[str]:
        """What the container runs; without the entry point of its image where that is not replaced."""
        container = self.pod.container
        return self.words([*container.get("command", ()), *container.get("args", ())])

    def words(self, reported: list[str]) -> list[str]:
        """Rewrite a command line; `$(NAME)` is filled in as Kubernetes does."""
        given = self._cluster.environment(self.pod, self._index)
        filled = [re.sub(r"\$\((\w+)\)", lambda name: given[name[1]], word) for word in reported]
        return [self.moved(word) for word in filled]

    def moved(self, text: str) -> str:
        """Rewrite paths and addresses, each once."""
        longest_first = sorted(self._moved, key=len, reverse=True)
        found = re.sub("|".join(map(re.escape, longest_first)), lambda it: self._moved[it[0]], text)
        listening = rf"(--port|listeners\.tcp\.default =) {SERVED.get(self.pod.component, 0)}\b"
        found = re.sub(listening, rf"\1 {self.port}", found)
        found = found.replace("ray start --head", f"ray start --head --port={self.port}")
        found = found.replace("ray start", f"ray start --temp-dir={self._moved.get('/tmp')}/ray")
        return re.sub(r"--([\w-]+-port)=\d+", self._ray_port, found)

    def _ray_port(self, option: re.Match[str]) -> str:
        port = self._ray_ports.get(option[1])
        return f"--{option[1]}={port}" if port else option[0]

    def mount(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Make the folders of volumes, with the files of those that hold configuration."""
        volumes = {each["name"]: each for each in self.pod.spec.get("volumes", ())}
        for mount in self.pod.container["volumeMounts"]:
            at = Path(self._moved[mount["mountPath"]])
            volume = volumes.get(mount["name"])
            if volume is None:
                assert mount["name"] in self.pod.claims
                at.mkdir(parents=True, exist_ok=True)
            elif "configMap" in volume:
                self._write(configs[volume["configMap"]["name"]], at, mount.get("subPath"))
            else:
                assert "emptyDir" in volume
                at.mkdir(parents=True, exist_ok=True)

    def _write(self, files: Mapping[str, str], at: Path, only: str | None) -> None:
        folder = at.parent if only else at
        folder.mkdir(parents=True, exist_ok=True)
        for name in [only] if only else files:
            text = self.moved(files[name])
            (folder / name).write_text(self._on_loopback(text) if name == "qlm.yaml" else text, "utf-8")

    def _on_loopback(self, text: str) -> str:
        config: dict[str, Any] = yaml.safe_load(text)
        known = {"http": self.port, "admin": self._admin_port}
        for section in ("http", "grpc", "admin", "monitor"):
            if section in config:
                assert config[section]["host"] == "0.0.0.0"
                port = known.get(section) or free_port()
                config[section] |= {"host": "127.0.0.1", "port": port}
                self.listening[section] = port
        return yaml.safe_dump(config)
