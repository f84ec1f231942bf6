"""Broker on RabbitMQ."""
