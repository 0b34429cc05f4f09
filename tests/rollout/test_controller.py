"""The controller's task between a real router and a real engine, with a trainer that the test plays: it pushes real weights."""

import contextlib
import dataclasses
import json
import time
from pathlib import Path

import numpy as np
import pytest
import requests
import torch
from transformers import AutoModelForCausalLM

from slime_hpc.config.schema import Sync
from slime_hpc.control.client import ControllerClient
from slime_hpc.control.endpoint import publish, wait_for
from slime_hpc.errors import RunError
from slime_hpc.observe import events
from slime_hpc.plan.job import JobPlan
from slime_hpc.store import hdf5
from slime_hpc.store.journal import Journal
from slime_hpc.sync.distributed import DistributedTransport
from slime_hpc.testing.engines import make_context, make_role, make_run
from slime_hpc.testing.fake_engine import start_fake_engine
from slime_hpc.testing.tasks import start_task

STEPS = 4
PROMPTS = 4
SAMPLES = 3


class Job:
    """One attempt of a run: its contexts, and the tasks of router and controller."""

    def __init__(self, folder, model, engine, token, *, attempt=0, engine_role="two", **experiment):
        run = make_run(folder)
        run.token.write_text(token)
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"what is {i} plus 4?", "answer": str(i)}) + "\n" for i in range(10)))
        tables = {
            "model": {"path": str(model), "dtype": "float32"},
            "data": {"prompts": str(prompts)},
            "eval": {"prompts": str(prompts), "limit": 3},
            "rollout": {"prompts_per_step": PROMPTS, "samples_per_prompt": SAMPLES, "max_tokens": 12, "request_retries": 1},
            "reward": {"kind": "odd_rewards:parity", "timeout_s": 30},
            "steps": STEPS,
        } | experiment
        roles = tuple(
            make_role(name, kind) for name, kind in (("router", "router"), (engine_role, "engines"), ("controller", "controller"))
        )
        plan = JobPlan(name="test", scheduler="local", accelerator="cpu", num_nodes=1, roles=roles)
        contexts = [make_context(run, role, **tables) for role in (*roles, make_role("trainer", "trainer"))]
        router, _, self.controller, self.trainer = (dataclasses.replace(c, plan=plan, attempt=attempt) for c in contexts)
        self.run = run
        self.log = folder / f"controller.{attempt}.log"
        publish(run.endpoint(attempt, engine.role), engine)
        self._router = start_task("slime_hpc.rollout.router", router, folder / f"router.{attempt}.log")
        self._controller = start_task("slime_hpc.rollout.controller", self.controller, self.log, Path(__file__).parent)

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self._router)
        self.task = self._stack.enter_context(self._controller)
        return self

    def __exit__(self, *_):
        self._stack.close()

    def phase(self):
        with contextlib.suppress(FileNotFoundError):
            status = json.loads(self.run.status.read_text())
            return status["phase"], status["step"]


class Trainer:
    """Pushes the model's weights, scaled by the version, where a trainer would push what it learned."""

    def __init__(self, job, model, *, start=0):
        self.client = ControllerClient(job.trainer)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict()
        self.transport = DistributedTransport(job.trainer, Sync(timeout_s=60, bucket_mib=1))
        self.transport.connect(self.client.register(attempt=job.trainer.attempt, step=start))
        self.start = start
        self.seen = {}

    def push(self, version):
        engines = self.client.begin_weights(version)
        scale = 1 + 0.01 * version
        self.transport.push(version, ((name, tensor * scale if tensor.dim() == 2 else tensor) for name, tensor in self.model.items()))
        self.client.commit_weights(version, engines, {})

    def train(self, until):
        """Up to the push of step `until`."""
        self.push(self.start)
        for step in range(self.start + 1, until + 1):
            self.seen[step] = hdf5.read(self.client.next_batch(step).path)
            self.push(step)

    def finish(self):
        self.train(STEPS)
        self.client.finish(STEPS)
        self.transport.close()
        return self.seen


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


@pytest.fixture(scope="module")
def start(engines, engine_run, pushed_model, tmp_path_factory):
    """A job with the session's deterministic engine; in the folder given, or a new one."""

    def start(folder=None, **experiment):
        return Job(folder or tmp_path_factory.mktemp("job"), pushed_model, engines[1], engine_run.token.read_text(), **experiment)

    return start


@pytest.fixture(scope="module")
def whole(start, pushed_model):
    """A run from its first step to its last: the job and its batches by step."""
    with start() as job:
        seen = Trainer(job, pushed_model).finish()
        assert job.task.wait(30) == 0, job.log.read_text()
    return job, seen


def test_a_run_goes_from_its_first_step_to_its_last(whole):
    job, seen = whole
    assert list(seen) == list(range(1, STEPS + 1))
    for step, batch in seen.items():
        assert set(batch.weight_version_N) == set(batch.weight_version_last_N) == {step - 1}
        assert np.isfinite(batch.logprobs_R).all()
        assert (batch.logprobs_R <= 0).all()
    groups = np.concatenate([batch.group_N for batch in seen.values()])
    assert groups.tolist() == np.repeat(range(STEPS * PROMPTS), SAMPLES).tolist()
    rollouts = events.by_step(job.run.metrics, "rollout")
    assert {event["retries"] for event in rollouts.values()} == {0}
    assert 0 < np.mean([event["reward_mean"] for event in rollouts.values()]) < 1
    assert sorted(events.by_step(job.run.metrics, "eval")) == [0, STEPS]
    assert json.loads(job.run.summary.read_text())["batches"] == STEPS
    assert job.phase() == ("finished", STEPS)


def test_the_same_seed_gives_the_same_samples_and_another_does_not(whole, start, pushed_model):
    for seed, equal in ((0, True), (1, False)):
        with start(seed=seed) as job:
            trainer = Trainer(job, pushed_model)
            trainer.train(1)
            trainer.transport.close()
        assert same(trainer.seen[1], whole[1][1]) is equal


def test_a_controller_killed_in_the_middle_of_a_batch_loses_nothing(whole, start, pushed_model, tmp_path):
    """Groups of step 3 are lost on their way; the run is resumed from the checkpoint of step 1."""
    slow = {"kind": "odd_rewards:parity", "timeout_s": 30, "options": {"sleep_s": 0.3}}
    with start(tmp_path, reward=slow) as job:
        first = Trainer(job, pushed_model)
        first.train(2)
        wait_until(lambda: job.phase() == ("generating", 3))
        job.task.kill()
        first.transport.close()
    journal = Journal(job.run)
    assert journal.entry(2)
    assert not journal.entry(3)
    sealed = job.run.batch(2).stat().st_mtime_ns
    with start(tmp_path, attempt=1, reward=slow | {"options": {}}) as job:
        second = Trainer(job, pushed_model, start=1)
        seen = second.finish()
        assert job.task.wait(30) == 0, job.log.read_text()
    assert list(seen) == [2, 3, 4]
    assert job.run.batch(2).stat().st_mtime_ns == sealed
    for step, batch in (first.seen | seen).items():
        assert same(batch, whole[1][step])


@pytest.fixture
def fruitless(pushed_model, tmp_path):
    """A job whose engine answers requests, but generates nothing."""
    run = make_run(tmp_path / "engine")
    with (
        start_fake_engine(run, name="fake") as engine,
        Job(tmp_path / "job", pushed_model, engine, run.token.read_text(), engine_role="fake", eval=None) as job,
    ):
        yield job


def test_without_the_token_the_controller_tells_nothing(fruitless):
    endpoint = wait_for(fruitless.run.endpoint(0, "controller"), timeout_s=60)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for method, path in (("GET", "/v1/status"), ("GET", "/v1/batches/1"), ("POST", "/v1/trainer"), ("POST", "/v1/finish")):
            assert requests.request(method, endpoint.url + path, headers=headers, json={}, timeout=30).status_code == 401
    assert fruitless.controller.token not in fruitless.log.read_text()


def test_an_engine_that_gives_no_answers_ends_the_run_and_the_trainer_learns_why(fruitless):
    client = ControllerClient(fruitless.trainer)
    client.register(attempt=0, step=0)
    client.commit_weights(0, client.begin_weights(0), {})
    with pytest.raises(RunError, match=r"No engine answered a request in 2 tries.*reply is no generation"):
        client.next_batch(1)
    assert fruitless.task.wait(60) == 1
    assert "EngineError: No engine answered a request in 2 tries" in fruitless.log.read_text()


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
