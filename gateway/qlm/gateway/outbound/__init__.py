"""Connections to addresses that users name: to public ones only, unless the configuration allows others."""
