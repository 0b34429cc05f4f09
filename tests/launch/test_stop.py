import asyncio
import os
import signal

import pytest

from slime_hpc.launch import stop
from slime_hpc.launch.stop import StopRequested, raise_if_told, raise_on_signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGCONT)


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    stop._told.clear()


def tell():
    os.kill(os.getpid(), signal.SIGTERM)


async def tell_later():
    tell()


async def own():
    tell()
    await asyncio.sleep(5)


async def in_a_callback():
    asyncio.get_running_loop().call_soon(tell)
    await asyncio.sleep(5)


async def in_another_task():
    task = asyncio.create_task(tell_later())
    await asyncio.sleep(5)
    await task


@pytest.mark.parametrize("scenario", [own, in_a_callback, in_another_task])
def test_a_stop_ends_an_event_loop_wherever_it_is_just_then(scenario):
    raise_on_signal()
    with pytest.raises(StopRequested, match="SIGTERM"):
        asyncio.run(scenario())


class Finalized:
    def __del__(self):
        tell()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_that_python_ignores_is_not_lost():
    raise_on_signal()
    raise_if_told()
    Finalized()
    with pytest.raises(StopRequested, match="SIGTERM"):
        raise_if_told()
