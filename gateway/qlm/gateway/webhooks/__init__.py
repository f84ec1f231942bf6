"""Webhooks: events of the ends of responses and batches, in the form of Standard Webhooks."""
