"""Names that YAML would read as something else stay texts."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.chart import CHART, helm

NAMES = {"name", "namespace", "secretName", "groupName", "storageClassName", "runtimeClassName"}
NAMES |= {"ingressClassName", "claimName"}
TEXTS = {"labels", "matchLabels", "annotations", "nodeSelector"}

SETTINGS = {
    "fullnameOverride": "null",
    "images.pullSecrets": ["1"],
    "secrets.existing": "2",
    "secrets.ca": {"secret": "3", "configMap": "", "key": "4"},
    "redis.storage": {"size": "1Gi", "className": "on"},
    "filesS3": {"bucket": "files", "secret": "5"},
    "grpc.tlsSecret": "6",
    "ingress": {"enabled": True, "host": "7", "className": "off", "tlsSecret": "8"},
}


def scalars(part: Any, key: str = "", inside: str = "") -> Iterator[tuple[str, Any]]:
    """List the values of keys that take texts only."""
    if isinstance(part, dict):
        for name, each in part.items():
            yield from scalars(each, name, key)
    elif isinstance(part, list):
        for each in part:
            yield from scalars(each, "", key)
    elif key in NAMES or inside in TEXTS:
        yield key, part


@pytest.mark.parametrize("runtime", ["ray", "process"])
@pytest.mark.parametrize("group", ["null", "true", "y"])
def test_names_are_texts_whatever_they_are(runtime: str, group: str) -> None:
    entry = {"name": group, "accelerator": "A100", "count": 3, "countMax": 5, "runtimeClassName": "yes"}
    settings = SETTINGS | {"fleet": [entry], "agents.runtime": runtime, "keda.enabled": True}
    words = [word for key, value in settings.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]
    values = CHART / "examples/values-emulated.yaml"
    text = helm("template", "12", CHART, "--namespace", "34", "-f", values, *words)
    found = [each for manifest in yaml.safe_load_all(text) if manifest for each in scalars(manifest)]
    assert [each for each in found if not isinstance(each[1], str)] == []
    given = {value for _, value in found}
    assert {"12", "34", group, "null", "1", "2", "on", "yes", "5", "6", "off", "8"} <= given
