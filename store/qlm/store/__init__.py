"""The shared state: leases, output logs, group index and plans, in Redis or in process."""
