"""An engine without a model, for what a real one does not do on demand: the update-session protocol of SGLang 0.5.22+, and failures.

It speaks the control endpoints over HTTP, asks for the bearer token, joins the weight group as SGLang does and really receives buckets;
what it received is told at /received. Run in a process of its own, so that it can die.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import requests

from slime_hpc.control.endpoint import Endpoint, free_port
from slime_hpc.rollout.process import ServerProcess, python_environment
from slime_hpc.run_folder import RunFolder

Json = dict[str, Any]
Failure = Literal["none", "refuse", "refuse_late", "error", "crash", "die", "hang", "lie", "drop"]
ERROR_TEXT = "the fake engine was told to fail"
_LATE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What a fake engine does."""

    sessions: bool = False
    """Demand begin and end around an update, as SGLang 0.5.22+ does."""
    digest: bool = True
    """Remember the digest of every tensor that it receives; for timing, it only receives."""
    fail_at: int = 0
    """Bucket, counted from 0, at which `failure` happens."""
    failure: Failure = "none"
    """refuse: 400 at once, receives nothing; refuse_late: the same after half a second; error: 400 after it received; crash: the same with
    500; die: the process ends; hang: it neither receives nor answers; lie: it says at once that it has loaded, and receives nothing; drop:
    it receives, says that it has loaded, and has not."""


@contextlib.contextmanager
def start_fake_engine(run: RunFolder, *, name: str = "fake", behaviour: Behaviour = Behaviour()) -> Iterator[Endpoint]:
    """A running fake engine with the run's token; killed at the end."""
    port = free_port("127.0.0.1", 28_000 + os.getpid() % 1000)
    endpoint = Endpoint(role=f"{name}-0", rank=0, host="127.0.0.1", port=port, node="here", pid=os.getpid(), gpus=1)
    settings = {"token_file": str(run.token), "port": port, "behaviour": dataclasses.asdict(behaviour)}
    path = run.control / f"{name}.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "slime_hpc.testing.fake_engine", str(path)]
    with ServerProcess(endpoint.role, command, python_environment()) as server:
        server.wait_healthy(f"{endpoint.url}/health", timeout_s=60)
        yield dataclasses.replace(endpoint, pid=server.pid)


def behave(engine: Endpoint, token: str, behaviour: Behaviour) -> None:
    """Start a running fake engine anew, with another behaviour."""
    headers = {"Authorization": f"Bearer {token}"}
    requests.post(f"{engine.url}/behave", json=dataclasses.asdict(behaviour), headers=headers, timeout=30).raise_for_status()


def received(engine: Endpoint, token: str) -> Json:
    """What a running fake engine has received and holds."""
    value: Json = requests.get(f"{engine.url}/received", headers={"Authorization": f"Bearer {token}"}, timeout=30).json()
    return value


class _Refusal(Exception):
    """Answered with its text, and as 400 unless another status is given."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class _Engine:
    """The state of one fake engine: each public method is an endpoint, named as it. /behave starts anew with another behaviour."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._version = "none"
        self._paused = False
        self._pause_mode = ""
        self._session = False
        self._dtypes: dict[str, str] = {}
        self._buckets = 0
        self._flushes = 0
        self._generated = 0
        self._calls: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._groups: dict[str, Any] = {}

    def behave(self, body: Json) -> Json:
        self.__init__(Behaviour(**body))  # type: ignore[misc]
        return {}

    def health(self, body: Json) -> Json:
        return {}

    def openapi_json(self, body: Json) -> Json:
        return {"paths": {"/begin_weight_update": {}} if self._behaviour.sessions else {}}

    def model_info(self, body: Json) -> Json:
        return {"weight_version": self._version}

    def received(self, body: Json) -> Json:
        counts = {"flushes": self._flushes, "generated": self._generated, "calls": self._calls, "pause_mode": self._pause_mode}
        return {"digests": self._digests, "dtypes": self._dtypes, "paused": self._paused, "session": self._session} | counts

    def count(self, endpoint: str) -> None:
        if endpoint == "received":
            # A look at it is not a call to it.
            return
        self._calls[endpoint] = self._calls.get(endpoint, 0) + 1

    def weights_checker(self, body: Json) -> Json:
        """The digests of what it received stand for the checksums of what it holds."""
        ranks = [{"checksums": self._digests, "parallelism_info": {"tp_rank": 0}}]
        return {"success": True, "message": "Success.", "ranks": ranks}

    def server_info(self, body: Json) -> Json:
        return {"model_path": "fake", "tp_size": 1, "dp_size": 1}

    def generate(self, body: Json) -> Json:
        self._generated += 1
        meta = {"weight_version": self._version, "output_token_logprobs": [], "finish_reason": {"type": "stop"}}
        return {"text": "", "output_ids": [], "meta_info": meta}

    def pause_generation(self, body: Json) -> Json:
        self._paused, self._pause_mode = True, body["mode"]
        return {}

    def continue_generation(self, body: Json) -> Json:
        self._paused = False
        return {}

    def flush_cache(self, body: Json) -> Json:
        self._flushes += 1
        return {}

    def update_weight_version(self, body: Json) -> Json:
        self._version = body["new_version"]
        return {}

    def begin_weight_update(self, body: Json) -> Json:
        if self._session:
            raise _Refusal("a weight update is already open")
        self._session = True
        return {}

    def end_weight_update(self, body: Json) -> Json:
        if not self._session:
            raise _Refusal("no weight update is open")
        self._session = False
        return {}

    def init_weights_update_group(self, body: Json) -> Json:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        name, size, rank = body["group_name"], body["world_size"], body["rank_offset"]
        timeout = datetime.timedelta(seconds=60)
        address = f"tcp://{body['master_address']}:{body['master_port']}"
        store, _, _ = next(dist.rendezvous(address, rank, size, timeout=timeout))  # type: ignore[attr-defined]
        group, _ = c10d._new_process_group_helper(
            size,
            rank,
            [],
            c10d.Backend(body["backend"]),
            c10d.PrefixStore(name, store),
            group_name=name,
            timeout=timeout,
        )
        self._groups[name] = group
        return {}

    def destroy_weights_update_group(self, body: Json) -> Json:
        if self._groups.pop(body["group_name"], None) is None:
            raise _Refusal("The group to be destroyed does not exist.")
        return {}

    def update_weights_from_distributed(self, body: Json) -> Json:
        if self._behaviour.sessions and not self._session:
            raise _Refusal("call /begin_weight_update first")
        fails = self._behaviour.failure if self._buckets == self._behaviour.fail_at else "none"
        self._buckets += 1
        if fails != "lie":
            self._fail_before(fails)
            self._receive(body, keep=self._behaviour.digest and fails != "drop")
        if fails in ("error", "crash"):
            raise _Refusal(ERROR_TEXT, 500 if fails == "crash" else 400)
        return {"success": True, "message": "received"}

    def _fail_before(self, failure: Failure) -> None:
        if failure == "die":
            os._exit(9)
        if failure == "hang":
            time.sleep(3600)
        if failure == "refuse_late":
            time.sleep(_LATE_S)
        if failure in ("refuse", "refuse_late"):
            raise _Refusal(ERROR_TEXT)

    def _receive(self, body: Json, *, keep: bool) -> None:
        import torch

        sizes = []
        for dtype, shape in zip(body["dtypes"], body["shapes"], strict=True):
            sizes.append(getattr(torch, dtype).itemsize * int(torch.Size(shape).numel()))
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        try:
            self._groups[body["group_name"]].broadcast([data], torch.distributed.BroadcastOptions()).wait()
        except RuntimeError as error:
            raise _Refusal(f"broadcast: {error}") from error
        parts = torch.split(data, sizes) if keep else ()
        for name, dtype, part in zip(body["names"], body["dtypes"], parts, strict=keep):
            # As a tensor of its own dtype, which wants it aligned.
            self._digests[name] = hashlib.sha256(part.view(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()).hexdigest()
            self._dtypes[name] = dtype


def _handler(engine: _Engine, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            name = self.path.split("?")[0].strip("/").replace(".", "_")
            endpoint = None if name.startswith("_") else getattr(engine, name, None)
            if name != "health" and self.headers.get("Authorization") != f"Bearer {token}":
                self._answer(401, {"error": "Unauthorized"})
            elif endpoint is None:
                self._answer(404, {"error": f"no endpoint {self.path}"})
            else:
                engine.count(name)
                try:
                    self._answer(200, endpoint(body))
                except _Refusal as refusal:
                    self._answer(refusal.status, {"success": False, "message": str(refusal)})

        do_GET = do_POST = _serve

        def _answer(self, status: int, value: Json) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet: errors are told in answers."""

    return Handler


def main(path: str) -> None:
    """Serve until killed."""
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    token = Path(settings["token_file"]).read_text(encoding="ascii").strip()
    engine = _Engine(Behaviour(**settings["behaviour"]))
    ThreadingHTTPServer(("127.0.0.1", settings["port"]), _handler(engine, token)).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
