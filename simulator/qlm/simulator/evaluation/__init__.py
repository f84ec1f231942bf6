"""Accuracy of forecasts: recorded during a simulation, and compared with its outcomes."""
