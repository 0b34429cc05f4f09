"""Sealed batches in a run folder, as a controller leaves them."""

from __future__ import annotations

from collections.abc import Sequence

from slime_hpc.data.collate import collate
from slime_hpc.data.sample import Sample
from slime_hpc.run_folder import RunFolder
from slime_hpc.store import hdf5
from slime_hpc.store.journal import Entry, Journal


def seal_step(run: RunFolder, step: int, samples: Sequence[Sample]) -> None:
    """Seal the batch of a step and note it in the journal."""
    batch = collate(samples, step=step, weight_version=step - 1)
    report = hdf5.seal(run.batch(step), batch)
    entry = Entry(
        step=step,
        file=run.batch(step).name,
        sha256=report.sha256,
        samples=batch.num_samples,
        tokens=len(batch.tokens_T),
        weight_version=step - 1,
        source_state={},
    )
    Journal(run).append(entry)
