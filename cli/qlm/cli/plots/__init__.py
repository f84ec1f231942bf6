"""Figures of simulations and estimator evaluations."""
