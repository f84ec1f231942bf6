"""Files of `qlm bench --save`: every request and chunk, and the report. Versioned."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, NonNegativeInt, model_validator

from qlm.cli.bench.possible import Fields, possible
from qlm.cli.bench.record import Chunk, Run, Sent, TokenCount
from qlm.cli.bench.report import plain

FORMAT: Final = "qlm-bench"
VERSION: Final = 1


class SavedRequest(BaseModel):
    """A request; see `record.Sent`. Times are seconds from the start of the run."""

    model_config = ConfigDict(strict=True, frozen=True)

    scheduled_s: float
    sent_s: float
    end_s: float
    chunk_times_s: list[float]
    chunk_tokens: list[TokenCount]
    error: str | None
    prompt_tokens: TokenCount
    asked_tokens: NonNegativeInt | None

    @model_validator(mode="after")
    def _check(self) -> "SavedRequest":
        if len(self.chunk_times_s) != len(self.chunk_tokens):
            raise ValueError("chunk_times_s and chunk_tokens have the same length")
        return self


class SavedRun(BaseModel):
    """A run."""

    model_config = ConfigDict(strict=True, frozen=True)

    seed: int | None
    counting: str
    requests: list[SavedRequest]


class SavedFile(BaseModel):
    """A file."""

    model_config = ConfigDict(strict=True, frozen=True)

    format: Literal["qlm-bench"]
    version: Literal[1]
    runs: list[SavedRun]


def saved_text(runs: Sequence[Run], report: Mapping[str, Any], settings: Mapping[str, Any]) -> bytes:
    """Write runs as JSON.

    Args:
        runs: The runs.
        report: Their report.
        settings: What was asked for: values of the command's options, by name.
    """
    data = {
        "format": FORMAT,
        "version": VERSION,
        "settings": dict(settings),
        "report": plain(dict(report)),
        "runs": [
            {
                "seed": run.seed,
                "counting": run.counting,
                "requests": [_request(each) for each in run.requests],
            }
            for run in runs
        ],
    }
    return orjson.dumps(data) + b"\n"


def runs_of(path: str, file: SavedFile) -> list[Run]:
    """Return the runs of a file.

    Raises:
        InvalidValueError: A request has impossible times.
    """
    return [
        Run(
            requests=tuple(
                possible(_sent(each), _fields(f"{path}: runs.{number}.requests.{row}"))
                for row, each in enumerate(run.requests)
            ),
            counting=run.counting,
            seed=run.seed,
        )
        for number, run in enumerate(file.runs)
    ]


def _request(sent: Sent) -> dict[str, Any]:
    return {
        "scheduled_s": sent.scheduled_s,
        "sent_s": sent.sent_s,
        "end_s": sent.end_s,
        "chunk_times_s": [chunk.at_s for chunk in sent.chunks],
        "chunk_tokens": [chunk.tokens for chunk in sent.chunks],
        "error": sent.error,
        "prompt_tokens": sent.prompt_tokens,
        "asked_tokens": sent.asked_tokens,
    }


def _fields(request: str) -> Fields:
    return Fields(f"{request}.sent_s", f"{request}.chunk_times_s", f"{request}.end_s")


def _sent(saved: SavedRequest) -> Sent:
    return Sent(
        scheduled_s=saved.scheduled_s,
        sent_s=saved.sent_s,
        end_s=saved.end_s,
        chunks=tuple(map(Chunk, saved.chunk_times_s, saved.chunk_tokens)),
        error=saved.error,
        prompt_tokens=saved.prompt_tokens,
        asked_tokens=saved.asked_tokens,
    )
