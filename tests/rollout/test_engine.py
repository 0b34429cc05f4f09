"""One real engine, started as a task; what is in front of it and around it."""

import concurrent.futures
import math
import stat
import time

import psutil
import pytest
import requests

from slime_hpc.control.endpoint import read, wait_for
from slime_hpc.testing.engines import make_context, make_role, make_run, make_tiny_model
from slime_hpc.testing.tasks import start_task


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    model = make_tiny_model(tmp_path_factory.mktemp("model"))
    return make_context(
        make_run(tmp_path_factory.mktemp("run")),
        make_role("engines-0", "engines"),
        model={"path": str(model), "dtype": "float32"},
        rollout={"context_length": 512, "sglang": {"max_total_tokens": 8192}},
        failure={"engine_silence_s": 30},
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("engine") / "log"


@pytest.fixture(scope="module")
def task(context, log):
    with start_task("slime_hpc.rollout.engine", context, log) as task:
        yield task


@pytest.fixture(scope="module")
def engine(context, task, log):
    endpoint = wait_for(context.run.endpoint(0, "engines-0-0"), timeout_s=240, stopped=lambda: task.poll() is not None)
    assert task.poll() is None, log.read_text()
    return endpoint


def generate(context, engine, prompt, seed, *, new_tokens=40, temperature=1.0, top_p=1.0):
    sampling = {
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": new_tokens,
        "sampling_seed": seed,
        "ignore_eos": True,
    }
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
    reply = requests.post(f"{engine.url}/generate", json=body, headers={"Authorization": f"Bearer {context.token}"}, timeout=60)
    reply.raise_for_status()
    answer = reply.json()
    return answer["output_ids"], [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]


def test_the_engine_says_where_it_listens(context, engine):
    assert engine.gpus == 1
    assert (engine.host, engine.role, engine.rank) == (context.address, "engines-0-0", 0)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
@pytest.mark.parametrize("route", ["/generate", "/update_weights_from_disk", "/update_weights_from_distributed", "/flush_cache"])
def test_without_the_token_nothing_is_done(engine, headers, route):
    assert requests.post(f"{engine.url}{route}", json={"input_ids": [1]}, headers=headers, timeout=10).status_code == 401


@pytest.mark.parametrize("route", ["/model_info", "/server_info", "/get_server_info", "/openapi.json", "/docs"])
def test_without_the_token_nothing_is_told(engine, route):
    assert requests.get(f"{engine.url}{route}", timeout=10).status_code == 401


def test_the_token_is_in_no_argument_environment_or_log(context, engine, task, log):
    processes = [psutil.Process(task.pid), *psutil.Process(task.pid).children(recursive=True)]
    assert len(processes) >= 4
    for process in processes:
        assert context.token not in " ".join(process.cmdline())
        assert context.token not in str(process.environ())
    text = log.read_text()
    assert "server_args" in text
    assert "***" in text
    assert context.token not in text


def test_the_settings_are_readable_by_the_owner_alone(context, engine):
    path = context.run.role(0, "engines-0") / "engines-0-0.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert context.token not in path.read_text()


def test_a_seed_gives_the_same_answer_whatever_runs_beside_it(context, engine):
    prompts = [[10 + i, 20, 30, 40 + i] for i in range(6)]
    alone = [generate(context, engine, prompt, seed) for seed, prompt in enumerate(prompts)]
    assert len({tuple(tokens) for tokens, _ in alone}) == 6
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        mine = [pool.submit(generate, context, engine, prompt, seed) for seed, prompt in enumerate(prompts)]
        strangers = [pool.submit(generate, context, engine, [50 + i] * (3 * i + 2), 1000 + i, new_tokens=20 + i) for i in range(10)]
        assert [future.result() for future in mine] == alone
        assert all(len(future.result()[0]) == 20 + i for i, future in enumerate(strangers))


def test_the_seed_decides(context, engine):
    assert generate(context, engine, [5, 6, 7], 1) != generate(context, engine, [5, 6, 7], 2)
    assert generate(context, engine, [5, 6, 7], 1, top_p=0.9) == generate(context, engine, [5, 6, 7], 1, top_p=0.9)


def test_samples_follow_the_models_distribution(context, engine):
    """First tokens of many seeds against the log-probs that the engine itself gives (chi-square over the likely tokens)."""
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        drawn = list(pool.map(lambda seed: generate(context, engine, [9, 8, 7], seed, new_tokens=1, temperature=0.25), range(400)))
    logprob = {tokens[0]: logprobs[0] for tokens, logprobs in drawn}
    counts = {token: sum(tokens[0] == token for tokens, _ in drawn) for token in logprob}
    expected = {token: len(drawn) * math.exp(value) for token, value in logprob.items()}
    likely = [token for token in logprob if expected[token] >= 8]
    assert len(likely) >= 2
    chi_square = sum((counts[token] - expected[token]) ** 2 / expected[token] for token in likely)
    assert chi_square < 3 * len(likely) + 10


def test_an_idle_engine_takes_no_core(engine, task):
    processes = psutil.Process(task.pid).children(recursive=True)

    def used():
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    time.sleep(1)
    before, start = used(), time.monotonic()
    time.sleep(2)
    assert (used() - before) / (time.monotonic() - start) < 0.5


def test_an_unknown_argument_ends_the_task_with_the_nearest_name(context, tmp_path):
    bad = make_context(
        make_run(tmp_path / "run"),
        make_role("engines-0", "engines"),
        model=context.experiment.model.model_dump(),
        rollout={"sglang": {"mem_fraction_statik": 0.1}},
    )
    with start_task("slime_hpc.rollout.engine", bad, tmp_path / "log") as task:
        assert task.wait(120) == 1
    text = (tmp_path / "log").read_text()
    assert "slime_hpc.errors.ConfigError" in text
    assert "did you mean 'mem_fraction_static'?" in text


def test_a_server_that_falls_silent_is_started_again(context, engine, task, log):
    """Its scheduler is stopped: the port still answers, no token comes."""
    servers = psutil.Process(task.pid).children(recursive=True)
    (scheduler,) = [process for process in servers if "scheduler" in process.name()]
    scheduler.suspend()
    deadline = time.monotonic() + 300
    while read(context.run.endpoint(0, "engines-0-0")) in (None, engine):
        assert task.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    again = read(context.run.endpoint(0, "engines-0-0"))
    assert len(generate(context, again, [5, 6, 7], 1, new_tokens=3)[0]) == 3
    assert "restart 1 of 3: engines-0-0 was asked for a token and gave none for" in log.read_text()
    assert again.started > engine.started
    assert not scheduler.is_running()


def test_a_killed_task_leaves_nothing(engine, task):
    """The last test of this file: it ends the engine that the others use."""
    processes = psutil.Process(task.pid).children(recursive=True)
    assert len(processes) >= 3
    task.kill()
    task.wait()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive
