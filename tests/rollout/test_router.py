import time

import psutil
import pytest
import requests

from slime_hpc.control.endpoint import wait_for
from slime_hpc.rollout.router import router_args
from slime_hpc.testing.engines import make_context, make_role, make_run
from slime_hpc.testing.fake_engine import received, start_fake_engine
from slime_hpc.testing.tasks import start_task

BODY = {"input_ids": [1, 2, 3]}


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("run"))
    rollout = {"router_policy": "round_robin", "request_timeout_s": 12.5}
    return make_context(run, make_role("router", "router"), model={"path": "m"}, rollout=rollout)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("router") / "log"


@pytest.fixture(scope="module")
def task(context, log):
    with start_task("slime_hpc.rollout.router", context, log) as task:
        yield task


@pytest.fixture(scope="module")
def router(context, task):
    return wait_for(context.run.endpoint(0, "router"), timeout_s=60, stopped=lambda: task.poll() is not None)


@pytest.fixture(scope="module")
def headers(context):
    return {"Authorization": f"Bearer {context.token}"}


@pytest.fixture(scope="module")
def engines(context, router, headers):
    """Two fake engines that the router knows."""
    with start_fake_engine(context.run, name="first") as first, start_fake_engine(context.run, name="second") as second:
        for engine in (first, second):
            body = {"url": engine.url, "api_key": context.token}
            assert requests.post(f"{router.url}/workers", json=body, headers=headers, timeout=10).status_code == 202
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            workers = requests.get(f"{router.url}/workers", headers=headers, timeout=10).json()["workers"]
            if len(workers) == 2 and all(worker["is_healthy"] for worker in workers):
                break
            time.sleep(0.1)
        else:
            raise AssertionError(workers)
        yield [first, second]


def test_requests_are_spread_and_reach_engines_with_the_clients_token(context, router, engines, headers):
    for _ in range(6):
        reply = requests.post(f"{router.url}/generate", json=BODY, headers=headers, timeout=10)
        assert reply.status_code == 200
        assert reply.json()["meta_info"]["weight_version"] == "none"
    assert [received(engine, context.token)["generated"] for engine in engines] == [3, 3]


@pytest.mark.parametrize("wrong", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "wrong"}])
@pytest.mark.parametrize("route", ["/generate", "/v1/chat/completions", "/v1/completions", "/flush_cache", "/workers"])
def test_without_the_token_nothing_reaches_an_engine(context, router, engines, wrong, route):
    before = [received(engine, context.token) for engine in engines]
    assert requests.post(f"{router.url}{route}", json=BODY, headers=wrong, timeout=10).status_code == 401
    assert [received(engine, context.token) for engine in engines] == before


def test_the_list_of_engines_needs_the_token_and_does_not_tell_it(context, router, engines, headers):
    assert requests.get(f"{router.url}/workers", timeout=10).status_code == 401
    assert context.token not in requests.get(f"{router.url}/workers", headers=headers, timeout=10).text


def test_only_the_route_and_the_loopback_interface_are_open(context, router, task):
    ports = {
        (connection.laddr.ip, connection.laddr.port)
        for process in psutil.Process(task.pid).children(recursive=True)
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert (router.host, router.port) in ports
    assert len(ports) == 2
    assert {ip for ip, port in ports if port != router.port} == {"127.0.0.1"}


def test_the_token_is_neither_in_arguments_nor_in_the_log(context, router, engines, task, log):
    for process in [psutil.Process(task.pid), *psutil.Process(task.pid).children(recursive=True)]:
        assert context.token not in " ".join(process.cmdline())
        assert context.token not in str(process.environ())
    assert context.token not in log.read_text()


def test_arguments_follow_the_experiment(context):
    value = router_args(context, 21000)
    assert value["policy"] == "round_robin"
    assert value["request_timeout_secs"] > 12.5
    assert value["disable_retries"]
    assert value["disable_circuit_breaker"]
    assert value["disable_health_check"]
    assert "api_key" not in value


def test_a_second_router_finds_other_ports(context, router, tmp_path):
    run = make_run(tmp_path)
    other = make_context(run, make_role("router", "router", port_first=router.port), model={"path": "m"})
    with start_task("slime_hpc.rollout.router", other, tmp_path / "log") as task:
        endpoint = wait_for(run.endpoint(0, "router"), timeout_s=60, stopped=lambda: task.poll() is not None)
        assert endpoint.port != router.port
        children = psutil.Process(task.pid).children(recursive=True)
        assert children
    assert task.returncode == 0
    assert not any(child.is_running() for child in children)
