"""Encoding of domain values as arguments of the Lua scripts, and decoding of replies."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import orjson

from qlm.domain.errors import UndecodableDataError
from qlm.domain.fleet import (
    CachedPrompts,
    EngineCapacity,
    EngineState,
    InstanceStatus,
    OpenAnswers,
    ServedWork,
    StagedWork,
)
from qlm.domain.formats.extensions import (
    NO_CLASS_EXTENSIONS,
    NO_LOG_EXTENSIONS,
    ClassExtensions,
    E,
    LogExtensions,
    extensions_from_plain,
    extensions_to_plain,
    only_logprobs,
)
from qlm.domain.formats.plain import class_to_plain, metadata_from_plain, metadata_to_plain
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import ControllerId, InstanceId, RequestId, SessionId
from qlm.domain.leadership import Leadership, Term
from qlm.domain.lease import AgentProcess, Epoch, Holder, InstanceHeld, Lease
from qlm.domain.lease_answer import Granted, IdTaken, LeaseAnswer, LeaseHeldElsewhere, Over
from qlm.domain.length_histogram import LENGTH_BINS, NO_LENGTHS, NO_PROMPTS, LengthHistogram
from qlm.domain.operations import Operation, OperationCount, OperationStats, SwapCharge
from qlm.domain.outcome import Outcome
from qlm.domain.output import LogEntry, OutputSlice
from qlm.domain.request import Event, Request, RequestMetadata, RequestRecord, RequestState
from qlm.domain.view import ClassView, RequestPosition
from qlm.store.core.plans import mean_and_variance
from qlm.store.core.token_codec import decode_tokens, encode_tokens
from qlm.store.redis.pipeline import Argument
from qlm.store.redis.scripts import padded

_READ = {b"reader", b"first_token_at"}


def class_key(cls: RequestClass) -> str:
    """Return the name of a class in keys."""
    target_ms = None if cls.target_ms is None else float(cls.target_ms)
    late = [True] if cls.late else []
    return orjson.dumps([cls.model, cls.slo, cls.cluster, cls.priority, target_ms, *late]).decode()


def class_of(key: bytes) -> RequestClass:
    """Decode `class_key`."""
    return RequestClass(*orjson.loads(key))


def metadata_arguments(metadata: RequestMetadata) -> tuple[Argument, ...]:
    """Return request metadata as the ten arguments that the scripts read."""
    return (
        metadata.id,
        orjson.dumps(metadata_to_plain(metadata)),
        class_key(metadata.cls),
        metadata.model,
        padded(metadata.arrival_ns),
        "" if metadata.drop_at_ns is None else padded(metadata.drop_at_ns),
        metadata.prompt_tokens,
        metadata.sampling.max_tokens,
        metadata.fingerprint,
        extensions_argument(metadata.extensions.cls),
    )


def extensions_argument(extensions: ClassExtensions | LogExtensions) -> bytes:
    """Encode the extensions of a class or a log as a JSON object of JSON texts; empty for none."""
    if extensions is NO_CLASS_EXTENSIONS or extensions is NO_LOG_EXTENSIONS:
        return b""
    plain = extensions_to_plain(extensions)
    return orjson.dumps({name: orjson.dumps(value).decode() for name, value in plain.items()})


def bare(metadata: RequestMetadata) -> RequestMetadata:
    """Return the metadata of a request without its prompt."""
    return metadata.metadata() if isinstance(metadata, Request) else metadata


def entry_arguments(entry: LogEntry) -> tuple[Argument, ...]:
    """Encode a log entry, and the slice that announces it, as nine arguments."""
    epoch, outcome = entry.epoch, entry.outcome or ""
    announced: dict[str, Any] = {"id": entry.id, "offset": entry.offset, "token_ids": entry.token_ids}
    if outcome:
        announced |= {"outcome": outcome, "detail": entry.detail}
    if (shown := entry.extensions if outcome else only_logprobs(entry.extensions)) is not NO_LOG_EXTENSIONS:
        announced["extensions"] = extensions_to_plain(shown)
    return (
        entry.id,
        epoch.incarnation,
        epoch.n,
        entry.offset,
        encode_tokens(entry.token_ids),
        outcome,
        entry.detail,
        orjson.dumps(announced),
        extensions_argument(entry.extensions),
    )


def status_argument(status: InstanceStatus) -> bytes:
    """Encode the status of a heartbeat as JSON."""
    plain = asdict(status)
    for by_class in (*plain["staged"], *plain["answers"], *plain["prompts"]):
        by_class["cls"] = class_to_plain(RequestClass(**by_class["cls"]))
    return orjson.dumps(plain)


def read_status(text: bytes) -> InstanceStatus:
    """Decode a status of this version or another one.

    During a rolling update some agents are newer than the reader, which ignores unknown fields.

    Raises:
        UndecodableDataError: The text is not a status.
    """
    try:
        plain = known(InstanceStatus, orjson.loads(text))
        plain["holder"] = Holder(**plain["holder"])
        plain["models"] = tuple(plain["models"])
        plain["engines"] = tuple((model, EngineState(state)) for model, state in plain["engines"])
        if plain["capacity"] is not None:
            plain["capacity"] = EngineCapacity(**known(EngineCapacity, plain["capacity"]))
        plain["work"] = ServedWork(**known(ServedWork, plain["work"]))
        # Agents of earlier versions do not have these.
        plain["operations"] = _read_operations(plain.get("operations", {}))
        plain["staged"] = tuple(_read_staged(each) for each in plain.get("staged", ()))
        plain["answers"] = tuple(_read_open(each) for each in plain.get("answers", ()))
        plain["prompts"] = tuple(_read_cached(each) for each in plain.get("prompts", ()))
        if (process := plain.get("process")) is not None:
            plain["process"] = AgentProcess(**known(AgentProcess, process))
        return InstanceStatus(**plain)
    except (KeyError, TypeError, ValueError) as error:
        raise UndecodableDataError(f"the heartbeat {text!r:.200} cannot be read: {error}") from error


def read_held(reply: Sequence[Any]) -> InstanceHeld:
    """Decode the lease of an instance that another session has; its status may be of any version."""
    session, text, lapses_in_ms = reply
    try:
        process = read_status(text).process
    except UndecodableDataError:
        process = None
    return InstanceHeld(
        session=SessionId(session.decode()), process=process, lapses_in_s=max(0, lapses_in_ms) / 1000
    )


def known(kind: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that are fields of a dataclass."""
    return {field.name: plain[field.name] for field in fields(kind) if field.name in plain}


def _read_operations(plain: dict[str, Any]) -> OperationStats:
    counts = (
        OperationCount(**{**known(OperationCount, c), "operation": Operation(c["operation"])})
        for c in plain.get("counts", ())
        if c["operation"] in set(Operation)
    )
    charges = (SwapCharge(**known(SwapCharge, charge)) for charge in plain.get("swap_lost", ()))
    return OperationStats(
        **{**known(OperationStats, plain), "counts": tuple(counts), "swap_lost": tuple(charges)}
    )


def _read_staged(plain: dict[str, Any]) -> StagedWork:
    return StagedWork(**{**known(StagedWork, plain), "cls": RequestClass(**plain["cls"])})


def _read_open(plain: dict[str, Any]) -> OpenAnswers:
    counts = tuple((at, answers, tokens) for at, answers, tokens in plain["counts"])
    return OpenAnswers(cls=RequestClass(**plain["cls"]), counts=counts)


def _read_cached(plain: dict[str, Any]) -> CachedPrompts:
    return CachedPrompts(**{**known(CachedPrompts, plain), "cls": RequestClass(**plain["cls"])})


def read_counts(flat: Sequence[bytes]) -> dict[InstanceId, int]:
    """Decode counts by instance, without zeros and what lost keys made negative."""
    counts = {InstanceId(name.decode()): int(n) for name, n in zip(flat[::2], flat[1::2], strict=True)}
    return {name: counts[name] for name in sorted(counts) if counts[name] > 0}


def read_record(reply: list[Any], metadata: RequestMetadata | None = None) -> RequestRecord:
    """Decode a record; `metadata`, if known, replaces the stored one."""
    flat, output_tokens, events, incarnation = reply
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return RequestRecord(
        metadata=metadata or metadata_from_plain(orjson.loads(fields[b"card"])),
        state=RequestState(fields[b"state"].decode()),
        lease=_read_lease(fields, int(incarnation)),
        output_tokens=output_tokens,
        outcome=Outcome(fields[b"outcome"].decode()) if b"outcome" in fields else None,
        first_token_ns=_optional_time(fields.get(b"first_token_at")),
        ended_ns=_optional_time(fields.get(b"ended_at")),
        reader_late_s=float(fields.get(b"reader_late_s", 0)) if fields.keys() >= _READ else None,
        end_asked=Outcome(fields[b"cancel"].decode()) if b"cancel" in fields else None,
        events=tuple(map(_read_event, events)),
    )


def _read_lease(fields: dict[bytes, bytes], incarnation: int) -> Lease | None:
    if b"instance" not in fields:
        return None
    holder = read_holder(fields[b"instance"], fields[b"session"])
    return Lease(holder, Epoch(incarnation, int(fields[b"n"])))


def read_holder(instance: bytes, session: bytes) -> Holder:
    """Decode a holder."""
    return Holder(InstanceId(instance.decode()), SessionId(session.decode()))


def _optional_time(digits: bytes | None) -> int | None:
    return int(digits) if digits else None


def _read_event(text: bytes) -> Event:
    at, what, why, instance = orjson.loads(text)
    return Event(at_ns=int(at), what=what, why=why, instance=instance or None)


def read_leadership(reply: Sequence[Any]) -> Leadership:
    """Decode a leadership."""
    name, n, since_ns, incarnation = reply
    term = Term(int(incarnation), int(n))
    return Leadership(leader=ControllerId(name.decode()), term=term, since_ns=int(since_ns))


def read_lease_answer(reply: list[Any], holder: Holder) -> LeaseAnswer:
    """Decode the answer of `lease` or `reregister`."""
    match reply:
        case [b"granted", n, packed, incarnation, preemptions, losses]:
            lease = Lease(holder, Epoch(int(incarnation), n))
            counts = {"preemptions": int(preemptions), "engine_losses": int(losses)}
            return Granted(lease=lease, output=decode_tokens(packed), **counts)
        case [b"held", instance, session]:
            return LeaseHeldElsewhere(holder=read_holder(instance, session))
        case [b"over", outcome]:
            return Over(outcome=Outcome(outcome.decode()))
        case [b"taken"]:
            return IdTaken()
        case _:
            raise UndecodableDataError(f"the lease script answered {reply!r:.200}")


def read_slice(id: RequestId, reply: list[Any]) -> OutputSlice:
    """Decode the output of a request."""
    start, packed, outcome, detail, fingerprint, extensions = reply
    return OutputSlice(
        id=id,
        offset=start,
        token_ids=decode_tokens(packed),
        outcome=Outcome(outcome.decode()) if outcome else None,
        detail=detail.decode(),
        fingerprint=fingerprint.decode(),
        extensions=_read_extensions(LogExtensions, extensions) if extensions else NO_LOG_EXTENSIONS,
    )


def _read_extensions(kind: type[E], flat: Sequence[bytes]) -> E:
    texts = zip(flat[::2], flat[1::2], strict=True)
    return extensions_from_plain(kind, {name.decode(): orjson.loads(text) for name, text in texts})


def read_group(reply: list[Any]) -> Group:
    """Decode a group."""
    id, seq, count, pulled, sealed, created, head, last, cls = reply
    return Group(
        id=id.decode(),
        cls=class_of(cls),
        seq=int(seq),
        count=count,
        pulled=pulled,
        sealed=sealed == b"1",
        created_ns=int(created),
        head_arrival_ns=_optional_time(head),
        last_arrival_ns=_optional_time(last),
    )


def read_position(reply: list[Any]) -> RequestPosition:
    """Decode a queue position; the part about the group is missing if there is none."""
    predecessors, queued, *grouped = reply
    if not grouped:
        return RequestPosition(predecessors=predecessors, queued=queued)
    group_predecessors, group, instance = grouped
    return RequestPosition(
        predecessors=predecessors,
        queued=queued,
        group=read_group(group),
        group_predecessors=group_predecessors,
        instance=InstanceId(instance.decode()) if instance else None,
    )


def read_class(reply: list[Any]) -> ClassView:
    """Decode a class with its groups."""
    cls, queued, sums, groups, ungrouped, newest, extensions, prompts, *lengths = reply
    accepted, kept, prompt_tokens, prompt_squares, max_tokens, max_squares, finished = map(int, sums)
    mean_prompt_tokens, var_prompt_tokens = mean_and_variance(accepted, prompt_tokens, prompt_squares)
    mean_max_tokens, var_max_tokens = mean_and_variance(accepted, max_tokens, max_squares)
    return ClassView(
        cls=class_of(cls),
        queued=queued,
        groups=tuple(map(read_group, groups)),
        ungrouped_arrival_ns=_optional_time(ungrouped),
        newest_arrival_ns=_optional_time(newest),
        accepted=accepted,
        kept=kept,
        mean_prompt_tokens=mean_prompt_tokens,
        var_prompt_tokens=var_prompt_tokens,
        mean_max_tokens=mean_max_tokens,
        var_max_tokens=var_max_tokens,
        prompts=_read_prompts(prompts),
        finished=finished,
        lengths=_read_lengths(lengths),
        extensions=_read_extensions(ClassExtensions, extensions) if extensions else NO_CLASS_EXTENSIONS,
    )


def _read_prompts(row: bytes) -> tuple[int, ...]:
    """Read big-endian counts by bin; the row ends with the last bin that has any."""
    counts = struct.unpack(f">{len(row) // 8}q", row)
    return (*counts, *NO_PROMPTS[len(counts) :]) if counts else NO_PROMPTS


def _read_lengths(rows: Sequence[bytes]) -> LengthHistogram:
    """Add up rows of big-endian numbers: the number of answers, then four counts per bin."""
    if not any(rows):
        return NO_LENGTHS
    counts = [0] * (4 * LENGTH_BINS)
    for row in filter(None, rows):
        for slot, count in enumerate(struct.unpack(f">{len(row) // 8}q", row)[1:]):
            counts[slot] += count
    return LengthHistogram(*(tuple(counts[kind::4]) for kind in range(4)))
