"""How good estimates are: forecasts recorded while a scenario is simulated, against what then happened."""
