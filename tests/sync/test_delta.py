import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from slime_hpc.config.schema import Delta, Sync
from slime_hpc.errors import WeightPushError
from slime_hpc.sync.delta.agent import Agent, beside, copy_folder, read_report
from slime_hpc.sync.delta.local_copy import LocalCopy
from slime_hpc.sync.delta.transport import DeltaTransport
from slime_hpc.testing.engines import make_context, make_role
from slime_hpc.testing.fake_engine import start_fake_engine
from slime_hpc.testing.transport_contract import TOLERANCE, TransportContract


@contextlib.contextmanager
def agents(context, local, *names):
    """The agents beside engines of these names, which share one node."""
    stop = threading.Event()
    copies = [LocalCopy(copy_folder(context.run, str(local)), context.run.weights, threads=2) for _ in names]
    each = [Agent(context.run, context.attempt, name, copy) for name, copy in zip(names, copies, strict=True)]
    threads = [threading.Thread(target=agent.follow, args=(stop,)) for agent in each]
    for thread in threads:
        thread.start()
    try:
        yield copies
    finally:
        stop.set()
        for thread, agent, copy in zip(threads, each, copies, strict=True):
            thread.join()
            agent.leave()
            copy.close()


@pytest.fixture
def node(context, rig, tmp_path):
    with agents(context, tmp_path / "local", *(engine.role for engine in rig.engines)) as copies:
        yield copies[0]


@pytest.fixture
def delta_settings():
    return Sync(timeout_s=60.0, bucket_mib=1, transport="delta", delta=Delta(full_interval=3))


@pytest.fixture
def transport(context, delta_settings):
    transport = DeltaTransport(context, delta_settings)
    yield transport
    transport.close()


def whole(copy):
    """The model that a copy holds."""
    return AutoModelForCausalLM.from_pretrained(copy.model, dtype=torch.float32).state_dict()


@pytest.mark.usefixtures("node")
class TestDelta(TransportContract):
    """The contract, through files and an agent beside each engine."""

    def test_deltas_end_where_a_full_push_does_and_old_versions_go(self, transport, rig, run, node):
        transport.connect(rig.engines)
        scales = [1.0, 1.0, 1.001, 1.001, 1.1, 1.2]
        reports = [transport.push(60 + number, rig.tensors(scale)) for number, scale in enumerate(scales)]
        assert [path.name for path in sorted(run.weights.iterdir())] == ["v63", "v64", "v65"]
        assert [bool(list((run.weights / f"v{number}").glob("*.safetensors"))) for number in (63, 64, 65)] == [True, False, False]
        found = whole(node)
        for name, tensor in rig.tensors(1.2):
            assert torch.equal(found[name], tensor)
        rig.load(1.2)
        assert rig.difference(65) <= TOLERANCE
        assert reports[1].phases["bytes_wire"] == 0
        assert 0 < reports[2].phases["bytes_wire"] < reports[2].num_bytes == reports[0].phases["bytes_wire"]
        for report in reports:
            phases = {name: report.figures()[f"seconds_{name}"] for name in ("encode", "write", "apply", "load", "pause")}
            assert all(seconds >= 0 for seconds in phases.values())
            assert phases["load"] <= phases["pause"]
            assert sum(phases.values()) - phases["load"] <= report.total_s

    def test_a_failed_delta_is_told_and_the_next_push_is_full(self, transport, rig, run, node):
        transport.connect(rig.engines)
        transport.push(71, rig.tensors())
        manifest = run.weights / "v71" / "manifest.json"
        manifest.unlink()
        node.model.with_name("state.json").unlink()
        with pytest.raises(WeightPushError, match=r"Version 71 of the weights is missing") as caught:
            transport.push(72, rig.tensors(1.1))
        assert "manifest.json" in caught.value.where
        # What failed was before the pause: the engines still answer, with the weights they had.
        assert {rig.ask(engine)["meta_info"]["weight_version"] for engine in rig.engines} == {"71"}
        report = transport.push(73, rig.tensors(1.1))
        assert report.phases["bytes_wire"] == report.num_bytes
        rig.load(1.1)
        assert rig.difference(73) <= TOLERANCE

    def test_a_node_that_joins_late_catches_up(self, transport, rig, context, tmp_path):
        transport.connect(rig.engines)
        for number, scale in enumerate((1.0, 1.1, 1.2)):
            transport.push(80 + number, rig.tensors(scale))
        late = LocalCopy(tmp_path / "late", context.run.weights, threads=1)
        agent = Agent(context.run, context.attempt, "late-0", late)
        agent.look()
        report = read_report(context.run, context.attempt, "late-0")
        assert report.error == ""
        assert report.link.version == 82
        found = whole(late)
        for name, tensor in rig.tensors(1.2):
            assert torch.equal(found[name], tensor)
        late.close()


def small_tensors(value=0.0):
    torch.manual_seed(0)
    return [(f"layer.{i}", torch.randn(100, 1000).bfloat16() + value * (i == 3)) for i in range(4)]


def test_one_node_s_error_ends_the_push_though_another_says_nothing(context, fake, friend, tmp_path):
    transport = DeltaTransport(context, Sync(timeout_s=60.0))
    with agents(context, tmp_path / "local", "fake-0"):
        Agent(context.run, context.attempt, "friend-0", LocalCopy(tmp_path / "silent", context.run.weights, threads=1))
        transport.connect([fake, friend])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(WeightPushError, match="fake-0 cannot apply the weights"):
            patch.setattr(os, "sendfile", no_space_in(tmp_path, os.sendfile))
            transport.push(1, small_tensors())


@pytest.fixture(scope="module")
def friend(run):
    with start_fake_engine(run, name="friend") as engine:
        yield engine


@pytest.fixture(scope="module")
def fake(run):
    with start_fake_engine(run, name="fake") as engine:
        yield engine


def test_an_engine_without_an_agent_fails_connect_in_time(context, fake):
    transport = DeltaTransport(context, Sync(timeout_s=1.0))
    with pytest.raises(WeightPushError, match="The agent beside fake-0 has not said in time"):
        transport.connect([fake])


def test_an_agent_that_has_died_fails_the_push_in_time(context, fake, tmp_path):
    transport = DeltaTransport(context, Sync(timeout_s=2.0))
    with agents(context, tmp_path, "fake-0"):
        transport.connect([fake])
    with pytest.raises(WeightPushError, match="The agent beside fake-0 has not said in time"):
        transport.push(1, small_tensors())


def no_space_in(folder, call):
    """A system call on an open file that fails where the file lies in `folder`."""

    def fails(file, *arguments):
        if Path(f"/proc/self/fd/{file}").readlink().is_relative_to(folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(file, *arguments)

    return fails


def test_a_full_disk_of_a_node_is_told_and_the_next_push_succeeds(context, fake, tmp_path):
    transport = DeltaTransport(context, Sync(timeout_s=20.0))
    with agents(context, tmp_path, "fake-0") as (copy,):
        transport.connect([fake])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(WeightPushError, match="fake-0 cannot apply the weights: No space left"):
            # What shutil.copyfile copies with.
            patch.setattr(os, "sendfile", no_space_in(tmp_path, os.sendfile))
            transport.push(1, small_tensors())
        assert copy.held() is None
        # The fake engine has no /update_weights_from_disk: that it is asked means that its node holds the version.
        with pytest.raises(WeightPushError, match="fake-0 /update_weights_from_disk: 404"):
            transport.push(2, small_tensors())
        assert copy.held().version == 2


def test_a_full_disk_of_the_run_is_told_and_the_next_push_succeeds(context, fake, tmp_path):
    transport = DeltaTransport(context, Sync(timeout_s=20.0))
    with agents(context, tmp_path, "fake-0") as (copy,):
        transport.connect([fake])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(WeightPushError, match="No space left"):
            # Where file systems that allocate late say it.
            patch.setattr(os, "fsync", no_space_in(context.run.weights, os.fsync))
            transport.push(1, small_tensors())
        with pytest.raises(WeightPushError, match="fake-0 /update_weights_from_disk: 404"):
            transport.push(2, small_tensors())
        assert copy.held().version == 2


def test_the_agent_runs_beside_an_engine_where_the_transport_asks_for_one(run, tmp_path):
    sync = {"transport": "delta", "delta": {"local": str(tmp_path)}}
    context = make_context(run, make_role("engines", "engines"), model={"path": "m"}, sync=sync)
    with beside(context, "engines-7"):
        report = read_report(run, 0, "engines-7")
        assert report.link is None
        assert report.model == str(copy_folder(run, str(tmp_path)) / "model")
        assert (tmp_path / copy_folder(run, str(tmp_path)).name).stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
    with beside(make_context(run, make_role("engines", "engines"), model={"path": "m"}), "engines-8"):
        assert read_report(run, 0, "engines-8") is None


def test_a_copy_is_each_user_s_own(run, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert "slime-hpc-4711-" in copy_folder(run, "").name
