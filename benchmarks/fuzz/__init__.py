"""Seeded malformed requests, over HTTP and gRPC, at a QLM that serves a well-behaved client meanwhile.

A request is a function of the seed and its number, so each can be sent again alone.
"""
