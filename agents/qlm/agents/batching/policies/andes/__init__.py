"""Andes: serve the requests whose quality of experience gains most per block of KV cache."""
