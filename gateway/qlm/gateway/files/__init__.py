"""Files and batches of clients, by tenant: what they are, and where they are kept."""
