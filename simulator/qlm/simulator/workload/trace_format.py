"""Names of the formats of traces."""

from enum import StrEnum


class TraceFormat(StrEnum):
    """Formats of published traces."""

    AZURE = "azure"
    BURSTGPT = "burstgpt"
    MOONCAKE = "mooncake"
    SHAREGPT = "sharegpt"
    LENGTHS = "lengths"
    CSV = "csv"
