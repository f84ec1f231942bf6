"""Webhooks of a deployment, as the configuration has them."""
