"""Tables of what the controllers have learned."""

from collections import defaultdict
from collections.abc import Iterator

from qlm.cli.inspect import render
from qlm.cli.inspect.layout import Table
from qlm.controller.core.estimating.arrivals import is_recent
from qlm.controller.core.history.history import History
from qlm.controller.core.history.model_answers import objective_kind
from qlm.domain.group import RequestClass


def history_tables(history: History, now_s: float) -> Iterator[Table]:
    """Yield a table of models by kind of objective, and one of instances.

    Args:
        history: The stored history.
        now_s: The present, seconds since the epoch.
    """
    yield render.table(
        f"learned, as stored {_ago(history.at_ns, now_s)}",
        (
            "model",
            "objective",
            "classes>",
            "answers>",
            "mean output>",
            "mean prompt>",
            "requests/s>",
            "seen>",
        ),
        _models(history, now_s),
    )
    if history.speeds:
        yield render.table(
            "speeds",
            ("instance", "model", "times of the profile>", "uncertainty>", "seen>"),
            (
                (
                    instance,
                    model,
                    f"{each.correction.factor:.2f}",
                    f"{100 * each.correction.uncertainty:.1f} %",
                    _ago(each.at_ns, now_s),
                )
                for (instance, model), each in sorted(history.speeds.items())
            ),
        )


def _models(history: History, now_s: float) -> Iterator[tuple[object, ...]]:
    alike: defaultdict[tuple[str, str], list[RequestClass]] = defaultdict(list)
    for cls in history.classes:
        alike[cls.model, objective_kind(cls)].append(cls)
    for (model, kind), classes in sorted(alike.items()):
        records = [history.classes[cls] for cls in classes]
        counts = [record.counts for record in records]
        answers = sum(each.answers for each in counts)
        tokens = sum(each.all_tokens for each in counts)
        prompts = sum(each.answers * r.mean_prompt_tokens for each, r in zip(counts, records, strict=True))
        known = [history.arrivals[cls] for cls in classes if cls in history.arrivals]
        rate_rps = sum(each.accepted_rps for each in known if is_recent(each, round(now_s * 1e9)))
        yield (
            model,
            kind,
            len(classes),
            f"{answers:.0f}",
            f"{tokens / answers:.0f}" if answers else None,
            f"{prompts / answers:.0f}" if answers else None,
            f"{rate_rps:.2g}" if rate_rps else None,
            _ago(max(record.at_ns for record in records), now_s),
        )


def _ago(at_ns: int, now_s: float) -> str:
    return f"{render.span(max(0.0, now_s - at_ns / 1e9))} ago"
