"""The controller's client of the router, where the router does not do what it should; the real one is in test_controller.py."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import EngineError
from slime_hpc.rollout.router_client import RouterClient

ENGINES = [Endpoint(role=f"engines-{i}", rank=i, host="10.0.0.1", port=21000 + i, node="n", pid=1) for i in range(2)]


class Router:
    """Lists what was added once it was asked `late` times; its first `failures` answers to /generate are 503."""

    def __init__(self, *, late=0, lose="", failures=0):
        self.added, self.late, self.lose, self.failures = [], late, lose, failures

    async def add(self, http):
        assert http.headers["Authorization"] == "Bearer secret"
        self.added.append(await http.json())
        return web.json_response({}, status=202)

    async def list(self, http):
        self.late -= 1
        shown = [body["url"] for body in self.added if body["url"] != self.lose] if self.late < 0 else []
        return web.json_response({"workers": [{"url": url + "/", "is_healthy": True} for url in shown]})

    async def generate(self, http):
        self.failures -= 1
        return web.Response(status=503, text="no worker yet") if self.failures >= 0 else web.json_response({})

    def play(self, scenario):
        async def main():
            app = web.Application()
            app.add_routes([web.post("/workers", self.add), web.get("/workers", self.list), web.post("/generate", self.generate)])
            async with TestServer(app) as server, aiohttp.ClientSession() as session:
                await scenario(RouterClient(str(server.make_url("/")).rstrip("/"), "secret", session))

        asyncio.run(main())


def test_every_engine_is_added_with_the_token_and_waited_for():
    router = Router(late=3)
    router.play(lambda client: client.register(ENGINES, timeout_s=20))
    assert router.added == [{"url": engine.url, "api_key": "secret"} for engine in ENGINES]
    assert router.late < 0


def test_an_engine_that_the_router_does_not_take_is_named():
    with pytest.raises(EngineError, match=r"did not take http://10\.0\.0\.1:21001 within") as caught:
        Router(lose=ENGINES[1].url).play(lambda client: client.register(ENGINES, timeout_s=0.5))
    assert "21000" not in caught.value.what


def test_the_first_token_is_waited_for():
    router = Router(failures=2)
    router.play(lambda client: client.generate_one(1, timeout_s=20))
    assert router.failures < 0


def test_no_token_in_time_is_told_with_the_routers_words():
    with pytest.raises(EngineError, match=r"No token came.*503: no worker yet"):
        Router(failures=99).play(lambda client: client.generate_one(1, timeout_s=0.6))
