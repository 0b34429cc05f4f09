import asyncio
import json
import time

import pytest

from slime_hpc.errors import EngineError, RunError
from slime_hpc.rollout.run_state import RunState
from slime_hpc.run_folder import RunFolder


@pytest.fixture
def state(tmp_path):
    return RunState(run=RunFolder(tmp_path))


def test_a_waiter_wakes_on_the_change_it_waits_for(state):
    async def scenario():
        waiters = [asyncio.create_task(state.wait(lambda v=v: state.version == v)) for v in (1, 2)]
        for version in (1, 2):
            await asyncio.sleep(0)
            state.version = version
            state.change()
            assert await asyncio.wait_for(waiters[version - 1], 5)

    asyncio.run(scenario())


def test_a_wait_ends_at_its_time_whatever_else_changes(state):
    async def scenario():
        async def change():
            while True:
                state.change()
                await asyncio.sleep(0.01)

        changing = asyncio.create_task(change())
        start = time.monotonic()
        assert not await state.wait(lambda: False, timeout_s=0.2)
        assert 0.15 < time.monotonic() - start < 2
        changing.cancel()

    asyncio.run(scenario())


def test_a_failure_reaches_who_waits_and_who_comes_later_with_all_its_words(state):
    async def scenario():
        waiter = asyncio.create_task(state.wait(lambda: False))
        await asyncio.sleep(0)
        state.fail(EngineError("engine 3 is gone", where="engines-3", fix="see its log"))
        for wait in (waiter, state.wait(lambda: True)):
            with pytest.raises(RunError) as caught:
                await asyncio.wait_for(wait, 5)
            assert (caught.value.what, caught.value.where, caught.value.fix) == ("engine 3 is gone", "engines-3", "see its log")

    asyncio.run(scenario())


def test_any_other_failure_is_told_with_its_type(state):
    state.fail(KeyError("x"))
    assert state.status()["error"].startswith("KeyError: 'x'")


def test_the_status_file_says_what_the_status_says(state):
    state.enter("generating", 4)
    assert json.loads(state.run.status.read_text()) == state.status()
    assert (state.status()["phase"], state.status()["step"]) == ("generating", 4)
