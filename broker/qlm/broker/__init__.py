"""The global queue: durable class queues on RabbitMQ or in one SQLite file."""
