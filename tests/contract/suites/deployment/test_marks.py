"""Marks of servers and members of deployments, as every bearer keeps them."""

import asyncio

from contract.suites.deployment.bearer import Bearer, mark, until_empty
from support.cluster_load import until


async def test_the_first_to_join_marks_the_server(bearer: Bearer) -> None:
    process = await bearer.open()
    assert await process.look() is None
    assert not await process.has_members("one")
    assert await process.join(mark("one"))
    assert await process.look() == mark("one")
    assert await process.has_members("one")


async def test_processes_of_one_deployment_share_a_mark(bearer: Bearer) -> None:
    first, second = await bearer.open(), await bearer.open()
    assert await first.join(mark("one"))
    for _ in range(2):
        assert await second.join(mark("one"))
        assert await first.join(mark("one"))
    assert await second.look() == mark("one")


async def test_another_deployment_is_refused_and_changes_nothing(bearer: Bearer) -> None:
    first, second = await bearer.open(), await bearer.open()
    assert await first.join(mark("one"))
    assert not await second.join(mark("two"))
    assert not await second.join(mark("two"), instead_of="three")
    assert not await second.has_members("two")
    assert await second.look() == mark("one")


async def test_a_deployment_with_members_is_not_replaced(bearer: Bearer) -> None:
    first, second = await bearer.open(), await bearer.open()
    assert await first.join(mark("one"))
    assert not await second.join(mark("two"), instead_of="one")
    assert await first.look() == mark("one")


async def test_a_deployment_without_members_can_be_replaced(bearer: Bearer) -> None:
    first, second = await bearer.open(), await bearer.open()
    assert await first.join(mark("one"))
    await bearer.crash(first)
    await until_empty(second, "one")
    assert await second.look() == mark("one")
    assert not await second.join(mark("two"))
    assert await second.join(mark("two"), instead_of="one")
    assert await second.look() == mark("two")
    assert not await second.join(mark("three"), instead_of="one")


async def test_one_that_leaves_is_no_member_and_its_mark_stays(bearer: Bearer) -> None:
    first, second = await bearer.open(), await bearer.open()
    assert await first.join(mark("one"))
    await first.leave("one")
    await until_empty(second, "one")
    assert await second.look() == mark("one")
    assert await first.join(mark("one"))
    assert await second.has_members("one")


async def test_a_member_stays_while_the_server_bears_its_mark(bearer: Bearer) -> None:
    first, second = await bearer.open(), await bearer.open()
    assert not await first.renew("one")
    assert await first.look() is None
    assert await first.join(mark("one"))
    assert await first.renew("one")
    assert await second.renew("one")
    assert not await second.renew("two")
    await bearer.empty()
    assert not await first.renew("one")
    assert await first.look() is None


async def test_a_lost_mark_is_written_again_by_a_member(bearer: Bearer) -> None:
    process = await bearer.open()
    assert await process.join(mark("one"))
    await bearer.empty()
    assert await process.look() is None
    assert await process.join(mark("one"))
    assert await process.look() == mark("one")
    assert await process.has_members("one")


async def test_a_member_changes_to_the_deployment_that_replaced_its_own(bearer: Bearer) -> None:
    first, second = await bearer.open(), await bearer.open()
    assert await first.join(mark("one"))
    await bearer.empty()
    assert await second.join(mark("two"))
    assert not await first.join(mark("one"))
    assert await first.join(mark("two"))
    await bearer.crash(second)
    await until_empty(first, "one")
    assert await first.join(mark("two"))
    assert await first.has_members("two")


async def test_of_many_that_join_at_once_under_ids_of_their_own_one_does(bearer: Bearer) -> None:
    processes = [await bearer.open() for _ in range(10)]
    joined = await asyncio.gather(*(each.join(mark(f"d{n}")) for n, each in enumerate(processes)))
    (winner,) = [n for n, did in enumerate(joined) if did]
    assert await asyncio.gather(*(each.look() for each in processes)) == [mark(f"d{winner}")] * 10
    assert all(await asyncio.gather(*(each.join(mark(f"d{winner}")) for each in processes)))


async def test_many_looks_at_once_each_find_the_mark(bearer: Bearer) -> None:
    processes = [await bearer.open() for _ in range(4)]
    assert await processes[0].join(mark("one"))
    for _ in range(5):
        assert await asyncio.gather(*(each.look() for each in processes)) == [mark("one")] * 4


async def test_a_crash_while_others_look_and_join_loses_no_mark(bearer: Bearer) -> None:
    processes = [await bearer.open() for _ in range(4)]
    keeper = await bearer.open()
    assert await keeper.join(mark("one"))
    for process in processes[1:]:
        calls = [asyncio.create_task(each.look()) for each in (processes[0], process)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await bearer.crash(process)
        await asyncio.gather(*calls, return_exceptions=True)

        async def marked() -> bool:
            return await processes[0].look() == mark("one")

        await until(marked, "the mark is there", timeout_s=30)
