import dataclasses
import hashlib

import pytest

from slime_hpc.run_folder import RunFolder
from slime_hpc.store.journal import Entry, Journal


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def entry(step, **values):
    defaults = {"file": f"step_{step:08d}.h5", "sha256": "", "samples": 4, "tokens": 9, "weight_version": step - 1}
    return Entry(**{"step": step, "source_state": {"taken": 4 * step}, **defaults, **values})


def test_what_was_appended_is_there_after_a_restart(run):
    journal = Journal(run)
    assert journal.entry(1) is None
    assert journal.state_after(1) is None
    for step in (1, 2):
        journal.append(entry(step))
    again = Journal(run)
    assert [again.entry(step) for step in (1, 2, 3)] == [entry(1), entry(2), None]
    assert again.state_after(2) == {"taken": 8}


def test_the_later_line_of_a_step_counts(run):
    journal = Journal(run)
    journal.append(entry(1, tokens=1))
    journal.append(entry(1, tokens=2))
    assert journal.entry(1) == Journal(run).entry(1) == entry(1, tokens=2)


def test_a_crash_at_any_byte_loses_no_more_than_the_line_it_tore(run):
    journal = Journal(run)
    journal.append(entry(1))
    whole = run.batch_index.stat().st_size
    journal.append(entry(2))
    data = run.batch_index.read_bytes()
    for end in range(whole, len(data)):
        run.batch_index.write_bytes(data[:end])
        torn = Journal(run)
        assert torn.entry(1) == entry(1)
        # All but the newline may be there: then the line is whole.
        assert torn.entry(2) == (entry(2) if end == len(data) - 1 else None)
        torn.append(dataclasses.replace(entry(3), tokens=end))
        assert Journal(run).entry(3) == entry(3, tokens=end)
        assert Journal(run).entry(1) == entry(1)


def test_only_the_very_file_that_was_sealed_is_intact(run):
    journal = Journal(run)
    file = run.batch(1)
    file.parent.mkdir()
    file.write_bytes(b"sealed")
    assert not journal.intact(1)
    journal.append(entry(1, file=file.name, sha256=hashlib.sha256(b"sealed").hexdigest()))
    assert journal.intact(1)
    for other in (b"seale", b"sealeD", b""):
        file.write_bytes(other)
        assert not journal.intact(1)
    file.unlink()
    assert not journal.intact(1)
