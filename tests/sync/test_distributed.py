import dataclasses
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
import torch

from slime_hpc.config.schema import Sync
from slime_hpc.errors import WeightPushError
from slime_hpc.sync.buckets import TensorSpec, plan
from slime_hpc.sync.distributed import DistributedTransport
from slime_hpc.testing.engines import make_context, make_role
from slime_hpc.testing.fake_engine import ERROR_TEXT, Behaviour, behave, received, start_fake_engine
from slime_hpc.testing.transport_contract import TOLERANCE, TransportContract

TIMEOUT_S = 12.0


@pytest.fixture
def transport(context, settings):
    transport = DistributedTransport(context, settings)
    yield transport
    transport.close()


class TestDistributed(TransportContract):
    """The contract, through gloo, to an engine of one rank and one of two."""

    def test_an_engine_that_refuses_a_tensor_says_so(self, transport, rig):
        transport.connect(rig.engines)
        tensors = dict(rig.tensors()) | {"model.norm.weight": torch.ones(65)}
        with pytest.raises(WeightPushError) as caught:
            transport.push(61, tensors.items())
        for engine in rig.engines:
            assert f"{engine.role} /update_weights_from_distributed: 400" in caught.value.what
        assert "torch.Size([65])" in caught.value.what
        with pytest.raises(WeightPushError, match="connect"):
            transport.push(61, rig.tensors())
        transport.connect(rig.engines)
        with pytest.raises(WeightPushError, match="holds weight version 'incomplete-61', not '61'"):
            rig.difference(61)
        transport.push(62, rig.tensors())
        assert rig.difference(62) <= TOLERANCE

    def test_ranks_without_tensors_take_part(self, run, rig, pushed_model, tmp_path):
        """Two trainer ranks: rank 0 sends, rank 1 runs through the iterable; both report the same difference, and both see an error."""
        script = Path(__file__).with_name("two_ranks.py")
        engines = [f"{engine.role},{engine.port},{engine.gpus}" for engine in rig.engines]
        environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29_500 + os.getpid() % 400), "WORLD_SIZE": "2"}
        ranks = [
            subprocess.Popen(
                [sys.executable, script, run.path, pushed_model, *engines],
                env=environment | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
        lines = [[line for line in output.splitlines() if line.startswith("RESULT")] for output in outputs]
        assert lines[0] == lines[1]
        assert float(lines[0][0].split()[1]) <= TOLERANCE
        assert "torch.Size([65])" in lines[0][1]


def small_tensors():
    torch.manual_seed(0)
    return [(f"layer.{i}", torch.randn(100, 1000)) for i in range(8)]


@pytest.fixture(scope="module")
def fakes(run):
    """Two fake engines, to be told how to behave; each imports torch when it joins its first group, which takes its time."""
    transport = DistributedTransport(make_context(run, make_role("trainer", "trainer"), model={"path": "none"}), Sync(timeout_s=60.0))
    with start_fake_engine(run, name="good") as good, start_fake_engine(run, name="bad") as bad:
        transport.connect([good, bad])
        transport.close()
        yield good, bad


@pytest.fixture
def fake(fakes, context):
    return lambda **behaviour: behaves(fakes[1], context, **behaviour)


def behaves(engine, context, **behaviour):
    behave(engine, context.token, Behaviour(**behaviour))
    return engine


def push_to(context, *engines, version=5, timeout_s=TIMEOUT_S):
    transport = DistributedTransport(context, Sync(timeout_s=timeout_s, bucket_mib=1))
    transport.connect(engines)
    try:
        return transport.push(version, small_tensors())
    finally:
        transport.close()


@pytest.mark.parametrize("sessions", [False, True])
def test_both_protocols_deliver_every_byte(context, fake, sessions):
    engine = fake(sessions=sessions)
    report = push_to(context, engine)
    got = received(engine, context.token)
    assert got["digests"] == {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in small_tensors()}
    assert not got["paused"]
    assert not got["session"]
    assert got["flushes"] == 1
    assert report.num_buckets == len(plan([TensorSpec.of(name, tensor) for name, tensor in small_tensors()], 2**20)) == 4


def test_a_session_that_was_left_open_is_closed_first(context, fake):
    engine = fake(sessions=True)
    requests.post(f"{engine.url}/begin_weight_update", json={}, headers={"Authorization": f"Bearer {context.token}"}, timeout=10)
    push_to(context, engine)
    assert not received(engine, context.token)["session"]


@pytest.mark.parametrize("failure", ["refuse", "refuse_late", "error"])
@pytest.mark.parametrize("fail_at", [0, 2])
def test_a_failing_engine_ends_the_push_with_its_own_words(context, fake, failure, fail_at):
    engine = fake(failure=failure, fail_at=fail_at)
    start = time.monotonic()
    with pytest.raises(WeightPushError, match=ERROR_TEXT) as caught:
        push_to(context, engine)
    assert time.monotonic() - start < TIMEOUT_S + 30
    assert engine.role in caught.value.where
    headers = {"Authorization": f"Bearer {context.token}"}
    assert requests.get(f"{engine.url}/model_info", headers=headers, timeout=10).json()["weight_version"] == "incomplete-5"


def test_one_failing_engine_does_not_hold_the_others(context, fakes, fake):
    good, bad = behaves(fakes[0], context), fake(failure="refuse", fail_at=1)
    with pytest.raises(WeightPushError, match=ERROR_TEXT) as caught:
        push_to(context, good, bad)
    assert "bad-0" in caught.value.where
    push_to(context, good, version=6)
    assert len(received(good, context.token)["digests"]) == 8


def test_an_engine_that_does_not_join_fails_connect_at_once(context, fakes):
    good = behaves(fakes[0], context)
    transport = DistributedTransport(context, Sync(timeout_s=60.0))
    start = time.monotonic()
    with pytest.raises(WeightPushError, match="gone-0 /init_weights_update_group: no answer"):
        transport.connect([good, dataclasses.replace(good, role="gone-0", port=1)])
    assert time.monotonic() - start < 30
    transport.close()


def test_an_engine_that_hangs_ends_the_push_at_its_timeout(context, run):
    with start_fake_engine(run, behaviour=Behaviour(failure="hang", fail_at=1)) as engine:
        start = time.monotonic()
        with pytest.raises(WeightPushError, match="broadcast of weights"):
            push_to(context, engine, timeout_s=TIMEOUT_S)
        assert time.monotonic() - start < 60


def test_an_engine_that_dies_ends_the_push(context, run):
    died = pytest.raises(WeightPushError, match="fake-0 /update_weights_from_distributed: no answer")
    with start_fake_engine(run, behaviour=Behaviour(failure="die", fail_at=1)) as engine, died:
        push_to(context, engine, timeout_s=120.0)
