"""The loop over steps, with a trainer that the test plays and a maker of batches that needs no engine."""

import asyncio
import contextlib

import numpy as np
import pytest

from slime_hpc.data.collate import collate
from slime_hpc.data.prompt import Prompt
from slime_hpc.data.sample import Finish, Sample
from slime_hpc.data.source import EpochSource
from slime_hpc.errors import EngineError, RunError
from slime_hpc.observe import events
from slime_hpc.rollout.batch_maker import Made
from slime_hpc.rollout.run_state import RunState
from slime_hpc.rollout.steps import StepLoop
from slime_hpc.store import hdf5
from slime_hpc.store.journal import Journal
from slime_hpc.testing.engines import make_context, make_role, make_run

STEPS = 6
PROMPTS = 2


class Maker:
    """Batches that depend on prompts and version alone; what it made is in `steps`, where it breaks in `breaks`."""

    def __init__(self, source, breaks=None):
        self.source = source
        self.breaks = breaks or {}
        self.steps = []
        self.making = 0
        self.made = asyncio.Event()
        self.made.set()

    async def make(self, step, weight_version):
        taken = self.source.take(PROMPTS)
        self.making = step
        await self.made.wait()
        if step in self.breaks:
            raise self.breaks[step]
        self.steps.append(step)
        samples = [
            Sample(
                group=group, index=index, prompt_tokens_P=np.array([1, int(prompt.content)], np.int32),
                response_tokens_R=np.array([weight_version, index], np.int32), logprobs_R=np.full(2, -0.5, np.float32),
                loss_mask_R=np.ones(2, np.uint8), reward=float(index), reward_failed=False, finish=Finish.STOP,
                weight_version=weight_version, weight_version_last=weight_version, text="x",
            )
            for group, prompt in taken
            for index in range(2)
        ]  # fmt: skip
        return Made(collate(samples, step=step, weight_version=weight_version), {"reward_mean": 0.5})


class Evaluator:
    """Due before the first step, and after the second and the last."""

    def __init__(self):
        self.count = 0

    def due(self, step):
        return step in (0, 2, STEPS)

    async def evaluate(self):
        self.count += 1
        return {"pass_rate": 0.25}


class Attempt:
    """One controller of a run, from its start to its end, with all it holds in memory."""

    def __init__(self, run, number=0, breaks=None):
        self.run = run
        context = make_context(run, make_role("controller", "controller"), model={"path": "m"}, steps=STEPS)
        self.state = RunState(run=run)
        source = EpochSource([Prompt(content=str(i)) for i in range(5)], seed=3, shuffle=True)
        self.maker = Maker(source, breaks)
        self.evaluator = Evaluator()
        self.loop = StepLoop(context, self.state, source, Journal(run), self.maker, self.evaluator)

    def play(self, trainer):
        """Run the loop beside a trainer; ends as the loop ends, or, when the trainer returns False, by being cancelled: a kill."""

        async def main():
            loop = asyncio.create_task(self.loop.run())
            ended = asyncio.create_task(trainer(self))
            done, _ = await asyncio.wait([loop, ended], timeout=30, return_when=asyncio.FIRST_COMPLETED)
            assert done, "neither the loop nor the trainer ended"
            if loop in done:
                ended.cancel()
                return loop.result()
            if ended.result() is not False:
                return await asyncio.wait_for(loop, 30)
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
            return None

        return asyncio.run(main())

    def commit(self, version):
        self.state.version = version
        self.state.change()

    async def batch(self, step):
        await self.state.wait(lambda: step in self.state.batches)
        return hdf5.read(self.state.batches[step])


def training(seen, *, start=0, until=STEPS, finish=True):
    """A trainer that goes on from `start`; what it trained on is appended to `seen`."""

    async def trainer(attempt):
        attempt.state.register(0, start)
        attempt.commit(start)
        for step in range(start + 1, until + 1):
            seen.append((step, await attempt.batch(step)))
            attempt.state.version = None
            await asyncio.sleep(0)
            attempt.commit(step)
        if finish:
            attempt.state.finished = True
            attempt.state.change()
            return True
        return False

    return trainer


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def whole(tmp_path):
    """The batches of an uninterrupted run, by step."""
    seen = []
    Attempt(make_run(tmp_path / "whole")).play(training(seen))
    return dict(seen)


def test_every_step_gets_a_batch_of_the_weights_before_it_and_new_prompts(run, whole):
    seen = []
    attempt = Attempt(run)
    attempt.play(training(seen))
    assert [step for step, _ in seen] == attempt.maker.steps == list(range(1, STEPS + 1))
    for step, batch in seen:
        assert (batch.step, batch.weight_version) == (step, step - 1)
        assert same(batch, whole[step])
    groups = [group for _, batch in seen for group in dict.fromkeys(batch.group_N.tolist())]
    assert groups == list(range(STEPS * PROMPTS))
    assert sorted(events.by_step(run.metrics, "rollout")) == list(range(1, STEPS + 1))
    assert attempt.evaluator.count == 3
    assert sorted(events.by_step(run.metrics, "eval")) == [0, 2, STEPS]


def test_no_batch_before_the_weights_are_committed(run):
    async def trainer(attempt):
        attempt.state.register(0, 0)
        await asyncio.sleep(0.05)
        assert attempt.maker.steps == []
        attempt.commit(0)
        await attempt.batch(1)
        await asyncio.sleep(0.05)
        assert attempt.maker.steps == [1]
        return False

    Attempt(run).play(trainer)


@pytest.mark.parametrize("checkpoint", range(4))
def test_a_resumed_run_trains_on_the_same_batches(run, whole, checkpoint):
    """Killed after three steps; the trainer goes on from an earlier checkpoint, or from the newest."""
    first, second = [], []
    Attempt(run).play(training(first, until=3, finish=False))
    resumed = Attempt(run, number=1)
    resumed.play(training(second, start=checkpoint))
    for step, batch in first + second:
        assert same(batch, whole[step])
    assert [step for step, _ in second] == list(range(checkpoint + 1, STEPS + 1))
    # What was sealed is served as it lies there; step 4 may or may not have been made before the kill.
    assert min(resumed.maker.steps) >= 4
    kept = first[:checkpoint] + second
    groups = [group for _, batch in kept for group in dict.fromkeys(batch.group_N.tolist())]
    assert groups == list(range(STEPS * PROMPTS))
    assert resumed.evaluator.count == 1


def lose_file(run):
    run.batch(3).unlink()


def tear_file(run):
    run.batch(3).write_bytes(run.batch(3).read_bytes()[:-40])


def flip_bit(run):
    data = bytearray(run.batch(3).read_bytes())
    data[len(data) // 2] ^= 1
    run.batch(3).write_bytes(bytes(data))


def lose_line(run):
    lines = run.batch_index.read_text().splitlines(keepends=True)
    run.batch_index.write_text("".join(lines[:2]) + lines[2][:20])


@pytest.mark.parametrize("damage", [lose_file, tear_file, flip_bit, lose_line])
def test_a_batch_that_is_lost_is_made_again_alike(run, whole, damage):
    first, second = [], []
    Attempt(run).play(training(first, until=3, finish=False))
    damage(run)
    resumed = Attempt(run, number=1)
    resumed.play(training(second, start=1))
    assert 3 in resumed.maker.steps
    assert 2 not in resumed.maker.steps
    for step, batch in second:
        assert same(batch, whole[step])


def test_a_trainer_that_restarts_alone_is_served_from_its_checkpoint(run, whole):
    seen = []

    async def trainer(attempt):
        await training(seen, until=4, finish=False)(attempt)
        return await training(seen, start=2)(attempt)

    attempt = Attempt(run)
    attempt.play(trainer)
    assert [step for step, _ in seen] == [1, 2, 3, 4, 3, 4, 5, 6]
    assert attempt.maker.steps == list(range(1, STEPS + 1))
    for step, batch in seen:
        assert same(batch, whole[step])


def test_a_trainer_that_restarts_while_a_batch_is_made_is_not_overtaken(run, whole):
    """It gets no batch of the loop's earlier course: the loop would then wait for a version that has passed."""
    seen = []

    async def trainer(attempt):
        await training(seen, until=3, finish=False)(attempt)
        made = attempt.maker.made = asyncio.Event()
        while attempt.maker.making != 4:
            await asyncio.sleep(0.01)
        attempt.state.register(0, 1)
        attempt.commit(1)
        await asyncio.sleep(0.05)
        assert attempt.state.batches == {}
        made.set()
        return await training(seen, start=1)(attempt)

    Attempt(run).play(trainer)
    assert [step for step, _ in seen] == [1, 2, 3, 2, 3, 4, 5, 6]
    for step, batch in seen:
        assert same(batch, whole[step])


def test_a_checkpoint_that_the_journal_does_not_know_is_told(run):
    with pytest.raises(RunError, match="no line for step 3") as caught:
        Attempt(run).play(training([], start=3))
    assert "index.jsonl" in caught.value.what
    assert "earlier checkpoint" in caught.value.fix


def test_what_a_batch_breaks_of_ends_the_loop(run):
    with pytest.raises(EngineError, match="engine 2 is gone"):
        Attempt(run, breaks={2: EngineError("engine 2 is gone")}).play(training([]))
    assert Journal(run).entry(1)
    assert not Journal(run).entry(2)
    assert not run.batch(2).exists()
