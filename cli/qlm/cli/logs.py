"""What the log of a process looks like."""

import logging


def log_to_stderr(level: int) -> None:
    """Write log lines of this level and above; libraries only say what went wrong."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))
    logging.getLogger("pika").setLevel(max(level, logging.CRITICAL))
