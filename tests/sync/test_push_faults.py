"""What a push does when an engine or the trainer fails: it ends in time with the cause, nothing serves a mixture, a later push succeeds."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
import torch

from slime_hpc.config.schema import Sync
from slime_hpc.errors import EngineError, WeightPushError
from slime_hpc.sync import audit
from slime_hpc.sync.distributed import DistributedTransport
from slime_hpc.testing.engines import make_context, make_role
from slime_hpc.testing.fake_engine import ERROR_TEXT, Behaviour, behave, received, start_fake_engine
from slime_hpc.testing.transport_contract import TOLERANCE

TIMEOUT_S = 6.0
START_S = 60.0
"""A new fake engine imports torch when it joins its first group."""
SLACK_S = 60.0
"""Of a busy machine, and of gloo, which ends an operation some time after its timeout."""


def tensors(scale=1.0, count=6, rows=100):
    torch.manual_seed(0)
    return [(f"layer.{i}.weight", torch.randn(rows, 1000) * scale) for i in range(count)]


@contextlib.contextmanager
def connected(context, *engines, **sync):
    transport = DistributedTransport(context, Sync(**{"timeout_s": TIMEOUT_S, "bucket_mib": 1} | sync))
    try:
        transport.connect(engines)
        yield transport
    finally:
        transport.close()


def version_of(engine, token):
    return requests.get(f"{engine.url}/model_info", headers={"Authorization": f"Bearer {token}"}, timeout=10).json()["weight_version"]


@pytest.fixture(scope="module")
def fakes(run):
    context = make_context(run, make_role("trainer", "trainer"), model={"path": "none"})
    with start_fake_engine(run, name="first") as first, start_fake_engine(run, name="second") as second:
        with connected(context, first, second, timeout_s=START_S):
            pass
        yield first, second


@pytest.fixture
def pair(fakes, context):
    """Two engines that do what they should, until they are told."""
    for engine in fakes:
        behave(engine, context.token, Behaviour())
    return fakes


@pytest.mark.parametrize(
    ("failure", "fail_at", "words"),
    [
        ("error", 0, "second-0 /update_weights_from_distributed: 400: " + ERROR_TEXT),
        ("crash", 1, "second-0 /update_weights_from_distributed: 500: " + ERROR_TEXT),
        ("lie", 0, "second-0 /update_weights_from_distributed: it answered that it has loaded what it was not yet sent"),
        ("lie", 1, "second-0 says that it has loaded the bucket"),
        ("hang", 1, "The broadcast of weights"),
    ],
)
def test_a_failure_ends_the_push_fences_the_engines_and_a_later_push_heals(context, pair, failure, fail_at, words):
    behave(pair[1], context.token, Behaviour(failure=failure, fail_at=fail_at))
    start = time.monotonic()
    with pytest.raises(WeightPushError) as caught, connected(context, *pair) as transport:
        transport.push(5, tensors())
    assert time.monotonic() - start < TIMEOUT_S + SLACK_S
    assert words in caught.value.what
    for engine in pair:
        assert version_of(engine, context.token) == "incomplete-5"
        assert received(engine, context.token)["paused"]
    with connected(context, *pair) as transport:
        transport.push(6, tensors(2.0))
    held = audit.look(pair, context.token)
    assert (held.version, len(held.checksums[0][0])) == (6, 6)
    assert not received(pair[1], context.token)["paused"]


def test_an_engine_that_drops_what_it_received_is_named_by_its_checksums(context, pair):
    with connected(context, *pair) as transport:
        transport.push(1, tensors())
        behave(pair[1], context.token, Behaviour(failure="drop", fail_at=0))
    with connected(context, *pair) as transport:
        transport.push(2, tensors(2.0))
        with pytest.raises(WeightPushError, match="second-0 does not hold the weights of first-0: layer"):
            audit.look(pair, context.token)
        transport.push(3, tensors(2.0))
    assert audit.look(pair, context.token).version == 3


def test_an_engine_that_is_killed_before_a_push_is_named_and_the_others_go_on(context, pair, run):
    with contextlib.ExitStack() as stack:
        gone = stack.enter_context(start_fake_engine(run, name="gone"))
        transport = stack.enter_context(connected(context, pair[0], gone, timeout_s=START_S))
        transport.push(1, tensors())
        os.kill(gone.pid, signal.SIGKILL)
        with pytest.raises(WeightPushError, match="gone-0 /pause_generation: no answer") as caught:
            transport.push(2, tensors())
    assert caught.value.where.startswith("gone-0 at")
    with pytest.raises(EngineError, match="gone-0 /model_info: no answer"):
        audit.look([pair[0], gone], context.token)
    assert version_of(pair[0], context.token) == "incomplete-2"
    with connected(context, pair[0]) as transport:
        transport.push(3, tensors())
    assert version_of(pair[0], context.token) == "3"


def test_an_engine_that_dies_during_a_push_is_named_and_replaced(context, pair, run):
    with start_fake_engine(run, name="dying", behaviour=Behaviour(failure="die", fail_at=1)) as dying:  # noqa: SIM117
        with pytest.raises(WeightPushError, match="dying-0 /update_weights_from_distributed: no answer"):
            with connected(context, pair[0], dying, timeout_s=START_S) as transport:
                transport.push(5, tensors())
    with start_fake_engine(run, name="dying") as replaced, connected(context, pair[0], replaced, timeout_s=START_S) as transport:
        transport.push(6, tensors())
        assert audit.look([pair[0], replaced], context.token).version == 6


def test_a_trainer_that_is_killed_in_mid_push_leaves_real_engines_that_serve_nothing_and_take_the_next(context, rig, run, settings):
    script = Path(__file__).with_name("dying_trainer.py")
    engines = [f"{engine.role},{engine.port},{engine.gpus}" for engine in rig.engines]
    model = context.experiment.model.path
    trainer = subprocess.run([sys.executable, script, run.path, model, *engines], capture_output=True, text=True, timeout=120)
    assert trainer.returncode == -signal.SIGKILL, trainer.stderr[-3000:]
    for engine in rig.engines:
        assert version_of(engine, rig.token) == "incomplete-80"
    with pytest.raises(WeightPushError, match=r"one-0 holds no whole version: it says 'incomplete-80'"):
        audit.look(rig.engines, rig.token)
    transport = DistributedTransport(context, settings)
    transport.connect(rig.engines)
    transport.push(81, rig.tensors())
    transport.close()
    assert rig.difference(81) <= TOLERANCE


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_engines_are_paused_as_configured(context, pair, mode):
    with connected(context, *pair, pause=mode) as transport:
        transport.push(1, tensors())
    for engine in pair:
        assert received(engine, context.token)["pause_mode"] == mode


def test_calls_grow_with_buckets_and_engines_only(context, pair):
    def push(*engines, count, rows):
        with connected(context, *engines) as transport:
            return transport.push(1, tensors(count=count, rows=rows))

    few, many = push(pair[0], count=6, rows=100), push(pair[0], count=120, rows=5)
    assert (few.num_buckets, few.num_bytes) == (3, many.num_bytes)
    assert few.num_calls - many.num_calls == few.num_buckets - many.num_buckets
    larger = push(pair[0], count=12, rows=100)
    assert larger.num_calls - few.num_calls == larger.num_buckets - few.num_buckets == 3
    assert push(*pair, count=6, rows=100).num_calls == 2 * few.num_calls


def test_quantized_engines_get_values_and_scales(context, pair):
    names = [f"model.layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")]
    weights = [(name, torch.randn(200, 130).bfloat16()) for name in names] + [("model.norm.weight", torch.ones(130).bfloat16())]
    with connected(context, *pair, quantization="fp8_block") as transport:
        report = transport.push(1, weights)
    got = received(pair[0], context.token)
    scaled = dict.fromkeys(names, "float8_e4m3fn") | {f"{name}_scale_inv": "float32" for name in names}
    assert got["dtypes"] == scaled | {"model.norm.weight": "bfloat16"}
    assert report.num_buckets == 1
    assert report.num_bytes == 3 * (200 * 130 + 4 * 4) + 130 * 2
