"""A simulated cluster around the production decisions: clock, broker, store, agents, engines, clients."""
