"""Requests between client and queue: submit, attach, resume, cancel, shut down."""
