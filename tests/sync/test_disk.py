import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from slime_hpc.errors import WeightPushError
from slime_hpc.sync.checkpoint_folder import CheckpointFolder
from slime_hpc.sync.disk import DiskTransport
from slime_hpc.testing.fake_engine import start_fake_engine
from slime_hpc.testing.transport_contract import TransportContract


@pytest.fixture
def transport(context, settings):
    transport = DiskTransport(context, settings)
    yield transport
    transport.close()


class TestDisk(TransportContract):
    """The contract, through a folder."""

    def test_the_folder_is_a_whole_checkpoint_and_the_only_one(self, transport, rig, run):
        transport.connect(rig.engines)
        transport.push(61, rig.tensors())
        report = transport.push(62, rig.tensors(1.02))
        assert [path.name for path in run.weights.iterdir()] == ["v62"]
        loaded = AutoModelForCausalLM.from_pretrained(run.weights / "v62", dtype=torch.float32).state_dict()
        assert loaded.keys() == dict(rig.tensors()).keys()
        for name, tensor in rig.tensors(1.02):
            assert torch.equal(loaded[name], tensor)
        index = json.loads((run.weights / "v62" / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == report.num_bytes
        assert set(index["weight_map"]) == loaded.keys()


def test_shards_follow_the_bucket_size(transport, run):
    tensors = [(f"layer.{i}", torch.full((10, 1000), float(i))) for i in range(8)]
    with start_fake_engine(run, name="disk") as engine:
        transport.connect([engine])
        # The fake engine has no /update_weights_from_disk: the push fails after the folder is in place.
        with pytest.raises(WeightPushError, match="disk-0 /update_weights_from_disk: 404"):
            transport.push(81, tensors)
    folder = run.weights / "v81"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) == 4
    for name, tensor in tensors:
        assert torch.equal(load_file(folder / index["weight_map"][name])[name], tensor)


def test_an_engine_that_is_gone_fails_connect(transport, run):
    with start_fake_engine(run, name="gone") as engine:
        pass
    with pytest.raises(WeightPushError, match="gone-0 /model_info: no answer"):
        transport.connect([engine])


def test_a_shard_that_cannot_be_written_is_named(tmp_path):
    folder = CheckpointFolder(tmp_path / "v1")
    with pytest.raises(WeightPushError, match=r"The weights cannot be written: .*No such file") as caught:
        folder.write([("a", torch.ones(3))])
    assert "model-00001.safetensors" in caught.value.where
