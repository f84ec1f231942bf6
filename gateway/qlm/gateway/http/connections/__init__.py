"""HTTP connections of a listener: their limits, and clients that end their side of one."""
