"""Clients that others wrote, run against a whole gateway: `make clients`."""
