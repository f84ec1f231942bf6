"""What an instance takes from a node of a Ray cluster, and why one waits for a place."""

import pytest

from qlm.agents.core.node_placement import (
    Node,
    emulated_resources,
    fits,
    gpu_resources,
    resources_to_offer,
    waiting_reason,
)

A10 = Node("10.0.0.1", {"CPU": 8, "memory": 1e9, "node:10.0.0.1": 1, "GPU": 2, "accelerator_type:A10": 1})
PLAIN = Node("10.0.0.2", {"CPU": 8, "object_store_memory": 1e9})


@pytest.mark.parametrize(("gpus", "expected"), [(1, True), (2, True), (4, False)])
def test_real_gpus_are_counted_and_their_kind_is_only_asked_for(gpus: int, expected: bool) -> None:
    wanted = gpu_resources("A10", gpus)
    assert fits(wanted, [PLAIN, A10]) is expected


def test_an_instance_fits_on_one_node_or_not_at_all() -> None:
    twice = [A10, Node("10.0.0.3", A10.resources)]
    assert not fits(gpu_resources("A10", 4), twice)
    assert not fits(gpu_resources("A100", 1), twice)


def test_an_own_ray_offers_what_is_emulated_and_makes_up_no_gpu() -> None:
    wanted = [
        emulated_resources("A10", 1),
        emulated_resources("A10", 2),
        {"slot": 0.5},
        gpu_resources("H100", 1),
    ]
    offers = resources_to_offer(wanted)
    assert offers == {"accelerator_type:A10": 3.0, "slot": 1.0}
    own = Node("127.0.0.1", offers)
    assert [fits(each, [own]) for each in wanted] == [True, True, True, False]


def test_why_something_waits_names_what_it_wants_and_what_there_is() -> None:
    wanted = gpu_resources("H100", 8)
    assert waiting_reason(wanted, [A10, PLAIN]) == (
        "no node offers GPU: 8, accelerator_type:H100: 0.001; 10.0.0.1 has GPU: 2, accelerator_type:A10: 1; "
        "10.0.0.2 has none but processors and memory"
    )
    assert waiting_reason(wanted, []).endswith("no node is alive")
    assert waiting_reason(gpu_resources("A10", 2), [A10]) == (
        "all of GPU: 2, accelerator_type:A10: 0.001 is in use, or its process is starting"
    )
