"""Names of what the chart makes fit where Kubernetes puts them, whatever the release is called."""

import re

import pytest
import yaml

from support.chart import CHART, RefusedError, helm

EMULATED = CHART / "examples/values-emulated.yaml"
LONGEST = "a-release-with-a-name-of-fifty-three-characters-as-it"


@pytest.mark.parametrize("release", ["qlm.prod", LONGEST])
def test_names_of_services_and_pods_are_no_longer_than_labels(release: str) -> None:
    fleet = 'fleet=[{"name": "a2345678901234567890", "accelerator": "A100", "count": 2}]'
    manifests = yaml.safe_load_all(helm("template", release, CHART, "-f", EMULATED, "--set-json", fleet))
    for each in manifests:
        name = each["metadata"]["name"]
        if each["kind"] in ("Service", "StatefulSet"):
            assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
            # Pods of a StatefulSet carry its name and a hash of ten characters in a label of 63.
            assert len(name) <= (52 if each["kind"] == "StatefulSet" else 63), name


@pytest.mark.parametrize("release", ["1st", "2024.prod"])
def test_a_release_after_which_no_service_can_be_named_is_refused(release: str) -> None:
    with pytest.raises(RefusedError, match=r"names would begin with .*a letter first"):
        helm("template", release, CHART, "-f", EMULATED)
    named = helm("template", release, CHART, "-f", EMULATED, "--set", "fullnameOverride=q")
    assert "q-gateway" in {each["metadata"]["name"] for each in yaml.safe_load_all(named)}


def test_an_override_that_is_no_name_is_refused() -> None:
    with pytest.raises(RefusedError, match="expected letters, digits and hyphens"):
        helm("template", "r", CHART, "-f", EMULATED, "--set", "fullnameOverride=QLM_prod")
