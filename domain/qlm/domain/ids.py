"""Distinct types for ids and names, so that the type checker finds a mix-up."""

from typing import Final, NewType

RequestId = NewType("RequestId", str)
"""Id of a request; chosen by the gateway, unique in a cluster."""

GroupId = NewType("GroupId", str)
"""Id of a request group."""

ModelId = NewType("ModelId", str)
"""Name of a served model, as a client writes it."""

InstanceId = NewType("InstanceId", str)
"""Name of one LLM serving instance; stable over restarts of its agent."""

SessionId = NewType("SessionId", str)
"""Id of an agent process; a new session of an instance voids the leases of the previous one."""

GatewayId = NewType("GatewayId", str)
"""Name of one gateway process; the store notifies it of new output of requests it watches."""

ControllerId = NewType("ControllerId", str)
"""Name of one controller process, which leads or stands by."""

QueueName = NewType("QueueName", str)
"""Name of a durable queue in the broker."""

TokenIds = tuple[int, ...]
"""Sequence of token ids; inside QLM all text is kept in this form."""

TOKEN_ID_MAX: Final = 2**32 - 1
"""Largest token id: output logs have four bytes for each."""
