import dataclasses
import errno
import fcntl
import hashlib
import multiprocessing
import os
import time

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_hpc.data.collate import collate
from slime_hpc.errors import DataError
from slime_hpc.store import hdf5
from slime_hpc.testing.samples import make_sample
from slime_hpc.testing.strategies import samples

OTHERS = ("step", "weight_version", "routes_TLK")
ARRAYS = [field.name for field in dataclasses.fields(collate([], step=1, weight_version=0)) if field.name not in OTHERS]


def same(first, second):
    assert (first.step, first.weight_version) == (second.step, second.weight_version)
    for name in ARRAYS:
        a, b = getattr(first, name), getattr(second, name)
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes(), name


@pytest.fixture
def batch():
    made = [make_sample(group=i // 2, index=i % 2, prompt=1 + i % 4, response=i % 3, text="é" * i) for i in range(10)]
    return collate(made, step=7, weight_version=6)


@pytest.fixture
def sealed(tmp_path, batch):
    path = tmp_path / "batches" / "step_00000007.h5"
    hdf5.seal(path, batch)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("batches")


@given(given_samples=samples())
def test_a_batch_comes_back_bit_for_bit(folder, given_samples):
    batch = collate(given_samples, step=3, weight_version=2)
    hdf5.seal(folder / "b.h5", batch)
    same(hdf5.read(folder / "b.h5"), batch)
    lengths, groups = hdf5.read_lengths(folder / "b.h5")
    assert lengths.tolist() == batch.token_lengths_N.tolist() and groups.tolist() == batch.group_N.tolist()


@given(given_samples=samples(), data=st.data())
def test_some_rows_are_those_rows(folder, given_samples, data):
    hdf5.seal(folder / "rows.h5", collate(given_samples, step=3, weight_version=2))
    rows = data.draw(st.lists(st.integers(0, len(given_samples) - 1), max_size=15)) if given_samples else []
    same(hdf5.read_rows(folder / "rows.h5", np.array(rows, np.int64)), collate([given_samples[i] for i in rows], step=3, weight_version=2))


def test_routes_are_kept_where_there_are_any(tmp_path):
    random = np.random.default_rng(1)
    made = [make_sample(group=i, prompt=1 + i, response=2 * i) for i in range(5)]
    lengths = [len(s.prompt_tokens_P) + len(s.response_tokens_R) for s in made]
    routed = [
        dataclasses.replace(s, routes_TLK=random.integers(0, 128, (length - 1, 3, 2)).astype(np.int16))
        for s, length in zip(made, lengths, strict=True)
    ]
    hdf5.seal(tmp_path / "routed.h5", collate(routed, step=1, weight_version=0))
    hdf5.seal(tmp_path / "plain.h5", collate(made, step=1, weight_version=0))
    assert hdf5.read(tmp_path / "plain.h5").routes_TLK is None
    batch = hdf5.read_rows(tmp_path / "routed.h5", np.array([3, 1]))
    assert batch.routes_TLK.dtype == np.int16
    for position, i in enumerate((3, 1)):
        own = batch.routes_TLK[batch.token_offsets[position] : batch.token_offsets[position + 1]]
        np.testing.assert_array_equal(own[:-1], routed[i].routes_TLK)
        assert (own[-1] == -1).all()


def test_a_rank_reads_its_rows_and_not_its_neighbours(sealed, batch, monkeypatch):
    """Of a flat field only the bytes of the asked samples are read."""
    read = {}
    original = h5py.Dataset.__getitem__

    def counting(self, key):
        values = original(self, key)
        read[self.name] = read.get(self.name, 0) + values.size
        return values

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counting)
    rows = np.array([2, 3, 8])
    hdf5.read_rows(sealed, rows)
    assert read["/tokens_T"] == batch.token_lengths_N[rows].sum() < len(batch.tokens_T)
    assert read["/logprobs_R"] == batch.response_lengths_N[rows].sum() < len(batch.logprobs_R)


def test_the_layout_is_flat(sealed, batch):
    """One dataset a field, contiguous, of plain types, without groups: what other programs can read without this one."""
    with h5py.File(sealed, "r") as file:
        assert sorted(file) == sorted(ARRAYS)
        for name in ARRAYS:
            assert file[name].dtype == getattr(batch, name).dtype and file[name].chunks is None and file[name].compression is None
        assert dict(file.attrs) == {"schema_version": 1, "step": 7, "weight_version": 6, "complete": True}


def test_the_report_says_what_lies_there(tmp_path, batch):
    path = tmp_path / "b.h5"
    report = hdf5.seal(path, batch)
    content = path.read_bytes()
    assert (report.num_bytes, report.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert path.stat().st_mode & 0o777 == 0o600
    hdf5.verify(path, report.sha256)


def test_one_changed_bit_is_found(tmp_path, batch):
    path = tmp_path / "b.h5"
    report = hdf5.seal(path, batch)
    content = bytearray(path.read_bytes())
    content[content.index(batch.logprobs_R.tobytes())] ^= 1
    path.write_bytes(content)
    hdf5.read(path)  # HDF5 itself does not notice
    with pytest.raises(DataError, match="when it was sealed it had") as caught:
        hdf5.verify(path, report.sha256)
    assert caught.value.where == str(path) and "generated again" in caught.value.fix
    with pytest.raises(DataError, match="There is no batch"):
        hdf5.verify(tmp_path / "none.h5", report.sha256)


def test_a_file_cut_anywhere_is_refused(sealed):
    content = sealed.read_bytes()
    for length in sorted({*range(0, len(content), len(content) // 97), len(content) - 1}):
        sealed.write_bytes(content[:length])
        for read in (hdf5.read, hdf5.read_lengths, lambda path: hdf5.read_rows(path, np.array([0]))):
            with pytest.raises(DataError, match="not a whole HDF5 file") as caught:
                read(sealed)
        assert caught.value.where == str(sealed) and caught.value.fix


@given(place=st.floats(0, 1), garbage=st.binary(min_size=1, max_size=64))
def test_a_damaged_file_is_read_or_refused_but_never_crashes(folder, place, garbage):
    path = folder / "damaged.h5"
    hdf5.seal(path, collate([make_sample(group=i) for i in range(5)], step=1, weight_version=0))
    content = bytearray(path.read_bytes())
    start = int(place * (len(content) - len(garbage)))
    content[start : start + len(garbage)] = garbage
    path.write_bytes(content)
    try:
        hdf5.read(path)
        hdf5.read_rows(path, np.array([0, 3]))
    except DataError as error:
        assert error.where and error.fix


def test_files_that_are_no_batch(tmp_path, sealed):
    with pytest.raises(DataError, match="There is no batch"):
        hdf5.read(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(DataError, match="not a whole HDF5 file"):
        hdf5.read(tmp_path / "text.h5")
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(DataError, match=r"no sealed batch of schema 1 \(it says None\)"):
        hdf5.read(tmp_path / "foreign.h5")
    with h5py.File(sealed, "r+") as file:
        file.attrs["schema_version"] = 2
    with pytest.raises(DataError, match="it says 2"):
        hdf5.read(sealed)
    with h5py.File(sealed, "r+") as file:
        file.attrs["schema_version"] = 1
        del file["reward_N"]
    with pytest.raises(DataError, match="reward_N"):
        hdf5.read(sealed)


def fail(times, code):
    """os.fsync that fails so many times with an error of the file system."""
    original, left = os.fsync, [times]

    def fsync(descriptor):
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        original(descriptor)

    return fsync


def test_an_error_publishes_nothing_and_leaves_nothing(tmp_path, batch, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail(1, errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        hdf5.seal(tmp_path / "b.h5", batch)
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_the_older_file(sealed, batch, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail(99, errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        hdf5.seal(sealed, dataclasses.replace(batch, step=8))
    assert [path.name for path in sealed.parent.iterdir()] == [sealed.name]
    same(hdf5.read(sealed), batch)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_passing_error_of_a_network_file_system_costs_no_batch(tmp_path, batch, monkeypatch, code):
    monkeypatch.setattr(os, "fsync", fail(2, code))
    hdf5.seal(tmp_path / "b.h5", batch)
    same(hdf5.read(tmp_path / "b.h5"), batch)
    assert [path.name for path in tmp_path.iterdir()] == ["b.h5"]


def test_no_file_lock_is_asked_for(sealed, batch, monkeypatch):
    """Many Lustre and NFS mounts have none: HDF5 then fails when it asks. Here another process holds one, which would fail it too."""
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "TRUE")
    with sealed.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            h5py.File(sealed, "r", locking=True)
        same(hdf5.read(sealed), batch)


def write_for_ever(folder, samples):
    for step in range(1, 10**6):
        hdf5.seal(folder / f"step_{step % 3}.h5", collate(samples, step=step, weight_version=step - 1))


def test_a_killed_writer_leaves_whole_files_only(tmp_path):
    """Every state in which a kill can leave the folder, tried at a hundred moments."""
    samples = [make_sample(group=i, response=3000) for i in range(30)]
    killed_while_writing = 0
    for trial in range(100):
        writer = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(tmp_path, samples))
        writer.start()
        time.sleep(0.01 + trial % 10 * 0.003)
        writer.kill()
        writer.join()
        for path in tmp_path.glob("step_*.h5"):
            batch = hdf5.read(path)
            assert batch.num_samples == 30 and batch.tokens_T.size == 30 * 3003
        killed_while_writing += any(path.name.startswith(".") for path in tmp_path.iterdir())
    assert killed_while_writing, "no writer was killed in the middle of a file: the test shows nothing"
    for step in range(3):
        hdf5.seal(tmp_path / f"step_{step}.h5", collate([make_sample()], step=1, weight_version=0))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_{step}.h5" for step in range(3)]
