import asyncio
import contextlib
import math

import pytest
from aiohttp.test_utils import TestClient, TestServer

from slime_hpc.control.api import EnginesBehind
from slime_hpc.control.client import ControllerClient
from slime_hpc.control.endpoint import Endpoint, publish
from slime_hpc.errors import EngineError, RunError
from slime_hpc.observe import events
from slime_hpc.rollout.control_server import MAX_BODY, ControlServer
from slime_hpc.rollout.run_state import RunState
from slime_hpc.testing.engines import make_context, make_role, make_run

ENGINE = Endpoint(role="engines-0", rank=0, host="10.0.0.1", port=21000, node="n1", pid=1, gpus=2)
SECOND = Endpoint(role="engines-1", rank=1, host="10.0.0.2", port=21000, node="n2", pid=7, gpus=2)
ROUTES = [
    ("POST", "/v1/trainer"), ("POST", "/v1/weights/begin"), ("POST", "/v1/weights/commit"), ("GET", "/v1/batches/1"),
    ("POST", "/v1/events"), ("POST", "/v1/finish"), ("GET", "/v1/status"),
]  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


@pytest.fixture
def state(run):
    return RunState(run=run)


@pytest.fixture
def play(run, state):
    """Run `scenario(call)` against a server; `call` returns status and JSON."""

    def play(scenario, *, token=None, attempt=0):
        async def main():
            bearer = run.token.read_text() if token is None else token
            app = ControlServer(state, token=run.token.read_text(), attempt=attempt).app()
            async with TestClient(TestServer(app)) as client:

                async def call(method, path, body=None, **kwargs):
                    reply = await client.request(method, path, json=body, headers={"Authorization": f"Bearer {bearer}"}, **kwargs)
                    return reply.status, (await reply.json() if reply.content_type == "application/json" else None)

                await scenario(call)

        asyncio.run(main())

    return play


@pytest.mark.parametrize("token", ["", "wrong", "wröng"])
def test_without_the_token_nothing_is_told_and_nothing_done(play, state, token):
    before = state.status()

    async def scenario(call):
        for method, path in ROUTES:
            assert (await call(method, path, {"version": 1, "step": 1, "attempt": 0}))[0] == 401

    play(scenario, token=token)
    assert state.status() == before
    assert not state.finished


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/trainer", {}),
        ("/v1/trainer", {"attempt": 0, "step": "x"}),
        ("/v1/weights/begin", []),
        ("/v1/weights/commit", {"version": None}),
        ("/v1/events", {"kind": "nonsense", "step": 1}),
        ("/v1/events", {"kind": "train"}),
        ("/v1/events", [1]),
        ("/v1/finish", {}),
    ],
)
def test_a_wrong_body_is_a_bad_request(play, path, body):
    async def scenario(call):
        status, answer = await call("POST", path, body)
        assert status == 400
        assert "bad request" in answer["error"]

    play(scenario)


def test_a_huge_body_is_refused(play):
    async def scenario(call):
        assert (await call("POST", "/v1/events", {"kind": "train", "step": 1, "x": "y" * MAX_BODY}))[0] == 413

    play(scenario)


def test_registration_waits_for_the_engines_and_is_counted_once(play, state, run):
    async def scenario(call):
        body = {"attempt": 0, "step": 3}
        assert (await call("POST", "/v1/trainer", body))[0] == 204
        state.engines = [ENGINE]
        for _ in range(2):
            status, answer = await call("POST", "/v1/trainer", body)
            assert (status, answer["engines"][0]["role"]) == (200, "engines-0")
        assert (state.trainer.step, state.trainer.number) == (3, 0)
        await call("POST", "/v1/weights/commit", {"version": 3, "engines": answer["engines"], "metrics": {"bytes": 12}})
        assert (state.version, state.holding) == (3, {ENGINE})
        await call("POST", "/v1/trainer", body)
        assert (state.trainer.number, state.version) == (1, None)

    play(scenario)
    assert [event["step"] for event in events.read(run.metrics) if event["kind"] == "attempt"] == [3, 3]


def test_a_trainer_of_another_attempt_is_refused(play, state):
    state.engines = [ENGINE]

    async def scenario(call):
        status, answer = await call("POST", "/v1/trainer", {"attempt": 1, "step": 0})
        assert status == 409
        assert "attempt 1" in answer["error"]

    play(scenario)
    assert state.trainer is None


def test_weights_wait_until_no_request_is_in_flight(play, state):
    flying = [2]
    state.in_flight = lambda: flying[0]
    state.engines = [ENGINE]
    state.register(0, 4)
    state.version = 4

    async def scenario(call):
        assert (await call("POST", "/v1/weights/begin", {"version": 5}))[0] == 204
        assert state.version == 4
        waiting = asyncio.create_task(call("POST", "/v1/weights/begin?wait_s=20", {"version": 5}))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        flying[0] = 0
        state.change()
        assert (await asyncio.wait_for(waiting, 5))[0] == 200
        assert state.version is None

    play(scenario)


def test_a_batch_is_waited_for(play, state, run):
    state.register(0, 1)

    async def scenario(call):
        assert (await call("GET", "/v1/batches/2"))[0] == 204
        waiting = asyncio.create_task(call("GET", "/v1/batches/2?wait_s=20"))
        await asyncio.sleep(0.05)
        state.batches[2] = run.batch(2)
        state.change()
        assert await asyncio.wait_for(waiting, 5) == (200, {"path": str(run.batch(2))})

    play(scenario)


def test_a_failed_run_is_told_to_all_who_wait(play, state):
    state.register(0, 1)

    async def scenario(call):
        waiting = asyncio.create_task(call("GET", "/v1/batches/2?wait_s=20"))
        await asyncio.sleep(0.05)
        state.fail(EngineError("no engine answers", where="router", fix="see its log"))
        assert await asyncio.wait_for(waiting, 5) == (409, {"error": "no engine answers", "where": "router", "fix": "see its log"})

    play(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/weights/begin", {"version": 2}),
        ("POST", "/v1/weights/commit", {"version": 2, "engines": [], "metrics": {}}),
        ("GET", "/v1/batches/2", None),
        ("POST", "/v1/finish", {"step": 2}),
    ],
)
def test_a_controller_that_was_started_again_asks_who_the_trainer_is(play, method, path, body):
    async def scenario(call):
        assert await call(method, path, body) == (412, {"error": "no trainer has registered"})

    play(scenario)


def test_the_client_tells_a_new_controller_what_the_old_one_knew(run):
    """The controller is started again while the trainer waits for batch 3, and while it pushes version 3."""
    context = make_context(run, make_role("trainer", "trainer"), model={"path": "m"})
    old, new, newest = states = [RunState(run=run, engines=[ENGINE]) for _ in range(3)]
    result = {}

    def serve(state, server):
        endpoint = Endpoint(role="controller", rank=0, host="127.0.0.1", port=server.port, node="here", pid=1)
        publish(run.endpoint(0, "controller"), endpoint)

    def trainer(servers):
        serve(old, servers[0])
        client = ControllerClient(context)
        client.register(attempt=0, step=0)
        client.commit_weights(2, client.begin_weights(2), {})
        serve(new, servers[1])
        new.batches[3] = run.batch(3)
        # Registering clears what is served; the loop would serve the batch again once the version is committed.
        result["batch"] = client.next_batch(3, stopped=lambda: new.trainer is not None and not new.batches)
        result["new"] = (new.trainer.step, new.version, new.holding)
        engines = client.begin_weights(3)
        serve(newest, servers[2])
        client.commit_weights(3, engines, {"seconds": 1})

    async def main():
        async with contextlib.AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(TestServer(ControlServer(state, token=context.token, attempt=0).app())) for state in states
            ]
            await asyncio.to_thread(trainer, servers)

    asyncio.run(main())
    assert result == {"batch": None, "new": (2, 2, {ENGINE})}
    assert (newest.trainer.step, newest.version, newest.holding) == (2, 3, {ENGINE})
    assert [event["step"] for event in events.read(run.metrics) if event["kind"] == "push"] == [2, 3]


def test_the_client_and_the_server_understand_each_other(run, state):
    """Every call of the real client, through HTTP."""
    context = make_context(run, make_role("trainer", "trainer"), model={"path": "m"})
    state.engines = [ENGINE]
    result = {}

    def trainer():
        client = ControllerClient(context)
        result["engines"] = client.register(attempt=0, step=0)
        client.commit_weights(1, client.begin_weights(1), {"seconds": 0.5})
        state.engines = [ENGINE, SECOND]
        result["behind"] = client.next_batch(1)
        result["second"] = client.begin_weights(1, behind=True)
        client.commit_weights(1, result["second"], {"seconds": 0.25})
        state.batches[1] = run.batch(1)
        result["batch"] = client.next_batch(1)
        client.report("train", step=1, loss=math.nan, grad_norm=math.inf)
        client.finish(1)
        with pytest.raises(RunError, match="bad request"):
            client.report("nonsense", step=1)

    async def main():
        async with TestServer(ControlServer(state, token=context.token, attempt=0).app()) as server:
            endpoint = Endpoint(role="controller", rank=0, host="127.0.0.1", port=server.port, node="here", pid=1)
            publish(run.endpoint(0, "controller"), endpoint)
            await asyncio.to_thread(trainer)

    asyncio.run(main())
    assert result["engines"] == [ENGINE]
    assert result["behind"] == EnginesBehind()
    assert result["second"] == [SECOND]
    assert state.holding == {ENGINE, SECOND}
    assert [(event["kind"], event["seconds"]) for event in events.read(run.metrics) if "seconds" in event] == [
        ("push", 0.5),
        ("catch_up", 0.25),
    ]
    assert result["batch"].path == run.batch(1)
    assert state.finished
    assert state.version == 1
    [event] = [event for event in events.read(run.metrics) if event["kind"] == "train"]
    assert math.isnan(event["loss"])
    assert event["attempt"] == 0
