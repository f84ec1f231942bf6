"""The page of the errors of the shipped profiles at published measurements."""

from collections.abc import Iterator

from scripts.shipped_profiles.accuracy import error, predicted_ms
from scripts.shipped_profiles.profiles import WANTED, file_name
from scripts.shipped_profiles.published import TABLES, Batch, FirstToken, Pace, Row, Table


def profile_accuracy_page() -> str:
    return "\n".join([*head(), *summary(), *details()]) + "\n"


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
        "* A first token as clients see it includes the request's way through the server (5 to 10 ms), which"
        " profiles do not hold.",
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
        mean, absolute = sum(errors) / len(errors), sum(map(abs, errors)) / len(errors)
        engines = ", ".join(dict.fromkeys(table.engine for table in tables))
        largest = max(errors, key=abs)
        lines.append(
            f"| {name} | {len(errors)} | {percent(mean)} | {100 * absolute:.1f} % | {percent(largest)}"
            f" | {engines} |"
        )
    return [*lines, ""]


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
