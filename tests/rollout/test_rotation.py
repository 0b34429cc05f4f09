"""Engines that go and come again, and a router that does, with the real router and engines without a model."""

import asyncio
import contextlib

import aiohttp
import pytest

from slime_hpc.control.endpoint import publish, wait_for
from slime_hpc.observe import events
from slime_hpc.rollout import rotation as module
from slime_hpc.rollout.rotation import Rotation
from slime_hpc.rollout.router_client import RouterClient
from slime_hpc.rollout.run_state import RunState
from slime_hpc.testing.engines import make_context, make_role, make_run
from slime_hpc.testing.fake_engine import start_fake_engine
from slime_hpc.testing.tasks import start_task

LIMIT_S = 60


class Job:
    """A router and two engines, called engines-0 and engines-1, as the controller finds them."""

    def __init__(self, run, stack):
        self.stack = stack
        self.context = make_context(run, make_role("engines", "engines", tasks=2), model={"path": "m"})
        self.run = run
        self.count = 0

    def start_router(self):
        context = make_context(self.run, make_role("router", "router"), model={"path": "m"})
        self.run.endpoint(0, "router").unlink(missing_ok=True)
        stack = contextlib.ExitStack()
        self.stack.callback(stack.close)
        stack.enter_context(start_task("slime_hpc.rollout.router", context, self.run.path / f"router.{self.count}.log"))
        self.count += 1
        wait_for(self.run.endpoint(0, "router"), timeout_s=LIMIT_S)
        return stack.close

    def start_engine(self, rank):
        self.count += 1
        endpoint = self.stack.enter_context(start_fake_engine(self.run, name=f"fake{self.count}"))
        publish(self.run.endpoint(0, f"engines-{rank}"), endpoint)
        return endpoint

    def lose_engine(self, rank):
        self.run.endpoint(0, f"engines-{rank}").unlink()

    def told(self):
        return [(event["name"], event["what"]) for event in events.read(self.run.metrics) if event["kind"] == "engine"]


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Run `scenario(job, state, rotation, listed)` after all have come up; `listed` asks the router for its engines."""
    monkeypatch.setattr(module, "POLL_S", 0.1)

    def play(scenario):
        async def main(job):
            state = RunState(run=job.run)
            async with aiohttp.ClientSession() as session:
                rotation = Rotation(job.context, state, session)
                await rotation.bring_up()
                watching = asyncio.create_task(rotation.watch())

                async def listed():
                    workers = (await RouterClient(await rotation.route(), job.context.token, session)._get("/workers"))["workers"]
                    return {worker["url"].rstrip("/") for worker in workers}

                try:
                    await scenario(job, state, rotation, listed)
                finally:
                    watching.cancel()

        with contextlib.ExitStack() as stack:
            job = Job(make_run(tmp_path), stack)
            job.start_router()
            job.engines = [job.start_engine(rank) for rank in range(2)]
            asyncio.run(main(job))

    return play


async def until(condition):
    async with asyncio.timeout(LIMIT_S):
        while not await condition():
            await asyncio.sleep(0.05)


def test_an_engine_that_goes_gets_no_request_and_one_that_comes_again_none_before_it_holds_the_weights(play):
    async def scenario(job, state, rotation, listed):
        first, second = job.engines
        assert state.engines == [first, second]
        assert await listed() == {first.url, second.url}
        state.hold(4, [first, second])

        async def only_first():
            return await listed() == {first.url} and state.engines == [first]

        job.lose_engine(1)
        await until(only_first)
        assert state.behind() == []

        third = job.start_engine(1)

        async def is_behind():
            return state.behind() == [third]

        await until(is_behind)
        await asyncio.sleep(0.5)
        assert await listed() == {first.url}

        state.hold(4, [third])

        async def serves():
            return await listed() == {first.url, third.url} and len(job.told()) == 2

        await until(serves)
        assert job.told() == [("engines-1", "lost"), ("engines-1", "serves")]

    play(scenario)


def test_without_an_engine_requests_wait_for_one(play):
    async def scenario(job, state, rotation, listed):
        state.hold(0, job.engines)
        for rank in range(2):
            job.lose_engine(rank)

        async def none():
            return not state.serving

        await until(none)
        waiting = asyncio.create_task(rotation.route())
        await asyncio.sleep(0.5)
        assert not waiting.done()
        third = job.start_engine(0)

        async def is_up():
            return state.engines == [third]

        await until(is_up)
        state.hold(0, [third])
        await asyncio.wait_for(waiting, LIMIT_S)
        assert await listed() == {third.url}

    play(scenario)


def test_a_router_that_comes_again_learns_of_the_engines_that_serve(play):
    async def scenario(job, state, rotation, listed):
        state.hold(0, job.engines)
        before = await rotation.route()
        job.lose_engine(0)
        await asyncio.to_thread(job.start_router)

        async def serves():
            return await rotation.route() != before and await listed() == {job.engines[1].url}

        await until(serves)
        assert ("router", "up") in job.told()

    play(scenario)


def test_a_controller_that_comes_again_takes_the_engines_that_are_up(play):
    async def scenario(job, state, rotation, listed):
        events.append(job.run.metrics, {"kind": "push", "step": 0, "attempt": 0})
        async with aiohttp.ClientSession() as session:
            job.lose_engine(1)
            other = RunState(run=job.run)
            again = Rotation(job.context, other, session)
            await asyncio.wait_for(again.bring_up(), LIMIT_S)
            assert other.engines == job.engines[:1]
            watching = asyncio.create_task(again.watch())
            other.hold(0, job.engines[:1])
            assert await asyncio.wait_for(again.route(), LIMIT_S) == await rotation.route()
            watching.cancel()
        assert await listed() == {job.engines[0].url}

    play(scenario)
