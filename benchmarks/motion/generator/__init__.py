"""Generator of scenarios: a seed draws fleet, models, demand and disturbances; see `docs/scenarios.md`."""
