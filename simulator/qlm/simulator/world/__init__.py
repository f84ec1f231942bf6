"""The simulated world around the production decisions: time, queue, state, agents, engines, clients."""
