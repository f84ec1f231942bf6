"""What operators read and change of queues: their listing, holds, and dead letters."""
