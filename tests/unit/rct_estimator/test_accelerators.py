"""The table of accelerators: names resolve, and the figures keep the order that the hardware has."""

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.accelerators import ACCELERATORS, accelerator_of, find_accelerator
from qlm.rct_estimator.profiles.builtin import builtin_profiles


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("a10g", "A10G"),
    ],
)
def test_names_of_devices_as_drivers_report_them_are_known(device: str, name: str) -> None:
    assert accelerator_of(device).name == name


def test_every_name_finds_its_own_entry() -> None:
    assert [accelerator_of(each.name) for each in ACCELERATORS] == list(ACCELERATORS)


def test_an_unknown_name_lists_the_known_ones() -> None:
    assert find_accelerator("A1000") is None
    with pytest.raises(InvalidValueError, match="accelerator is 'A1000'; expected one of: A10, A10G, A100"):
        accelerator_of("A1000")


def test_figures_lie_where_hardware_does() -> None:
    for each in ACCELERATORS:
        flops_per_byte = each.flops_per_s / each.bandwidth_bytes_per_s
        assert 70 < flops_per_byte < 450, each.name
        assert 5e9 < each.host_link_bytes_per_s < each.bandwidth_bytes_per_s / 4, each.name
        assert 5e-3 < each.memory_bytes / each.bandwidth_bytes_per_s < 0.1, each.name  # one pass over it, s


def test_memory_agrees_with_the_shipped_profiles() -> None:
    for profile in builtin_profiles():
        memory_bytes = accelerator_of(profile.accelerator).memory_bytes * profile.gpus
        assert profile.accelerator_memory_bytes == pytest.approx(memory_bytes, rel=0.025)
