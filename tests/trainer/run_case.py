"""What is done with each case of `tests.trainer.checks`; imported after the CPU stand-ins are in place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from slime_hpc.algo import registry
from slime_hpc.config.schema import Experiment
from slime_hpc.data.collate import collate
from slime_hpc.data.sample import Sample
from slime_hpc.errors import DataError, RunError
from slime_hpc.run_folder import RunFolder
from slime_hpc.store import hdf5
from slime_hpc.trainer import checkpoint, parallel, roster, share, step, weights
from slime_hpc.trainer.estimate import estimate, flat
from slime_hpc.trainer.logprob import from_logits
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.model import Blueprint
from slime_hpc.trainer.objective import SUMS
from slime_hpc.trainer.roster import Roster
from tests.trainer import plain, tiny

CPU = torch.device("cpu")
CRITIC = {"optimizer": {"lr": 1e-2}}


class Built:
    """A policy on the current layout, with weights from its model folder."""

    def __init__(self, experiment: Experiment) -> None:
        parallel.split(experiment.trainer, experiment.seed)
        self.experiment = experiment
        self.parts = registry.load(experiment.algorithm)
        self.place = parallel.place(CPU)
        self.blueprint = Blueprint.read(experiment)
        self.policy = roster.make_policy(experiment, self.blueprint, self.place)
        roster.load_folder(self.policy, experiment, self.blueprint)

    def models(self) -> Roster:
        """The policy, its optimizer, and the models beside it."""
        nowhere = RunFolder(Path("none"))
        return roster.gather(self.experiment, self.blueprint, self.parts, self.policy, self.place, nowhere)

    def train(self, number: int, batch: Path, held: Roster) -> dict[str, float]:
        """One step on a batch."""
        own = share.read(batch, self.experiment, self.parts, self.policy, self.place)
        return step.train(number, own, self.experiment, self.parts, held, self.place)

    def exported(self) -> dict[str, torch.Tensor]:
        """All weights, on rank 0 (elsewhere empty)."""
        return {name: t.clone() for name, t in weights.export(self.policy.model, self.blueprint.sizes) if t is not None}


def run(case: Any, folder: Path) -> dict[str, Any]:
    """Compare log-probs, training and weights with the plain model."""
    hf = tiny.hf_model(case.kind, tied=case.tied)
    model_folder, batch = folder / f"{case.kind}-{case.tied}", folder / f"batch-{case.name}.h5"
    teacher_folder = folder / f"teacher-{case.kind}"
    if dist.get_rank() == 0:
        hf.save_pretrained(model_folder)
        tiny.write_batch(batch)
        if "teacher" in case.trainer:
            tiny.hf_model(case.kind, tied=False, seed=2).save_pretrained(teacher_folder)
    dist.barrier()
    samples = tiny.write_batch(folder / f"scratch-{dist.get_rank()}.h5")
    own = case.trainer | ({"teacher": {"path": str(teacher_folder), **case.trainer["teacher"]}} if "teacher" in case.trainer else {})
    experiment = tiny.experiment(model_folder, **own)
    built = Built(experiment)
    first = built.exported()
    state = tiny.state(hf)
    result: dict[str, Any] = {
        "exact": all(torch.equal(tensor, state[name]) for name, tensor in first.items()) if first else True,
        "names": sorted(first) == sorted(n for n in state if not (case.tied and n == "lm_head.weight")) if first else True,
        "score": _score(built, hf, samples),
    }
    held = built.models()
    values = [built.train(number, batch, held) for number in range(1, case.steps + 1)]
    teacher = tiny.hf_model(case.kind, tied=False, seed=2) if experiment.teacher else None
    expected = plain.train(hf, samples, experiment, values, teacher)
    trained, state = built.exported(), tiny.state(hf)
    result |= {
        "values": values,
        "expected": expected,
        "weights": max((float((t - state[n]).abs().max()) for n, t in trained.items()), default=0.0),
        "moved": max((float((t - first[n]).abs().max()) for n, t in trained.items()), default=0.0),
        "engine_diff": max(_difference(tiny.hf_model(case.kind, tied=case.tied), sample) for sample in samples),
    }
    parallel_state.destroy_model_parallel()
    return result


def _difference(hf: Any, sample: Sample) -> float:
    """Largest difference between the sample's log-probs and the plain model's, where a token is trained on."""
    difference = (plain.logprobs(hf, sample)[0].detach() - torch.from_numpy(sample.logprobs_R)).abs()
    return float(difference[torch.from_numpy(sample.loss_mask_R.astype(bool))].max())


def _score(built: Built, hf: Any, samples: Any) -> float:
    """Largest difference of a log-prob at temperature 1 from the plain model's, over whole sequences."""
    sequences = [[*map(int, s.prompt_tokens_P), *map(int, s.response_tokens_R)] for s in samples[:5]]
    largest = 0.0
    for sequence, scored in zip(sequences, built.policy.score(sequences), strict=True):
        tokens = torch.tensor(sequence)
        with torch.no_grad():
            logp = hf(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        largest = max(largest, float((logp - torch.tensor(scored)).abs().max()))
    return largest


def reshard(folder: Path) -> dict[str, Any]:
    """Train two steps, save; train on. Load at other parallel sizes, train on: the same weights, and bit-equal on the same layout."""
    world = dist.get_world_size()
    layouts: dict[int, list[dict[str, Any]]] = {
        1: [{}],
        2: [{}, {"tensor_parallel": 2}, {"pipeline_parallel": 2}],
        4: [{"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"tensor_parallel": 2, "pipeline_parallel": 2}],
    }
    model_folder, batch = folder / "qwen3-False", folder / "batch-reshard.h5"
    run = RunFolder(folder / f"run-{world}")
    if dist.get_rank() == 0:
        tiny.hf_model("qwen3", tied=False).save_pretrained(model_folder)
        tiny.write_batch(batch)
    dist.barrier()
    differences, whole = [], {}
    for number, layout in enumerate([layouts[world][0], *layouts[world]]):
        experiment = tiny.experiment(model_folder, algorithm={"advantage": "gae", "whiten": True}, critic=CRITIC, **layout)
        built = Built(experiment)
        held = built.models()
        if number == 0:
            for step_number in (1, 2):
                built.train(step_number, batch, held)
            checkpoint.save(run, 2, built.policy, held.optimization, held.critic)
        else:
            checkpoint.load(run, 2, built.policy, held.optimization, held.critic)
        for step_number in (3, 4):
            built.train(step_number, batch, held)
        exported = built.exported()
        whole = whole or exported
        differences.append(max((float((exported[n] - whole[n]).abs().max()) for n in whole), default=0.0))
        parallel_state.destroy_model_parallel()
    return {"same_layout": differences[1], "other_layouts": differences[2:], "steps": checkpoint.complete_steps(run)}


def not_finite(folder: Path) -> dict[str, Any]:
    """One sample's loss is NaN: the update is skipped on all ranks; once more, and all of them stop."""
    batch = folder / "batch-nan.h5"
    if dist.get_rank() == 0:
        tiny.write_batch(batch, broken=3)
    dist.barrier()
    built = Built(tiny.experiment(folder / "qwen3-False", max_skipped_updates=1, algorithm={"correction": {"kind": "tis"}}))
    held = built.models()
    before = built.exported()
    values = built.train(1, batch, held)
    after = built.exported()
    try:
        built.train(2, batch, held)
        stopped = ""
    except RunError as error:
        stopped = error.what
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, stopped)
    parallel_state.destroy_model_parallel()
    return {"values": values, "same": all(torch.equal(after[n], before[n]) for n in before), "stopped": told}


def kept(folder: Path) -> dict[str, Any]:
    """Train a step; then on answers of which half were drawn before it: whose log-probs the ratio divides by, and what is left of it."""
    batch = folder / "batch-versions.h5"
    if dist.get_rank() == 0:
        tiny.write_batch(batch, stale=1)
    dist.barrier()
    built = Built(tiny.experiment(folder / "qwen3-False", algorithm={"old_logprobs": "generator"}))
    held = built.models()
    assert held.kept is not None
    own = share.read(batch, built.experiment, built.parts, built.policy, built.place)
    batches = [packed for update in own.updates for packed in update]
    by_version = []
    for number in (1, 2):
        held.kept.keep(number - 1)
        by_version.append(flat(lambda given: built.policy.logprobs(given, temperature=tiny.TEMPERATURE), batches, own))
        if number == 1:
            built.train(number, batch, held)
    before = built.exported()
    meter = Meter(built.place, sums=SUMS, maxima=())
    old_R = estimate(own, held, built.experiment, built.parts, meter).old_R
    after = built.exported()
    assert old_R is not None
    held.kept.keep(5)
    held.kept.keep(6)
    missing = built.train(7, batch, held)["old_version_missing"]
    parallel_state.destroy_model_parallel()
    return {
        "old": float((old_R - torch.where(own.version_R == 1, by_version[1], by_version[0])).abs().max()),
        "apart": float((by_version[1] - by_version[0]).abs().max()),
        "same": all(torch.equal(after[name], before[name]) for name in before),
        "missing": meter.join()["old_version_missing"],
        "gone": missing,
    }


def odd(folder: Path) -> dict[str, Any]:
    """Batches that teach nothing, are too long for a micro-batch, or do not fit together: what each does, and what every rank is told."""
    names = ("equal", "empty", "short")
    paths = {name: folder / f"batch-{name}.h5" for name in names}
    if dist.get_rank() == 0:
        samples = tiny.write_batch(folder / "samples.h5")
        equal = [dataclasses.replace(sample, reward=0.5) for sample in samples]
        hdf5.seal(paths["equal"], collate(equal, step=1, weight_version=0))
        hdf5.seal(paths["empty"], collate([], step=1, weight_version=0))
        whole = collate(samples, step=1, weight_version=0)
        hdf5.seal(paths["short"], dataclasses.replace(whole, logprobs_R=whole.logprobs_R[:-1]))
    dist.barrier()
    built = Built(tiny.experiment(folder / "qwen3-False", tokens_per_gpu=20))
    held, before = built.models(), built.exported()
    values = built.train(1, paths["equal"], held)
    refused = {}
    for name in names[1:]:
        said: list[Any] = [None] * dist.get_world_size()
        try:
            built.train(2, paths[name], held)
            own = ""
        except DataError as error:
            own = str(error)
        dist.all_gather_object(said, own)
        refused[name] = said
    # The parameters that are decayed move by that alone.
    moved = {name: float((tensor - before[name]).abs().max()) for name, tensor in built.exported().items() if "norm" in name}
    parallel_state.destroy_model_parallel()
    return {"values": values, "refused": refused, "moved": max(moved.values(), default=0.0)}


def foreign(folder: Path) -> str:
    """What is said of a checkpoint of another model."""
    built = Built(tiny.experiment(folder / "qwen2-True"))
    try:
        checkpoint.load(RunFolder(folder / "run-1"), 2, built.policy, None)
    except RunError as error:
        return str(error)
    finally:
        parallel_state.destroy_model_parallel()
    return ""


def bf16(folder: Path) -> dict[str, Any]:
    """bfloat16: log-probs near the float32 ones, finite values, and weights that move."""
    experiment = tiny.experiment(folder / "qwen3-False", dtype="bfloat16", algorithm={"advantage": "gae"}, critic=CRITIC)
    built = Built(experiment)
    samples = tiny.write_batch(folder / "scratch-bf16.h5")
    difference = _score(built, tiny.hf_model("qwen3", tied=False), samples)
    before = built.exported()
    values = built.train(3, folder / "scratch-bf16.h5", built.models())
    moved = max(float((tensor.float() - before[name].float()).abs().max()) for name, tensor in built.exported().items())
    parallel_state.destroy_model_parallel()
    return {"score": difference, "values": values, "moved": moved, "dtype": str(before["lm_head.weight"].dtype)}


def gradient_of_logits() -> dict[str, float]:
    """Log-prob and entropy, and their gradients, against autograd's own."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(7, tiny.VOCAB, generator=generator, dtype=torch.float64).requires_grad_()
    target = torch.randint(0, tiny.VOCAB, (7,), generator=generator)
    logp, entropy = from_logits(logits, target)
    (logp * torch.arange(7) - 0.3 * entropy).sum().backward()
    own = logits.grad
    again = logits.detach().clone().requires_grad_()
    full = again.log_softmax(-1)
    (full.gather(1, target[:, None])[:, 0] * torch.arange(7) + 0.3 * (full.exp() * full).sum(-1)).sum().backward()
    assert own is not None and again.grad is not None
    return {"gradient": float((own - again.grad).abs().max())}
