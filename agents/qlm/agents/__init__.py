"""The agent beside each LLM serving instance: turns the plan into serving operations."""
