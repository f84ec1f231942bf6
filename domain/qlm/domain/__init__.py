"""The values and ports that every other component speaks in."""
