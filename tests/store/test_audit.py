import shutil

import pytest

from slime_hpc.run_folder import RunFolder
from slime_hpc.store.audit import State, look
from slime_hpc.testing.samples import make_sample
from slime_hpc.testing.stored_run import seal_step


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path)
    for step in range(1, 5):
        seal_step(run, step, [make_sample(group=step, index=i, reward=float(i)) for i in range(4)])
    return run


def states(run, *, checksums=True):
    return {found.step: found.state for found in look(run, checksums=checksums)}


def test_what_was_sealed_is_sealed(run):
    assert states(run) == dict.fromkeys(range(1, 5), State.SEALED)
    assert [(found.num_bytes, found.summary.samples) for found in look(run, checksums=True)] == [
        (run.batch(step).stat().st_size, 4) for step in range(1, 5)
    ]


def test_a_file_cut_short_is_torn(run):
    data = run.batch(2).read_bytes()
    for size in (0, 1, 100, len(data) // 2, len(data) - 1):
        run.batch(2).write_bytes(data[:size])
        assert states(run)[2] is State.TORN, size


def test_one_bit_that_leaves_the_file_whole_is_seen_by_the_checksum_alone(run):
    data = bytearray(run.batch(3).read_bytes())
    # The text of the last answer.
    position = data.rindex(b"yesyesyesyes")
    data[position] ^= 1
    run.batch(3).write_bytes(data)
    assert states(run, checksums=False)[3] is State.SEALED
    assert states(run) == {1: State.SEALED, 2: State.SEALED, 3: State.CHANGED, 4: State.SEALED}


def test_a_file_of_another_step_under_this_name_is_changed(run):
    shutil.copy(run.batch(1), run.batch(2))
    assert states(run)[2] is State.CHANGED


def test_a_lost_file_is_missing(run):
    run.batch(4).unlink()
    assert states(run)[4] is State.MISSING


def test_a_lost_line_leaves_an_unlisted_file_and_a_lost_step_a_missing_one(run):
    lines = run.batch_index.read_text().splitlines(keepends=True)
    # A crash may leave anything of a line.
    run.batch_index.write_bytes(lines[0].encode() + b'{"step": 2, "fi\xff\n' + lines[3].encode())
    run.batch(3).unlink()
    assert states(run) == {1: State.SEALED, 2: State.UNLISTED, 3: State.MISSING, 4: State.SEALED}


def test_files_of_a_writer_at_work_are_no_batches(run):
    (run.batches / ".step_00000009.h5.tmp.host.7").write_bytes(b"half")
    assert list(states(run)) == [1, 2, 3, 4]


def test_a_run_without_batches_has_none(tmp_path):
    assert states(RunFolder(tmp_path / "empty")) == {}
