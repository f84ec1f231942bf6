import datetime

from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("model", "prompt", "prompt_token_ids", "messages", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "slo", "priority", "service_tier", "user", "resume_grace_s", "idempotency_key", "more")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SLO_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    RESUME_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: str
    prompt_token_ids: TokenIds
    messages: Conversation
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    ignore_eos: bool
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    slo: Slo
    priority: int
    service_tier: str
    user: str
    resume_grace_s: float
    idempotency_key: str
    more: _struct_pb2.Struct
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[str] = ..., prompt_token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., messages: _Optional[_Union[Conversation, _Mapping]] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., ignore_eos: _Optional[bool] = ..., skip_special_tokens: _Optional[bool] = ..., include_stop_str_in_output: _Optional[bool] = ..., slo: _Optional[_Union[Slo, _Mapping]] = ..., priority: _Optional[int] = ..., service_tier: _Optional[str] = ..., user: _Optional[str] = ..., resume_grace_s: _Optional[float] = ..., idempotency_key: _Optional[str] = ..., more: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "name")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Slo(_message.Message):
    __slots__ = ("deadline_ms", "deadline_at", "ttft_ms", "tpot_ms", "tokens_per_s", "on_miss", "p_met_min", "p_met", "reader", "task")
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ON_MISS_FIELD_NUMBER: _ClassVar[int]
    P_MET_MIN_FIELD_NUMBER: _ClassVar[int]
    P_MET_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    deadline_ms: float
    deadline_at: _timestamp_pb2.Timestamp
    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    on_miss: str
    p_met_min: float
    p_met: float
    reader: str
    task: Task
    def __init__(self, deadline_ms: _Optional[float] = ..., deadline_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttft_ms: _Optional[float] = ..., tpot_ms: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., on_miss: _Optional[str] = ..., p_met_min: _Optional[float] = ..., p_met: _Optional[float] = ..., reader: _Optional[str] = ..., task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "deadline_at", "calls_left")
    ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_AT_FIELD_NUMBER: _ClassVar[int]
    CALLS_LEFT_FIELD_NUMBER: _ClassVar[int]
    id: str
    deadline_at: _timestamp_pb2.Timestamp
    calls_left: int
    def __init__(self, id: _Optional[str] = ..., deadline_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., calls_left: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "ended")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    started: Started
    delta: Delta
    ended: Ended
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("id", "model", "prompt_tokens", "service_tier", "offset", "system_fingerprint")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    prompt_tokens: int
    service_tier: str
    offset: int
    system_fingerprint: str
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., service_tier: _Optional[str] = ..., offset: _Optional[int] = ..., system_fingerprint: _Optional[str] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("offset", "text", "token_ids")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offset: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("outcome", "finish_reason", "usage", "stop_text", "stop_token_id", "met", "late_ms")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    finish_reason: str
    usage: Usage
    stop_text: str
    stop_token_id: int
    met: bool
    late_ms: int
    def __init__(self, outcome: _Optional[str] = ..., finish_reason: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., stop_text: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., met: _Optional[bool] = ..., late_ms: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("id", "offset")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    id: str
    offset: int
    def __init__(self, id: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("request", "answer", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: RequestStatus
    answer: Answer
    error: Error
    def __init__(self, request: _Optional[_Union[RequestStatus, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("text", "token_ids", "finish_reason", "usage", "stop_text", "stop_token_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: str
    usage: Usage
    stop_text: str
    stop_token_id: int
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., stop_text: _Optional[str] = ..., stop_token_id: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("status", "code", "message")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: int
    code: str
    message: str
    def __init__(self, status: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: RequestStatus
    def __init__(self, request: _Optional[_Union[RequestStatus, _Mapping]] = ...) -> None: ...

class RequestStatus(_message.Message):
    __slots__ = ("id", "model", "status", "outcome", "cancel_requested", "arrival_s", "deadline_s", "first_token_s", "ended_s", "slo", "service_tier", "priority", "prompt_tokens", "output_tokens", "instance", "met", "late_by_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_S_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    SLO_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    LATE_BY_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    status: str
    outcome: str
    cancel_requested: bool
    arrival_s: float
    deadline_s: float
    first_token_s: float
    ended_s: float
    slo: Objective
    service_tier: str
    priority: int
    prompt_tokens: int
    output_tokens: int
    instance: str
    met: bool
    late_by_s: float
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., status: _Optional[str] = ..., outcome: _Optional[str] = ..., cancel_requested: _Optional[bool] = ..., arrival_s: _Optional[float] = ..., deadline_s: _Optional[float] = ..., first_token_s: _Optional[float] = ..., ended_s: _Optional[float] = ..., slo: _Optional[_Union[Objective, _Mapping]] = ..., service_tier: _Optional[str] = ..., priority: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., instance: _Optional[str] = ..., met: _Optional[bool] = ..., late_by_s: _Optional[float] = ...) -> None: ...

class Objective(_message.Message):
    __slots__ = ("kind", "deadline_ms", "ttft_ms", "tpot_ms", "tokens_per_s", "on_miss", "task")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ON_MISS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    kind: str
    deadline_ms: float
    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float
    on_miss: str
    task: TaskStatus
    def __init__(self, kind: _Optional[str] = ..., deadline_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., tpot_ms: _Optional[float] = ..., tokens_per_s: _Optional[float] = ..., on_miss: _Optional[str] = ..., task: _Optional[_Union[TaskStatus, _Mapping]] = ...) -> None: ...

class TaskStatus(_message.Message):
    __slots__ = ("id", "deadline_s", "calls_left")
    ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    CALLS_LEFT_FIELD_NUMBER: _ClassVar[int]
    id: str
    deadline_s: float
    calls_left: int
    def __init__(self, id: _Optional[str] = ..., deadline_s: _Optional[float] = ..., calls_left: _Optional[int] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("classes", "virtual_queues", "finished_per_s", "attainment")
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_QUEUES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_PER_S_FIELD_NUMBER: _ClassVar[int]
    ATTAINMENT_FIELD_NUMBER: _ClassVar[int]
    classes: _containers.RepeatedCompositeFieldContainer[ClassQueue]
    virtual_queues: _containers.RepeatedCompositeFieldContainer[VirtualQueue]
    finished_per_s: float
    attainment: _containers.RepeatedCompositeFieldContainer[ClassAttainment]
    def __init__(self, classes: _Optional[_Iterable[_Union[ClassQueue, _Mapping]]] = ..., virtual_queues: _Optional[_Iterable[_Union[VirtualQueue, _Mapping]]] = ..., finished_per_s: _Optional[float] = ..., attainment: _Optional[_Iterable[_Union[ClassAttainment, _Mapping]]] = ...) -> None: ...

class ClassAttainment(_message.Message):
    __slots__ = ("model", "slo_class", "priority", "judged", "missed", "mean_late_by_s", "max_late_by_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SLO_CLASS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    MEAN_LATE_BY_S_FIELD_NUMBER: _ClassVar[int]
    MAX_LATE_BY_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    slo_class: str
    priority: int
    judged: int
    missed: int
    mean_late_by_s: float
    max_late_by_s: float
    def __init__(self, model: _Optional[str] = ..., slo_class: _Optional[str] = ..., priority: _Optional[int] = ..., judged: _Optional[int] = ..., missed: _Optional[int] = ..., mean_late_by_s: _Optional[float] = ..., max_late_by_s: _Optional[float] = ...) -> None: ...

class ClassQueue(_message.Message):
    __slots__ = ("queue", "model", "slo_class", "late", "cluster", "priority", "target_s", "queued", "groups", "ungrouped_arrival_s", "mean_prompt_tokens", "mean_output_tokens", "finished", "oldest_arrival_s")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SLO_CLASS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TARGET_S_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    UNGROUPED_ARRIVAL_S_FIELD_NUMBER: _ClassVar[int]
    MEAN_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEAN_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_ARRIVAL_S_FIELD_NUMBER: _ClassVar[int]
    queue: str
    model: str
    slo_class: str
    late: bool
    cluster: str
    priority: int
    target_s: float
    queued: int
    groups: int
    ungrouped_arrival_s: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    finished: int
    oldest_arrival_s: float
    def __init__(self, queue: _Optional[str] = ..., model: _Optional[str] = ..., slo_class: _Optional[str] = ..., late: _Optional[bool] = ..., cluster: _Optional[str] = ..., priority: _Optional[int] = ..., target_s: _Optional[float] = ..., queued: _Optional[int] = ..., groups: _Optional[int] = ..., ungrouped_arrival_s: _Optional[float] = ..., mean_prompt_tokens: _Optional[float] = ..., mean_output_tokens: _Optional[float] = ..., finished: _Optional[int] = ..., oldest_arrival_s: _Optional[float] = ...) -> None: ...

class VirtualQueue(_message.Message):
    __slots__ = ("instance", "version", "groups")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    instance: str
    version: int
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, instance: _Optional[str] = ..., version: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("id", "queue", "model", "slo_class", "late", "seq", "count", "pulled", "remaining", "sealed", "deadline_s", "instances")
    ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SLO_CLASS_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PULLED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    id: str
    queue: str
    model: str
    slo_class: str
    late: bool
    seq: int
    count: int
    pulled: int
    remaining: int
    sealed: bool
    deadline_s: float
    instances: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., queue: _Optional[str] = ..., model: _Optional[str] = ..., slo_class: _Optional[str] = ..., late: _Optional[bool] = ..., seq: _Optional[int] = ..., count: _Optional[int] = ..., pulled: _Optional[int] = ..., remaining: _Optional[int] = ..., sealed: _Optional[bool] = ..., deadline_s: _Optional[float] = ..., instances: _Optional[_Iterable[str]] = ...) -> None: ...
