"""The control loop: observes the system, plans, and hands the plan to the agents."""
