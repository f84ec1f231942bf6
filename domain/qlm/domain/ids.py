"""Names of things, as distinct types so that one cannot be passed for another."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""Identifies one request for its whole life; chosen by the gateway, unique in a cluster."""

GroupId = NewType("GroupId", str)
"""Identifies one request group."""

ModelId = NewType("ModelId", str)
"""Name of a served model, as a client writes it."""

InstanceId = NewType("InstanceId", str)
"""Name of one LLM serving instance; stable over restarts of its agent."""

SessionId = NewType("SessionId", str)
"""One life of an agent process; a new one voids the leases of the former."""

GatewayId = NewType("GatewayId", str)
"""Name of one gateway process, to which output of the requests it watches is announced."""

ControllerId = NewType("ControllerId", str)
"""Name of one controller process, which leads or stands by."""

QueueName = NewType("QueueName", str)
"""Name of a durable queue in the broker."""

TokenIds = tuple[int, ...]
"""A run of token ids; the truth about text everywhere inside QLM."""
