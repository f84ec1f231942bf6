"""The whole system in virtual time: production's shells, simulated servers, faults drawn from a seed."""
