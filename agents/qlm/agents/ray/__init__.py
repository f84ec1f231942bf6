"""Agents as actors on a Ray cluster: placed by accelerator, restarted by Ray. Nothing else imports Ray."""
