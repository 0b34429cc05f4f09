"""A real trainer at several parallel sizes, each transport, real engines of one and two ranks: all cases in one launch of two ranks."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slime_hpc.config.dump import to_toml
from slime_hpc.control.endpoint import publish, write_atomic
from slime_hpc.plan.job import JobPlan
from slime_hpc.sync.distributed import DistributedTransport
from slime_hpc.testing.engines import make_role
from slime_hpc.testing.transport_contract import TOLERANCE

pytestmark = pytest.mark.slow
LAYOUTS = {"dp2": {}, "tp2": {"tensor_parallel": 2}, "pp2": {"pipeline_parallel": 2}}
MODELS = ("untied", "tied")
TRANSPORTS = ("distributed", "disk")
CASES = [(transport, model, layout) for transport in TRANSPORTS for model in MODELS for layout in LAYOUTS]
SAVED = ("distributed", "untied", "pp2")


def launch(folder, settings, world=2, timeout_s=300):
    """Run megatron_push.py on all ranks; what it wrote."""
    common = {"world": world, "store": str(folder / "store"), "results": str(folder / "results.json")}
    ranks = []
    for rank in range(world):
        path = folder / f"rank-{rank}.json"
        path.write_text(json.dumps(settings | common | {"rank": rank}))
        log = (folder / f"log-{rank}").open("wb")
        ranks.append(subprocess.Popen([sys.executable, Path(__file__).with_name("megatron_push.py"), path], stdout=log, stderr=log))
    deadline = time.monotonic() + timeout_s
    try:
        # The others of a rank that has failed would wait for it.
        while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks) and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    logs = [(folder / f"log-{rank}").read_text(errors="replace")[-3000:] for rank in range(world)]
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(logs)
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def results(run, engines, tied_engine, pushed_model, tied_model, tmp_path_factory):
    """Figures of every case."""
    to = {"untied": (pushed_model, engines), "tied": (tied_model, [tied_engine])}
    cases = []
    for number, (transport, model, layout) in enumerate(CASES):
        folder, endpoints = to[model]
        cases.append(
            {
                "model": str(folder),
                "engines": [dataclasses.asdict(endpoint) for endpoint in endpoints],
                "trainer": LAYOUTS[layout],
                "sync": {"transport": transport, "bucket_mib": 0.1, "timeout_s": 60.0},
                "version": 100 + number,
                "save": (transport, model, layout) == SAVED,
                "broken": False,
            }
        )
    # Before the others, which so show that a later push succeeds.
    broken = cases[CASES.index(SAVED)] | {"version": 99, "broken": True}
    figures = launch(tmp_path_factory.mktemp("megatron"), {"run": str(run.path), "cases": [broken, *cases]})
    return dict(zip(["broken", *CASES], figures, strict=True))


@pytest.fixture(params=CASES, ids="-".join)
def figures(request, results):
    return results[request.param] | {"transport": request.param[0], "model": request.param[1], "layout": request.param[2]}


def test_greedy_log_probs_and_every_checksum_are_the_trainers(figures, engines):
    assert figures["difference"] <= TOLERANCE
    ranks = sum(engine.gpus for engine in engines) if figures["model"] == "untied" else 2
    assert figures["equal"] == ranks * (3 + 2 * 8 - (figures["model"] == "tied"))


def test_each_stage_sends_its_own_tensors(figures):
    by_stages = figures["transport"] == "distributed" and figures["layout"] == "pp2"
    assert figures["holders"] == ([0, 1] if by_stages else [0])
    assert [bool(count) for count in figures["planned"]] == [True, by_stages]
    assert figures["buckets"] == sum(figures["planned"])


def test_an_engine_that_refuses_what_the_second_stage_sends_is_heard_on_all_ranks(results):
    first, second = results["broken"]["failures"]
    assert first == second
    for engine in ("one-0", "two-0"):
        assert f"{engine} /update_weights_from_distributed: 400" in first
    assert "torch.Size([65])" in first


def test_the_push_event_has_every_phase(figures):
    phases = ("gather", "convert", "wire", "load", "pause")
    assert {f"seconds_{phase}" for phase in phases} < figures.keys()
    assert figures["calls"] > 0
    assert figures["seconds_pause"] <= figures["seconds"]


@pytest.fixture
def pushed(results, run, rig, context, settings):
    """Push the rig's model, multiplied, to the engines of a run that looks live, and ask `slime-hpc weights verify` of it."""
    roles = tuple(make_role(engine.role.removesuffix("-0"), "engines") for engine in rig.engines)
    plan = JobPlan(name="test", scheduler="local", accelerator="cpu", num_nodes=1, roles=roles)
    write_atomic(run.experiment, to_toml(context.experiment))
    write_atomic(run.topology, to_toml(context.topology))
    write_atomic(run.plan, json.dumps(plan.to_json()))
    for engine in rig.engines:
        publish(run.endpoint(0, engine.role), engine)

    def push(version, scale=1.0, to=rig.engines):
        transport = DistributedTransport(context, settings)
        transport.connect(to)
        transport.push(version, rig.tensors(scale))
        transport.close()
        command = [sys.executable, "-m", "slime_hpc.cli.main", "weights", "verify", run.path, "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=600)

    return push


def test_verify_compares_a_live_run_with_its_checkpoint(pushed, engines):
    saved = 100 + CASES.index(SAVED)
    result = pushed(saved)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["engines"], found["version"], found["equal_parameters"]) == (["one-0", "two-0"], saved, 3 * 19)
    assert found["logprob_abs_diff_max"] <= TOLERANCE
    result = pushed(saved, 1.01)
    assert result.returncode == 1
    assert "one-0 does not hold the weights of the trainer's step" in result.stderr
    assert "of its rank 0 has checksum" in result.stderr


def test_verify_compares_engines_with_one_another_where_there_is_no_checkpoint(pushed, engines):
    result = pushed(900)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"engines": ["one-0", "two-0"], "version": 900, "checkpoint": False}
    result = pushed(901, to=engines[1:])
    assert result.returncode == 1
    assert "two-0 holds version 901, but one-0 version 900" in result.stderr
