"""Versions through files, without engines: written, applied, damaged."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_hpc.errors import DeltaError
from slime_hpc.sync.delta import chain
from slime_hpc.sync.delta.chain import Link, Manifest, TensorRecord
from slime_hpc.sync.delta.chunks import CHUNK_BYTES
from slime_hpc.sync.delta.encoding import ENCODINGS
from slime_hpc.sync.delta.local_copy import LocalCopy
from tests.sync.delta_versions import Publisher, change, first_tensors, loaded, same


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "x"}')
    (folder / "model.safetensors").write_text("weights of another time")
    return folder


@pytest.fixture
def publisher(tmp_path, model):
    return Publisher(tmp_path / "weights", model)


@pytest.fixture
def new_copy(tmp_path):
    """Makes copies, as nodes would."""
    copies = []

    def make(name="node"):
        copies.append(LocalCopy(tmp_path / name, tmp_path / "weights", threads=2))
        return copies[-1]

    yield make
    for copy in copies:
        copy.close()


def generations(count, density=0.02, seed=0):
    """`count` states of the tensors, each after a small change of the one before."""
    generator = torch.Generator().manual_seed(seed)
    states = [first_tensors()]
    while len(states) < count:
        states.append(change(states[-1], generator, density))
    return states


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_hundred_deltas_end_where_a_full_version_does(tmp_path, model, new_copy, encoding):
    publisher, copy, late = Publisher(tmp_path / "weights", model, encoding=encoding), new_copy(), new_copy("late")
    generator = torch.Generator().manual_seed(1)
    tensors = first_tensors()
    for number in range(101):
        copy.catch_up(publisher.publish(tensors))
        if number % 25 == 0:
            assert same(loaded(copy), tensors)
        last, tensors = tensors, change(tensors, generator, (0.0, 0.001, 0.02, 1.0)[number % 4])
    assert same(loaded(copy), last)
    late.catch_up(publisher.links[-1])
    assert same(loaded(late), last)
    full = new_copy("full")
    full.catch_up(publisher.publish(last, full=True))
    assert same(loaded(full), loaded(copy))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=st.lists(st.tuples(st.sampled_from(["full", "delta"]), st.sampled_from([0.0, 0.001, 0.3]), st.booleans()), max_size=6))
def test_whatever_is_published_and_whenever_a_node_looks_it_ends_at_the_head(tmp_path_factory, model, plan):
    folder = tmp_path_factory.mktemp("chain")
    publisher, copy = Publisher(folder / "weights", model), LocalCopy(folder / "node", folder / "weights", threads=2)
    generator = torch.Generator().manual_seed(len(plan))
    tensors = first_tensors()
    publisher.publish(tensors)
    for kind, density, looks in plan:
        tensors = change(tensors, generator, density)
        publisher.publish(tensors, full=kind == "full")
        if looks:
            copy.catch_up(publisher.links[-1])
            assert same(loaded(copy), tensors)
    copy.catch_up(publisher.links[-1])
    assert same(loaded(copy), tensors)
    copy.close()


def test_a_tensor_of_several_chunks(publisher, new_copy):
    copy = new_copy()
    big = torch.randn(2 * CHUNK_BYTES // 4 + 5).bfloat16().repeat(2)
    copy.catch_up(publisher.publish({"big": big}))
    changed = big.clone()
    changed[[0, CHUNK_BYTES // 2 - 1, CHUNK_BYTES // 2, -1]] += 1
    copy.catch_up(publisher.publish({"big": changed}))
    assert same(loaded(copy), {"big": changed})
    assert json.loads(manifest_path(publisher, 1).read_text())["tensors"]["big"]["lengths"][2] > 0


def test_a_late_node_needs_the_newest_full_version_and_what_follows(publisher, new_copy):
    states = generations(5)
    for number, tensors in enumerate(states):
        publisher.publish(tensors, full=number == 2)
    for number in (0, 1):
        (publisher.weights / f"v{number}").rename(publisher.weights.with_name(f"gone{number}"))
    late = new_copy()
    late.catch_up(publisher.links[-1])
    assert same(loaded(late), states[-1])
    assert {file.name for file in late.model.iterdir()} >= {"config.json", "model.safetensors.index.json"}


def test_a_node_that_follows_reads_the_deltas_alone(publisher, new_copy):
    states = generations(3)
    copy = new_copy()
    copy.catch_up(publisher.publish(states[0]))
    before = copy.num_bytes
    for tensors in states[1:]:
        copy.catch_up(publisher.publish(tensors))
    sizes = [file.stat().st_size for number in (1, 2) for file in (publisher.weights / f"v{number}").glob("*.bin")]
    assert copy.num_bytes - before == sum(sizes)
    copy.catch_up(publisher.links[-1])
    assert copy.num_bytes - before == sum(sizes)
    assert same(loaded(copy), states[-1])


def manifest_path(publisher, number):
    return publisher.weights / f"v{number}" / "manifest.json"


def largest_delta(publisher, number):
    return max((publisher.weights / f"v{number}").glob("*.bin"), key=lambda file: file.stat().st_size)


def truncate(publisher):
    file = largest_delta(publisher, 2)
    os.truncate(file, file.stat().st_size - 7)


def flip(publisher):
    data = bytearray(largest_delta(publisher, 2).read_bytes())
    data[len(data) // 2] ^= 255
    largest_delta(publisher, 2).write_bytes(data)


def checksum(publisher):
    value = json.loads(manifest_path(publisher, 2).read_text())
    name = next(iter(value["tensors"]))
    value["tensors"][name]["checksum"] = "0" * 32
    manifest_path(publisher, 2).write_text(json.dumps(value))


def another_base(publisher):
    value = json.loads(manifest_path(publisher, 2).read_text())
    value["base"]["id"] = "other"
    manifest_path(publisher, 2).write_text(json.dumps(value))


def swap(publisher):
    folder = publisher.weights
    (folder / "v1").rename(folder / "x")
    (folder / "v2").rename(folder / "v1")
    (folder / "x").rename(folder / "v2")


DAMAGES = {
    "truncated": (truncate, r"A file of version 2 of the weights has \d+ bytes instead of \d+"),
    "file missing": (lambda publisher: largest_delta(publisher, 2).unlink(), "A file of version 2 of the weights is missing"),
    "manifest missing": (lambda publisher: manifest_path(publisher, 2).unlink(), "Version 2 of the weights is missing"),
    "manifest damaged": (lambda publisher: os.truncate(manifest_path(publisher, 2), 100), "A manifest of weights is damaged"),
    "folder missing": (lambda publisher: (publisher.weights / "v1").rename(publisher.weights / "y"), "Version 1 of the weights is missing"),
    "another base": (another_base, "Version 1 of the weights is publication .*, not other, which version 2 follows"),
    "out of order": (swap, "Version 2 of the weights is publication .* of version 1, not .*, which is asked for"),
    "bits flipped": (flip, "damaged|checksum|reaches to"),
    "checksum": (checksum, "The checksum of .* is .*; its version says 0000"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("late", [False, True], ids=["following", "late"])
def test_damage_is_told_and_the_next_full_version_heals(publisher, new_copy, damage, late):
    states = generations(4)
    copy = new_copy()
    for number, tensors in enumerate(states[:3]):
        link = publisher.publish(tensors)
        if number == 0 and not late:
            copy.catch_up(link)
    harm, words = DAMAGES[damage]
    harm(publisher)
    with pytest.raises(DeltaError, match=words):
        copy.catch_up(publisher.links[-1])
    if copy.held() is not None:
        assert same(loaded(copy), states[copy.held().version])
    copy.catch_up(publisher.publish(states[3], full=True))
    assert same(loaded(copy), states[3])


def test_a_copy_that_was_changed_behind_its_back_is_made_anew(publisher, new_copy):
    states = generations(3)
    copy = new_copy()
    copy.catch_up(publisher.publish(states[0]))
    file = max(copy.model.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    with file.open("r+b") as opened:
        opened.seek(-1000, os.SEEK_END)
        opened.write(bytes(100))
    publisher.publish(states[1])
    copy.catch_up(publisher.publish(states[2]))
    assert same(loaded(copy), states[2])


def test_a_copy_of_before_a_reboot_is_not_believed(publisher, new_copy):
    states = generations(1)
    copy = new_copy()
    copy.catch_up(publisher.publish(states[0]))
    state = copy.model.with_name("state.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), "boot": "another"}))
    assert copy.held() is None


def test_a_number_that_is_published_again_is_another_version(publisher, new_copy):
    states = generations(3)
    copy = new_copy()
    for tensors in states[:2]:
        copy.catch_up(publisher.publish(tensors))
    publisher.links.pop()
    copy.catch_up(publisher.publish(states[2], full=True))
    assert copy.held() == publisher.links[-1]
    assert same(loaded(copy), states[2])


KILLED = """
import os, sys
from pathlib import Path
import slime_hpc.sync.delta.gaps as gaps
from slime_hpc.sync.delta.chain import Link
from slime_hpc.sync.delta.local_copy import LocalCopy

whole, count = gaps.Gaps.apply, 0
def apply(self, target, blob):
    global count
    count += 1
    if count == 3:
        half = target[: len(target) // 2]
        half += 1
        print("dies", flush=True)
        os.kill(os.getpid(), 9)
    whole(self, target, blob)
gaps.Gaps.apply = apply
LocalCopy(Path(sys.argv[1]), Path(sys.argv[2]), threads=1).catch_up(Link(version=int(sys.argv[3]), id=sys.argv[4]))
"""


def test_an_agent_that_is_killed_in_the_midst_leaves_no_version_and_the_next_one_redoes_it(publisher, new_copy, tmp_path):
    states = generations(2, density=0.5)
    copy = new_copy()
    copy.catch_up(publisher.publish(states[0]))
    link = publisher.publish(states[1])
    command = [sys.executable, "-c", KILLED, copy.model.parent, publisher.weights, str(link.version), link.id]
    killed = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert "dies" in killed.stdout
    assert copy.held() is None
    assert not same(loaded(copy), states[0])
    again = new_copy()
    again.catch_up(link)
    assert same(loaded(again), states[1])
    again.catch_up(link)
    assert same(loaded(again), states[1])


def test_the_last_user_removes_the_copy(publisher, new_copy):
    publisher.publish(generations(1)[0])
    one, two = new_copy(), new_copy()
    one.catch_up(publisher.links[-1])
    one.close()
    assert two.held() == publisher.links[-1]
    two.close()
    assert not two.model.parent.exists()


def test_a_tensor_that_changes_its_size_or_does_not_come_fails_the_delta(publisher):
    tensors = first_tensors()
    publisher.publish(tensors)
    with pytest.raises(DeltaError, match=r"norm\.weight is not what it was"):
        publisher.publish(tensors | {"norm.weight": torch.ones(66).bfloat16()})
    with pytest.raises(DeltaError, match=r"counts .* did not come"):
        publisher.publish({name: tensor for name, tensor in tensors.items() if name != "counts"})


def manifest(version, base=None):
    link = Link(version=version, id=f"id{version}")
    follows = None if base is None else Link(version=base, id=f"id{base}")
    records = {"a": TensorRecord(checksum="00", itemsize=2, file="f", offset=3, lengths=(4, 0))}
    return Manifest(link=link, base=follows, encoding="gaps", files={"f": 7}, tensors=records)


def test_a_manifest_survives_as_text():
    for value in (manifest(3), manifest(4, 3)):
        assert Manifest.from_json(value.to_json()) == value


@pytest.mark.parametrize("held, expected", [(None, [2, 3, 4]), (0, [2, 3, 4]), (2, [3, 4]), (3, [4]), (4, []), (9, [2, 3, 4])])
def test_the_path_begins_at_what_is_held_or_at_the_newest_full_version(held, expected):
    versions = {0: manifest(0), 1: manifest(1, 0), 2: manifest(2), 3: manifest(3, 2), 4: manifest(4, 3)}
    link = None if held is None else Link(version=held, id=f"id{held}")
    assert [step.link.version for step in chain.path(versions[4].link, link, versions.__getitem__)] == expected


def test_a_chain_in_a_circle_is_refused():
    versions = {1: manifest(1, 2), 2: manifest(2, 1)}
    with pytest.raises(DeltaError, match="follows on itself"):
        chain.path(versions[2].link, None, versions.__getitem__)
