"""Runs the controller: leadership, the planning loop, reconciliation, metrics."""
