from __future__ import annotations

import asyncio

import pytest

from proxy.load import Load


def load() -> Load:
    return Load(lambda backend, by: None)


async def test_work_waits_until_the_backend_has_no_request() -> None:
    there = load()
    began = asyncio.Event()

    async def work() -> None:
        began.set()

    there.change("a", 1)
    there.change("a", 1)
    task = asyncio.create_task(there.while_idle("a", work))
    there.change("a", -1)
    await asyncio.sleep(0)
    assert not began.is_set()
    there.change("a", -1)
    assert await task
    assert began.is_set()


async def test_work_ends_when_a_request_comes() -> None:
    there = load()
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(there.while_idle("a", work))
    await began.wait()
    there.change("b", 1)  # another backend's requests are nothing to it
    assert not ended.is_set()
    there.change("a", 1)
    assert not await task
    assert ended.is_set()


async def test_what_the_work_fails_with_is_told() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await load().while_idle("a", work)


async def test_a_wait_that_is_given_up_ends_the_work() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(load().while_idle("a", work))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_every_change_is_told_to_the_gauge() -> None:
    told: list[tuple[str, int]] = []
    there = Load(lambda backend, by: told.append((backend, by)))
    there.change("a", 1)
    there.change("a", -1)
    assert told == [("a", 1), ("a", -1)]
