"""The engine model as a host of batch policies (`qlm.agents.batching`)."""
