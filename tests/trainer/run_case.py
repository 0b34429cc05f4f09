"""What is done with each case of `tests.trainer.checks`; imported after the CPU stand-ins are in place."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slime_hpc.algo import registry
from slime_hpc.config.schema import Experiment, Model, Trainer
from slime_hpc.data.collate import collate
from slime_hpc.data.sample import Sample
from slime_hpc.errors import ConfigError, DataError, RunError
from slime_hpc.run_folder import RunFolder
from slime_hpc.store import hdf5
from slime_hpc.trainer import checkpoint, parallel, roster, routes, share, step, weights
from slime_hpc.trainer.estimate import estimate, flat
from slime_hpc.trainer.logprob import from_logits
from slime_hpc.trainer.meter import Meter
from slime_hpc.trainer.model import Blueprint
from slime_hpc.trainer.objective import SUMS
from slime_hpc.trainer.roster import Roster
from tests.trainer import plain, tiny

CPU = torch.device("cpu")
ACTOR_CRITIC = {"algorithm": {"advantage": "gae", "whiten": True}, "critic": {"optimizer": {"lr": 1e-2}}}


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


@dataclass(frozen=True)
class Plain:
    """What plain PyTorch makes of a case, whatever the layout."""

    report: dict[str, list[float]]
    state: dict[str, torch.Tensor]
    engine_diff: float


@functools.cache
def _plain(kind: str, tied: bool, told: str, rates: tuple[float | None, ...]) -> Plain:
    """`told`: the experiment without its layout, as JSON."""
    hf, samples, experiment = tiny.hf_model(kind, tied=tied), tiny.samples(), Experiment.model_validate_json(told)
    engine_diff = max(_difference(hf, sample) for sample in samples)
    teacher = tiny.hf_model(kind, tied=False, seed=2) if experiment.teacher else None
    report = plain.train(hf, samples, experiment, rates, teacher)
    return Plain(report, tiny.state(hf), engine_diff)


def _without_layout(experiment: Experiment) -> str:
    own = {"trainer": Trainer(updates_per_step=experiment.trainer.updates_per_step), "model": Model(path="-")}
    if experiment.teacher:
        own |= {"teacher": experiment.teacher.model_copy(update={"path": "-"})}
    return experiment.model_copy(update=own).model_dump_json()


def run(case: Any, folder: Path) -> dict[str, Any]:
    """Compare log-probs, training and weights with the plain model; on rank 0 alone, elsewhere an empty result."""
    model_folder, batch = folder / f"{case.kind}-{case.tied}", folder / "batch.h5"
    teacher_folder = folder / f"teacher-{case.kind}"
    hf = tiny.hf_model(case.kind, tied=case.tied)
    if dist.get_rank() == 0:
        if not model_folder.exists():
            hf.save_pretrained(model_folder)
        if not batch.exists():
            tiny.write_batch(batch)
        if "teacher" in case.trainer and not teacher_folder.exists():
            tiny.hf_model(case.kind, tied=False, seed=2).save_pretrained(teacher_folder)
    dist.barrier()
    own = case.trainer | ({"teacher": {"path": str(teacher_folder), **case.trainer["teacher"]}} if "teacher" in case.trainer else {})
    experiment = tiny.experiment(model_folder, **own)
    built = Built(experiment)
    first = built.exported()
    score = _score(built, hf, tiny.samples())
    held = built.models()
    values = [built.train(number, batch, held) for number in range(1, case.steps + 1)]
    trained = built.exported()
    parallel.unsplit()
    if dist.get_rank() != 0:
        return {}
    state = tiny.state(hf)
    expected = _plain(case.kind, case.tied, _without_layout(experiment), tuple(v.get("lr") for v in values))
    return {
        "exact": all(torch.equal(tensor, state[name]) for name, tensor in first.items()),
        "names": sorted(first) == sorted(n for n in state if not (case.tied and n == "lm_head.weight")),
        "score": score,
        "values": values,
        "expected": expected.report,
        "weights": max(float((t - expected.state[n]).abs().max()) for n, t in trained.items()),
        "moved": max(float((t - first[n]).abs().max()) for n, t in trained.items()),
        "engine_diff": expected.engine_diff,
    }


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


SP2 = {"tensor_parallel": 2, "sequence_parallel": True}
RESHARDED: dict[tuple[int, str], list[dict[str, Any]]] = {
    (1, "qwen3"): [{}],
    (2, "qwen3"): [{"tensor_parallel": 2}, {"pipeline_parallel": 2}, {}],
    (4, "qwen3"): [{"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"tensor_parallel": 2, "pipeline_parallel": 2}],
    (2, "deepseek-v3"): [{"expert_parallel": 2}, SP2, {"context_parallel": 2}],
}
"""Layouts by world and model: the first one saves."""


def reshard(folder: Path, kind: str = "qwen3") -> dict[str, Any]:
    """Train two steps, save; train on. Load at other parallel sizes, train on: the same weights, and bit-equal on the same layout."""
    layouts = RESHARDED[dist.get_world_size(), kind]
    model_folder, batch = folder / f"{kind}-False", folder / "batch-reshard.h5"
    run = RunFolder(folder / f"run-{kind}")
    if dist.get_rank() == 0:
        tiny.hf_model(kind, tied=False).save_pretrained(model_folder)
        tiny.write_batch(batch)
    dist.barrier()
    differences, losses, whole = [], [], {}
    for number, layout in enumerate([layouts[0], *layouts]):
        experiment = tiny.experiment(model_folder, **(ACTOR_CRITIC if kind == "qwen3" else {}), **layout)
        built = Built(experiment)
        held = built.models()
        if number == 0:
            for step_number in (1, 2):
                built.train(step_number, batch, held)
            checkpoint.save(run, 2, built.policy, held.optimization, held.critic)
        else:
            checkpoint.load(run, 2, built.policy, held.optimization, held.critic)
        losses.append([built.train(step_number, batch, held)["loss"] for step_number in (3, 4)])
        exported = built.exported()
        whole = whole or exported
        differences.append(max((float((exported[n] - whole[n]).abs().max()) for n in whole), default=0.0))
        parallel.unsplit()
    steps = checkpoint.complete_steps(run)
    return {"same_layout": differences[1], "other_layouts": differences[2:], "losses": losses, "steps": steps}


def routes_replayed(folder: Path) -> dict[str, Any]:
    """Log-probs of a mixture of experts whose choices are recorded, replayed, and forced to be others; alike on every layout."""
    layouts: dict[int, list[dict[str, Any]]] = {
        1: [{}, {"recompute": True}],
        2: [{"pipeline_parallel": 2, "recompute": True}, {"context_parallel": 2}, {"tensor_parallel": 2, "sequence_parallel": True}],
    }
    model_folder = folder / "qwen3-moe-False"
    if dist.get_rank() == 0 and not model_folder.exists():
        tiny.hf_model("qwen3-moe", tied=False).save_pretrained(model_folder)
    dist.barrier()
    figures: dict[str, Any] = {"forced": [], "free": [], "norms": []}
    arrays = collate(tiny.samples(), step=1, weight_version=0)
    for layout in layouts[dist.get_world_size()]:
        built = Built(tiny.experiment(model_folder, **layout))
        batches = [built.policy.pack(arrays, members) for members in ([0, 1, 2], [5, 6], [9, 10, 3])]
        free = built.policy.logprobs(batches, temperature=1.0)
        if not layout:
            with routes.recording() as recorded:
                built.policy.logprobs(batches, temperature=1.0)
            same = [dataclasses.replace(batch, routes_TLK=recorded.routes(batch, 4)) for batch in batches]
            replayed = built.policy.logprobs(same, temperature=1.0)
            figures["same"] = all(torch.equal(a, b) for a, b in zip(free, replayed, strict=True))
        forced = [dataclasses.replace(batch, routes_TLK=_other_routes(batch)) for batch in batches]
        values = built.policy.logprobs(forced, temperature=1.0)
        built.policy.backward(forced, lambda batch, logprob_R, entropy_R: logprob_R.sum(), temperature=1.0)
        figures["norms"].append(built.models().optimization.step(1, what="routes").norm)
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, [torch.cat(v).tolist() if v else [] for v in (values, free)])
        figures["forced"].append(told[-1][0])
        figures["free"].append(told[-1][1])
        parallel.unsplit()
    return figures


def _other_routes(batch: Any) -> torch.Tensor:
    """Experts that depend on the token's place alone; every fifth token is free."""
    place = torch.arange(batch.num_tokens)
    chosen_TLK = torch.stack([place % 4, (place + 1) % 4], dim=1).unsqueeze(1).repeat(1, 4, 1)
    chosen_TLK[::5] = routes.FREE
    return chosen_TLK


def frozen(folder: Path) -> dict[str, Any]:
    """Which weights a step moves when some are frozen, and what is said of a pattern that nothing has."""
    batch = folder / "batch.h5"
    built = Built(tiny.experiment(folder / "qwen3-False", freeze=["embed_tokens", r"layers\.[01]\..*proj"]))
    before = built.exported()
    built.train(1, batch, built.models())
    moved = sorted(name for name, tensor in built.exported().items() if not torch.equal(tensor, before[name]))
    try:
        weights.freeze(built.policy.model, built.blueprint.sizes, ["no_such_weight"])
        said = ""
    except ConfigError as error:
        said = error.what
    parallel.unsplit()
    return {"moved": moved, "all": sorted(before), "said": said}


def asynchronous(folder: Path) -> dict[str, Any]:
    """A checkpoint that is written while training goes on holds the state at the time of the save, as the ordinary one does."""
    built = Built(tiny.experiment(folder / "qwen3-False", **ACTOR_CRITIC))
    run, batch = RunFolder(folder / f"run-async-{dist.get_world_size()}"), folder / "batch.h5"
    held = built.models()
    built.train(1, batch, held)
    saved = built.exported()
    saves = checkpoint.Saves(run, asynchronous=True)
    saves.save(1, built.policy, held.optimization, held.critic)
    early = checkpoint.complete_steps(run)
    built.train(2, batch, held)
    trained = built.exported()
    saves.save(2, built.policy, held.optimization, held.critic)
    saves.settle(wait=True)
    parallel.unsplit()
    again = Built(tiny.experiment(folder / "qwen3-False", **ACTOR_CRITIC))
    loaded = again.models()
    checkpoint.load(run, 1, again.policy, loaded.optimization, loaded.critic)
    same = all(torch.equal(tensor, saved[name]) for name, tensor in again.exported().items())
    again.train(2, batch, loaded)
    steps = checkpoint.complete_steps(run)
    if dist.get_rank() == 0:
        cut = next(run.checkpoint(2).glob("*.distcp"))
        cut.write_bytes(cut.read_bytes()[:-1])
    dist.barrier()
    result = {
        "early": early,
        "steps": steps,
        "after_a_cut": checkpoint.complete_steps(run),
        "same": same,
        "trains_on": all(torch.equal(tensor, trained[name]) for name, tensor in again.exported().items()),
    }
    parallel.unsplit()
    return result


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
    parallel.unsplit()
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
    parallel.unsplit()
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
        samples = tiny.samples()
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
    parallel.unsplit()
    return {"values": values, "refused": refused, "moved": max(moved.values(), default=0.0)}


def foreign(folder: Path) -> str:
    """What is said of a checkpoint of another model."""
    built = Built(tiny.experiment(folder / "qwen2-True"))
    try:
        checkpoint.load(RunFolder(folder / "run-qwen3"), 2, built.policy, None)
    except RunError as error:
        return str(error)
    finally:
        parallel.unsplit()
    return ""


def bf16(folder: Path) -> dict[str, Any]:
    """bfloat16: log-probs near the float32 ones, finite values, and weights that move."""
    experiment = tiny.experiment(folder / "qwen3-False", dtype="bfloat16", **ACTOR_CRITIC)
    built = Built(experiment)
    tiny.write_batch(folder / "scratch-bf16.h5")
    difference = _score(built, tiny.hf_model("qwen3", tied=False), tiny.samples())
    before = built.exported()
    held = built.models()
    values = built.train(3, folder / "scratch-bf16.h5", held)
    moved = max(float((tensor.float() - before[name].float()).abs().max()) for name, tensor in built.exported().items())
    parallel.unsplit()
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
