"""Webhooks: ends of responses and batches, told to programs of others in the form of Standard Webhooks."""
