"""Agents as actors on a Ray cluster: placed by accelerator, restarted by Ray. Ray is imported only here."""
