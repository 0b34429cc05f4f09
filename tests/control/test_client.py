import dataclasses
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from slime_hpc.control import client as module
from slime_hpc.control.client import ControllerClient
from slime_hpc.control.endpoint import Endpoint, publish
from slime_hpc.errors import RunError
from slime_hpc.testing.engines import make_context, make_role, make_run

ENGINE = Endpoint(role="engines-0", rank=0, host="10.0.0.1", port=21000, node="n1", pid=1, gpus=2)


class Server:
    """A controller that gives prepared answers: (status, value), or None to drop the connection."""

    def __init__(self):
        self.answers = []
        self.requests = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append((self.command, self.path, json.loads(body) if body else None, self.headers["Authorization"]))
                answer = outer.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, value = answer
                data = b"" if status == 204 else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = serve

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def context(tmp_path):
    return make_context(make_run(tmp_path), make_role("trainer", "trainer"), model={"path": "m"})


def announce(context, port):
    path = context.run.endpoint(0, "controller")
    publish(path, Endpoint(role="controller", rank=0, host="127.0.0.1", port=port, node="here", pid=1))


@pytest.fixture
def server(context, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    server = Server()
    announce(context, server.http.server_port)
    yield server
    server.http.shutdown()


def test_register_waits_for_the_engines(context, server):
    server.answers = [(204, None), (204, None), (200, {"engines": [dataclasses.asdict(ENGINE)]})]
    assert ControllerClient(context).register(attempt=1, step=4) == [ENGINE]
    method, path, body, authorization = server.requests[-1]
    assert (method, path.split("?")[0], body) == ("POST", "/v1/trainer", {"attempt": 1, "step": 4})
    assert authorization == f"Bearer {context.token}"
    assert "wait_s=" in path


def test_next_batch_waits(context, server):
    server.answers = [(204, None), (200, {"path": "/run/batches/step_00000003.h5"})]
    batch = ControllerClient(context).next_batch(3)
    assert (batch.step, str(batch.path)) == (3, "/run/batches/step_00000003.h5")
    assert server.requests[0][1].startswith("/v1/batches/3?")


def test_waiting_for_a_batch_ends_when_the_run_is_to_be_parked(context, server):
    server.answers = [(204, None), (204, None)]
    told = iter([False, False, True])
    assert ControllerClient(context).next_batch(3, stopped=lambda: next(told)) is None
    assert len(server.requests) == 2


def test_the_other_calls(context, server):
    server.answers = [(200, {"engines": []})] * 4
    client = ControllerClient(context)
    client.begin_weights(2)
    client.commit_weights(2, [], {"seconds": 1.5})
    client.report("train", step=2, loss=0.5)
    client.finish(7)
    assert [(path.split("?")[0], body) for _, path, body, _ in server.requests] == [
        ("/v1/weights/begin", {"version": 2, "behind": False}),
        ("/v1/weights/commit", {"version": 2, "engines": [], "metrics": {"seconds": 1.5}}),
        ("/v1/events", {"kind": "train", "step": 2, "loss": 0.5}),
        ("/v1/finish", {"step": 7}),
    ]


def test_the_controllers_cause_is_raised(context, server):
    server.answers = [(409, {"error": "engine engines-0 is gone", "where": "engines-0", "fix": "look at its log"})]
    with pytest.raises(RunError) as caught:
        ControllerClient(context).next_batch(1)
    assert (caught.value.what, caught.value.where, caught.value.fix) == ("engine engines-0 is gone", "engines-0", "look at its log")


@pytest.mark.parametrize("status", [401, 500])
def test_any_other_answer_is_an_error(context, server, status):
    server.answers = [(status, {})]
    with pytest.raises(RunError, match=str(status)):
        ControllerClient(context).finish(1)


def test_a_lost_connection_is_tried_again(context, server):
    server.answers = [None, None, (200, {})]
    ControllerClient(context).finish(1)
    assert len(server.requests) == 3


def test_trying_again_ends(context, server):
    server.answers = [None] * 20
    with pytest.raises(RunError, match="does not answer POST /v1/finish"):
        ControllerClient(context).finish(1)
    assert len(server.requests) < 20


def test_a_restarted_controller_is_found(context, server):
    client = ControllerClient(context)
    other = Server()
    other.answers = [(200, {})]
    announce(context, other.http.server_port)
    client.finish(1)
    assert other.requests[0][1] == "/v1/finish"
    other.http.shutdown()


def test_the_client_waits_for_the_controller(context, monkeypatch):
    monkeypatch.setattr(module, "_FIND_TIMEOUT_S", 0.3)
    with pytest.raises(RunError, match="controller did not publish its address"):
        ControllerClient(context)
