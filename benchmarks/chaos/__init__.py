"""`make chaos`: everything is killed in turn under load, and every accepted request is accounted for."""
