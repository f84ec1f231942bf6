"""Simulation of a cluster around the production decisions, and the emulated engine."""
