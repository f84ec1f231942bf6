"""A Ray cluster of several nodes on this machine's loopback interface, as a program.

Usage: python ray_nodes.py ADDRESS_FILE NODE..., each node being its custom resources as JSON. The address of
the head, which is the first node, is written to the file once all nodes are up.
"""

import json
import signal
import sys
from pathlib import Path

from qlm.agents.ray.cluster import OBJECT_STORE_BYTES


def main(address_file: str, *nodes: str) -> None:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 0, "object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "resources": json.loads(nodes[0])})
    for node in nodes[1:]:
        cluster.add_node(**small, resources=json.loads(node))
    cluster.wait_for_nodes()
    fresh = Path(address_file).with_suffix(".new")
    fresh.write_text(cluster.address)
    fresh.rename(address_file)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
