"""Schemathesis at the documents of the API."""
