"""When an engine counts as silent, with a server that answers as it is told; a real one is stopped in test_engine.py."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import EngineError
from slime_hpc.rollout.pulse import Pulse

SILENCE_S = 1.0


class Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.headers["Authorization"] == "Bearer secret"
        healthy = self.path != "/health_generate" or self.server.healthy
        body = f'{{"weight_version": "{self.server.version}"}}'.encode()
        self.send_response(200 if healthy else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.version, server.healthy = "3", True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def pulse(server):
    endpoint = Endpoint(role="engines-0", rank=0, host="127.0.0.1", port=server.server_port, node="n", pid=1)
    with Pulse(endpoint, "secret", silence_s=SILENCE_S) as pulse:
        yield pulse


def silent(pulse):
    """Whether it is called silent within a generous time."""
    deadline = time.monotonic() + 20 * SILENCE_S
    while time.monotonic() < deadline:
        try:
            pulse.check()
        except EngineError as error:
            assert "engines-0 was asked for a token and gave none for" in error.what
            return True
        time.sleep(0.05)
    return False


def test_one_that_takes_weights_is_not_asked_and_one_that_gives_nothing_is_silent(pulse, server):
    server.healthy, server.version = False, "incomplete-4"
    time.sleep(2 * SILENCE_S)
    pulse.check()
    server.version = "4"
    assert silent(pulse)


def test_one_whose_port_is_gone_is_silent(pulse, server):
    server.socket.close()
    assert silent(pulse)
