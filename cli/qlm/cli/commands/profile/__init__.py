"""`qlm profile`."""
