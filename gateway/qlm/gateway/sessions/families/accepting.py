"""Acceptance of families: prepare, admit, publish, leave."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import TokenIds
from qlm.domain.ports.store import GatewayStore
from qlm.domain.request import RequestMetadata
from qlm.gateway.api.ids import member_id
from qlm.gateway.api.reasons import NOT_CONFIRMED
from qlm.gateway.api.schema import Body
from qlm.gateway.api.translate import with_prompt
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.session import Mode
from qlm.gateway.sessions.families.beside import ALONE, Beside
from qlm.gateway.sessions.families.members import answers_wanted, known_member
from qlm.gateway.sessions.hub import Hub
from qlm.gateway.sessions.intake import Intake, Prepared
from qlm.gateway.sessions.load.load_watch import LoadWatch
from qlm.gateway.sessions.sink import Sink
from qlm.gateway.sessions.subscription import Subscription
from qlm.gateway.tokenizers.prompt_encoder import PromptEncoder
from qlm.gateway.tokenizers.served_models import ServedModels


class Families:
    """Accepts families for one gateway."""

    def __init__(
        self,
        *,
        intake: Intake,
        hub: Hub,
        store: GatewayStore,
        load: LoadWatch,
        models: ServedModels,
        encoder: PromptEncoder,
        limits: GatewayLimits,
    ) -> None:
        self._intake = intake
        self._hub = hub
        self._store = store
        self._load = load
        self._models = models
        self._encoder = encoder
        self._limits = limits

    async def prepare(
        self,
        body: Body,
        plain: dict[str, Any],
        headers: Mapping[str, str],
        *,
        detached: bool = False,
        returns: bool = False,
    ) -> Sequence[Prepared]:
        """Translate, tokenize and admit all requests of a body; or find those that an earlier attempt queued.

        Raises:
            ApiError: They are not acceptable, now or ever.
            QlmError: A value is out of range, or the store is unavailable.
        """
        count = answers_wanted(body)
        if count > (most := self._limits.choices_max):
            field = "n" if body.n > 1 else "prompt"
            raise InvalidValueError(field, count, f"at most {most} answers (limits.choices_max)")
        singles: Sequence[Body] = body.singles
        first, *others = singles
        served = self._models.chosen(body.model)
        prompts = [await self._encoder.encode(each, served.tokenizer) for each in others]
        beside = ALONE
        if count > 1:
            tokens = sum(map(len, prompts))
            beside = Beside(requests=count - 1, prompt_tokens=tokens, prompts=len(singles), n=body.n)
        prepared = await self._intake.prepare(
            first, plain, headers, detached=detached, returns=returns, beside=beside
        )
        if count == 1:
            return (prepared,)
        if prepared.request is None:
            return await self._earlier(prepared)
        made = [prepared.metadata]
        made += [
            self._intake.translate(each, ids, headers, prepared.metadata, made_beside=beside)
            for each, ids in zip(others, prompts, strict=True)
        ]
        return _with_choices(prepared, made, [prepared.request.prompt_ids, *prompts], body)

    async def accept(
        self, members: Sequence[Prepared], sinks: Sequence[Sink], mode: Mode
    ) -> Sequence[Subscription]:
        """Subscribe the client to all answers, and publish the requests if they are new.

        Raises:
            ApiError: They could not be queued; nothing was accepted.
        """
        begun = [self._intake.subscribe(each, sink, mode) for each, sink in zip(members, sinks, strict=True)]
        if members[0].request is None:
            for subscription in begun:
                self._hub.attach(subscription)
            return begun
        self._reserve(members)

        def publishing(at: int) -> Coroutine[Any, Any, object]:
            return self._intake.publish(members[at], begun[at], mode)

        published, failure = await _leader_last(len(members), publishing)
        if failure is not None:
            for at, subscription in enumerate(begun):
                if at in published:
                    self._hub.detach(subscription, for_good=True)
                self._hub.drop(subscription)
            self._release(members)
            raise failure
        return begun

    async def accept_detached(self, members: Sequence[Prepared]) -> None:
        """Publish the requests, if they are new, of a client that does not wait.

        Raises:
            ApiError: They could not be queued; nothing was accepted.
        """
        if members[0].request is None:
            for each in members:
                await self._intake.accept_detached(each)
            return
        self._reserve(members)

        def publishing(at: int) -> Coroutine[Any, Any, object]:
            return self._intake.accept_detached(members[at])

        published, failure = await _leader_last(len(members), publishing)
        if failure is not None:
            self._release(members)
            for at in published:
                await self._store.cancel(members[at].metadata.id, why=NOT_CONFIRMED)
            raise failure

    def leave(self, subscriptions: Sequence[Subscription], *, for_good: bool = False) -> None:
        """Note that the client of all these answers has disconnected."""
        for subscription in subscriptions:
            self._hub.detach(subscription, for_good=for_good)

    def _reserve(self, members: Sequence[Prepared]) -> None:
        for each in members:
            self._intake.reserve(each)

    def _release(self, members: Sequence[Prepared]) -> None:
        for each in members:
            self._intake.release(each)

    async def _earlier(self, first: Prepared) -> Sequence[Prepared]:
        """Return all requests of a family whose first one an earlier attempt has queued.

        Raises:
            ApiError: The store does not know one: not yet (503), or no longer (404).
        """
        found = [first]
        for choice in range(1, first.metadata.extensions.choices or 1):
            id = member_id(first.metadata.id, choice)
            record = await self._store.record(id)
            metadata = self._hub.metadata_of(id) if record is None else record.metadata
            if metadata is None:
                record = await known_member(self._store, self._load, id)
                metadata = record.metadata
            found.append(replace(first, metadata=metadata, state=record.state if record else first.state))
        return found


def _with_choices(
    first: Prepared, made: Sequence[RequestMetadata], prompts: Sequence[TokenIds], body: Body
) -> Sequence[Prepared]:
    """Return all requests: `n` of each prompt, in the order of the answers."""
    members = []
    for choice in range(len(made) * body.n):
        place, repeat = divmod(choice, body.n)
        metadata = made[place]
        sampling, seed = metadata.sampling, metadata.sampling.seed
        if seed is not None and repeat:
            sampling = replace(sampling, seed=_seed(seed + repeat))  # as in vLLM
        metadata = replace(
            metadata,
            id=member_id(first.metadata.id, choice),
            sampling=sampling,
            extensions=replace(metadata.extensions, choice=choice),
        )
        members.append(replace(first, metadata=metadata, request=with_prompt(metadata, prompts[place])))
    return members


def _seed(seed: int) -> int:
    """Return a seed within the range of 64 bits with sign."""
    return (seed + 2**63) % 2**64 - 2**63


async def _leader_last(
    count: int, publishing: Callable[[int], Coroutine[Any, Any, object]]
) -> tuple[set[int], BaseException | None]:
    """Publish all, the first one last; return those published, and the first failure."""
    results = await asyncio.gather(*map(publishing, range(1, count)), return_exceptions=True)
    published = {at for at, each in enumerate(results, 1) if not isinstance(each, BaseException)}
    failure = next((each for each in results if isinstance(each, BaseException)), None)
    if failure is None:
        try:
            await publishing(0)
        except BaseException as error:
            failure = error
    return published, failure
