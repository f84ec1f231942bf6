"""The page of the errors of the shipped profiles at published measurements."""

from collections.abc import Iterator

from qlm.rct_estimator.profiles.points import errors as point_errors
from qlm.simulator.evaluation.fidelity import Errors
from scripts.shipped_profiles.accuracy import error, predicted_ms
from scripts.shipped_profiles.logs import LOGS, iterations, judged
from scripts.shipped_profiles.profiles import REQUEST_MS, WANTED, built_profile, file_name
from scripts.shipped_profiles.published import TABLES, Batch, FirstToken, Pace, Row, Table


def profile_accuracy_page() -> str:
    return "\n".join([*head(), *summary(), *logs(), *details()]) + "\n"


def head() -> list[str]:
    return [
        "# Accuracy of the shipped profiles",
        "",
        "Each shipped profile against published measurements that none of its constants came from."
        " Written by `make reference`. [Sources of the constants](../profile-sources.md).",
        "",
        "* An error is what the profile says over what was measured, less one: negative where the profile is"
        " faster.",
        "* Most engines measured are older than vLLM 0.32. Where they spend host time or use slower kernels,"
        " the profile has to be faster.",
        "* A first token as clients see it includes the request's way through the server, which is"
        f" `request_ms` of the profiles ({REQUEST_MS:g} ms). Rows of published measurements are judged"
        " without it, logs with it.",
        "",
    ]


def summary() -> list[str]:
    lines = [
        "## By profile",
        "",
        "| profile | rows | mean error | mean absolute | largest | engines |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for wanted in WANTED:
        name = file_name(*wanted)
        tables = [table for table in TABLES if name in table.judges]
        errors = [error(table, row) for table in tables for row in table.rows]
        if not errors:
            raise LookupError(f"{name} has no measurement that judges it; add one to TABLES")
        mean, absolute = sum(errors) / len(errors), sum(map(abs, errors)) / len(errors)
        engines = ", ".join(dict.fromkeys(table.engine for table in tables))
        largest = max(errors, key=abs)
        lines.append(
            f"| {name} | {len(errors)} | {percent(mean)} | {100 * absolute:.1f} % | {percent(largest)}"
            f" | {engines} |"
        )
    return [*lines, ""]


def logs() -> list[str]:
    mean, largest = point_errors(built_profile("llama-3-8b", "H100", 1).iteration, iterations())
    lines = [
        "## Logs of llama-3-8b on 1 x H100, vLLM 0.32",
        "",
        "Judges `llama-3-8b-h100.yaml` by what clients of a running engine saw. Constants of the H100 came"
        f" from timed iterations of the same machine ({100 * mean:.1f} % mean error, {100 * largest:.1f} %"
        " at most at these), and none from these logs. Below, `each` is the mean over requests of the error"
        " without sign.",
        "",
        "| log | requests | TTFT, mean | each | TPOT, mean | each | E2E, mean | each | served per second |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, what in LOGS.items():
        level = judged(name)
        columns = [cell for each in (level.ttft, level.tpot, level.e2e) for cell in both(each)]
        rate = ""
        if level.log_rps is not None and level.rate_error is not None:
            rate = f"{level.log_rps:.1f} ({percent(level.rate_error)})"
        lines.append(f"| {what} | {level.requests} | {' | '.join(columns)} | {rate} |")
    return [
        *lines,
        "",
        "What held the last two up was not found out. Both are from another start of the engine, with more"
        " requests per second than the others. The first sent no more tokens per second to its client (3,800)"
        " than the log at 20/s. The second sent 11,000 through `/v1/completions`, where the server's process"
        " or the client may have been the limit: through `/inference/v1/generate`, which agents use, 256"
        " decodes got 21,000.",
        "",
    ]


def both(errors: Errors | None) -> tuple[str, str]:
    """Return the error of the mean, and the mean error of each request."""
    if errors is None or errors.error["mean"] is None or errors.each is None:
        return "", ""
    return percent(errors.error["mean"]), f"{100 * errors.each:.1f} %"


def details() -> Iterator[str]:
    for table in TABLES:
        yield f"## {table.model} on {table.gpus} x {table.accelerator}, {table.engine}"
        yield ""
        judged = ", ".join(f"`{name}`" for name in table.judges)
        yield f"Judges {judged}. {table.note.rstrip('.')}. [Source]({table.source})."
        yield ""
        yield "| measured | ms | profile, ms | error |"
        yield "|---|--:|--:|--:|"
        for row in table.rows:
            said, off = predicted(table, row), percent(error(table, row))
            yield f"| {described(row)} | {row.ms:g} | {said} | {off} |"
        yield ""


def described(row: Row) -> str:
    match row:
        case Pace(sequences, context, _):
            return f"time per token, {sequences} sequences, {context} tokens of context"
        case FirstToken(prompt, _):
            return f"first token, prompt of {prompt} tokens"
        case Batch(sequences, prompt, output, _):
            return f"batch of {sequences}, prompts of {prompt}, answers of {output} tokens"


def predicted(table: Table, row: Row) -> str:
    return f"{predicted_ms(table, row):.4g}" if row.ms < 1000 else f"{predicted_ms(table, row):.0f}"


def percent(share: float) -> str:
    return f"{100 * share:+.1f} %"
