"""The way of a new request, in order: validate, admit, subscribe, publish.

`Intake.prepare` validates and admits; `Intake.accept` subscribes the client and publishes the request. What
follows is the client's stream: `hub` feeds it, `resume` continues it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from qlm.domain.ids import ModelId, RequestId, TokenIds
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import Request, RequestMetadata, RequestState
from qlm.domain.slo import Slo
from qlm.gateway.api.objective import task_deadline_ns
from qlm.gateway.api.schema import Body
from qlm.gateway.api.translate import Arrival, Asking, tenant, to_metadata, with_prompt
from qlm.gateway.core.class_choice import ClassChoice
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.sdk_retries import COUNT_HEADER, OwnRetries, Retries, SdkCall, sdk_call
from qlm.gateway.core.session import Mode
from qlm.gateway.core.tasks.memory import TaskCall, TaskKey, TaskMemory, call_again
from qlm.gateway.render.rendering import RenderTiers, render
from qlm.gateway.sessions.families.beside import ALONE, Beside, with_beside
from qlm.gateway.sessions.families.members import answers_wanted
from qlm.gateway.sessions.hub import Hub
from qlm.gateway.sessions.idempotency import (
    KEY_HEADER,
    BodyDigests,
    check_same_body,
    digests_of,
    find_earlier,
    fingerprint,
)
from qlm.gateway.sessions.load.admitting import Admitting
from qlm.gateway.sessions.load.load_watch import LoadWatch
from qlm.gateway.sessions.publisher import Publisher
from qlm.gateway.sessions.sink import NoSink, Sink
from qlm.gateway.sessions.subscription import Subscription
from qlm.gateway.tokenizers.prompt_encoder import PromptEncoder
from qlm.gateway.tokenizers.served_models import ServedModels

_KINDS: Final = {Mode.STREAM: "stream", Mode.WHOLE: "whole"}
"""Kinds of answer in the metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An admitted request, or the one that an earlier attempt queued.

    Attributes:
        metadata: The request without its prompt.
        request: The whole request if it is new; None if an earlier attempt queued it.
        grace_s: Time for which its client may be disconnected.
        media: Images, sound and video of its prompt (`formats.media`); empty without any.
    """

    metadata: RequestMetadata
    request: Request | None
    grace_s: float
    state: RequestState = RequestState.QUEUED
    media: bytes = field(default=b"", repr=False)


class Intake:
    """Accepts requests for one gateway."""

    def __init__(
        self,
        *,
        models: ServedModels,
        encoder: PromptEncoder,
        store: GatewayStore,
        clock: Clock,
        limits: GatewayLimits,
        new_id: Callable[[], RequestId],
        hub: Hub,
        load: LoadWatch,
        publisher: Publisher,
        render_tiers: RenderTiers,
        task_memory: TaskMemory,
    ) -> None:
        self._models = models
        self._encoder = encoder
        self._store = store
        self._clock = clock
        self._limits = limits
        self._new_id = new_id
        self._hub = hub
        self._load = load
        self._admitting = Admitting(load, limits)
        self._publisher = publisher
        self._render_tiers = render_tiers
        self._task_memory = task_memory
        self._classes = ClassChoice(limits.slo_steps, limits.classes_max)
        self._retries: Retries = OwnRetries()

    def share_retries(self, retries: Retries) -> None:
        """Keep with other processes what is known of retries of SDKs, which come to any of them."""
        self._retries = retries

    def sdk_call(self, body: Body, plain: dict[str, Any], headers: Mapping[str, str]) -> SdkCall | None:
        """Return a plain call of an SDK that says nothing itself of retries; None for any other."""
        if body.stream or body.resume_grace_s is not None or KEY_HEADER in headers:
            return None
        if answers_wanted(body) > 1:
            return None
        if COUNT_HEADER not in headers:
            return None
        now_ns = self._clock.now_ns()
        return sdk_call(headers, tenant(body, headers), partial(fingerprint, plain), now_ns)

    async def taken_up(self, call: SdkCall) -> Prepared | None:
        """Return the request that the retry of an SDK takes up; None if it begins one.

        Raises:
            QlmError: The store is unavailable.
        """
        id = await self._retries.take(call, self._clock.now_ns())
        record = None if id is None else await self._store.record(id)
        if record is None or not (record.outcome is None or record.outcome.ok):
            return None
        grace_s = self._limits.resume_grace_stream_s
        return Prepared(metadata=record.metadata, request=None, grace_s=grace_s, state=record.state)

    def client_left(self, call: SdkCall, subscription: Subscription) -> None:
        """Note that the client of an SDK disconnected: it comes back if it ran into its timeout."""
        now_ns = self._clock.now_ns()
        timed_out = now_ns >= call.gives_up_ns
        if timed_out:
            grace_ns = round(self._limits.resume_grace_stream_s * 1e9)
            self._retries.left(call, subscription.metadata.id, now_ns, grace_ns)
        self._hub.detach(subscription, for_good=not timed_out)

    async def earlier(
        self, body: Asking, identity: dict[str, Any], headers: Mapping[str, str]
    ) -> Prepared | None:
        """Return the request that an earlier attempt with an Idempotency-Key queued; None if none did.

        Raises:
            ApiError: The key came before with another `identity`, or cannot be used any more.
        """
        if (key := headers.get(KEY_HEADER)) is None:
            return None
        _, found = await find_earlier(self._store, tenant(body, headers), key, digests_of(identity))
        if found is None:
            return None
        grace_s = self._grace_s(body, returns=True)
        return Prepared(metadata=found.metadata, request=None, grace_s=grace_s, state=found.state)

    async def prepare(
        self,
        body: Body,
        plain: dict[str, Any],
        headers: Mapping[str, str],
        *,
        detached: bool = False,
        returns: bool = False,
        default_slo: Slo | None = None,
        beside: Beside = ALONE,
        identity: dict[str, Any] | None = None,
    ) -> Prepared:
        """Translate, tokenize and admit a request; or find the one that an earlier attempt queued.

        Args:
            body: The checked body.
            plain: The body as received, for the digest that goes with an Idempotency-Key.
            headers: By name in lower case.
            detached: The client does not wait for the answer.
            returns: The client may come back for the answer after it has disconnected.
            default_slo: Objective of a request that names none; None for the configured default.
            beside: The other requests of its call, which are admitted with it.
            identity: What attempts with one Idempotency-Key must have in common; None for `plain`.

        Raises:
            ApiError: The request is not acceptable, now or ever.
            QlmError: A value is out of range, or the store is unavailable.
        """
        now_ns = self._clock.now_ns()
        served = self._models.chosen(body.model)
        key = headers.get(KEY_HEADER)
        grace_s = self._grace_s(body, returns=returns or key is not None)
        id, digests = self._new_id(), BodyDigests()
        if key is not None:
            digests = digests_of(plain if identity is None else identity)
            id, found = await find_earlier(self._store, tenant(body, headers), key, digests, beside.requests)
            if found is not None:
                return Prepared(metadata=found.metadata, request=None, grace_s=grace_s, state=found.state)
        self._admitting.check_load()  # before work that may be large
        rendered = await render(self._render_tiers, served.spec.id, body, plain)
        if rendered is None:
            prompt_ids = await self._encoder.encode(body, served.tokenizer)
        else:
            prompt_ids = rendered.prompt_ids
        if (twin := self._twin(key, id, digests, grace_s)) is not None:
            return twin
        arrival = Arrival(
            id=id,
            headers=headers,
            now_ns=now_ns,
            fingerprint=digests.kept,
            detached=detached,
            default_slo=default_slo,
            task=self._task_call(body, headers, served.spec.id, now_ns),
        )
        clusters = self._load.clusters()
        metadata = to_metadata(body, prompt_ids, served, self._limits, arrival, self._classes, clusters)
        if rendered is not None:
            metadata = rendered.applied(metadata)
        if beside is not ALONE:
            metadata = with_beside(metadata, beside)
        looked = await self._admitting.looked_again(metadata, beside)
        if looked and (twin := self._twin(key, id, digests, grace_s)) is not None:
            return twin
        self._admitting.admit(metadata, beside)
        request, media = with_prompt(metadata, prompt_ids), b"" if rendered is None else rendered.media
        return Prepared(metadata=metadata, request=request, grace_s=grace_s, media=media)

    def translate(
        self,
        body: Body,
        prompt_ids: TokenIds,
        headers: Mapping[str, str],
        first: RequestMetadata,
        *,
        made_beside: Beside,
    ) -> RequestMetadata:
        """Return the metadata of a further request of the call whose first one is given.

        Raises:
            ApiError: Prompt and output do not fit the model's context.
            QlmError: A value is out of range.
        """
        served = self._models.chosen(body.model)
        arrival = Arrival(
            id=first.id,
            headers=headers,
            now_ns=first.arrival_ns,
            fingerprint=first.fingerprint,
            detached=first.detached,
            task=call_again(first),
        )
        clusters = self._load.clusters()
        metadata = to_metadata(body, prompt_ids, served, self._limits, arrival, self._classes, clusters)
        return with_beside(metadata, made_beside)

    def reserve(self, prepared: Prepared) -> None:
        """Count an admitted request as waiting from now on: until it is published, others may be admitted."""
        if prepared.request is not None:
            self._load.reserve(prepared.metadata)

    def release(self, prepared: Prepared) -> None:
        """Count a request no longer that will not be published."""
        self._load.settle(prepared.metadata.id, queued=False)

    async def accept(self, prepared: Prepared, sink: Sink, mode: Mode) -> Subscription:
        """Subscribe the client, and publish the request if it is new.

        Raises:
            ApiError: The request could not be queued; nothing was accepted.
        """
        subscription = self.subscribe(prepared, sink, mode)
        if prepared.request is None:
            self._hub.attach(subscription)
        else:
            await self.publish(prepared, subscription, mode)
        return subscription

    def subscribe(self, prepared: Prepared, sink: Sink, mode: Mode) -> Subscription:
        """Subscribe the client; what follows is to attach or to publish."""
        new = prepared.request is not None
        return self._hub.subscribe(
            prepared.metadata, sink, mode, grace_s=prepared.grace_s, counts_in_metrics=new
        )

    async def publish(self, prepared: Prepared, subscription: Subscription, mode: Mode) -> None:
        """Publish a new request whose client is subscribed.

        Raises:
            ApiError: It could not be queued; nothing was accepted.
        """
        assert prepared.request is not None
        await self._publisher.publish(
            prepared.request, prepared.metadata, subscription, _KINDS[mode], prepared.media
        )

    async def accept_detached(self, prepared: Prepared) -> None:
        """Publish the request, if it is new, of a client that does not wait.

        One that an earlier attempt queued, whose client waits for it, does not end with that client any more.

        Raises:
            ApiError: The request could not be queued; nothing was accepted.
        """
        metadata, request = prepared.metadata, prepared.request
        if request is None:
            if not (metadata.detached or prepared.state is RequestState.ENDED):
                self._hub.attach(self._in_background(metadata, counts_in_metrics=False))
            return
        subscription = None
        if metadata.answer.stop:
            # Engines do not know stop strings, so this gateway has to match them.
            subscription = self._in_background(metadata, counts_in_metrics=True)
        await self._publisher.publish(request, metadata, subscription, "async", prepared.media)

    def _in_background(self, metadata: RequestMetadata, *, counts_in_metrics: bool) -> Subscription:
        return self._hub.subscribe(
            metadata, NoSink(), Mode.BACKGROUND, grace_s=0, counts_in_metrics=counts_in_metrics
        )

    def _twin(self, key: str | None, id: RequestId, digests: BodyDigests, grace_s: float) -> Prepared | None:
        """Return a concurrent attempt with the same key that has not reached the store yet.

        From its last call to `Hub.subscribe` nothing is awaited, so no third attempt can come between.
        """
        if key is None or (twin := self._hub.metadata_of(id)) is None:
            return None
        check_same_body(key, twin, digests)
        return Prepared(metadata=twin, request=None, grace_s=grace_s)

    def _task_call(
        self, body: Body, headers: Mapping[str, str], model: ModelId, now_ns: int
    ) -> TaskCall | None:
        # After the look-up of an earlier attempt: its retry is answered after the task's deadline, too.
        if (deadline_ns := task_deadline_ns(body.slo, now_ns)) is None:
            return None
        assert body.slo is not None and body.slo.task is not None
        key = TaskKey(tenant(body, headers), body.slo.task.id)
        return self._task_memory.call(key, model, deadline_ns, body.slo.task.calls_left, now_ns)

    def _grace_s(self, body: Asking, *, returns: bool) -> float:
        # Only clients with an Idempotency-Key, a resumable stream or retries can come back for the answer.
        # Of any other, no client reads what would still be generated.
        if body.resume_grace_s is not None:
            return body.resume_grace_s
        limits = self._limits
        return limits.resume_grace_stream_s if returns else limits.resume_grace_plain_s
