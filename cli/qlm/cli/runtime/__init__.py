"""Processes of a deployment: wiring, listeners, health, telemetry, logs."""
