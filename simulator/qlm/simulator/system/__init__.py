"""The whole system on one deterministic event loop: production's shells, simulated servers, drawn faults."""
