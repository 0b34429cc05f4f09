"""One rank of a real trainer, for test_megatron_push: python megatron_push.py FILE. Everything it does is in that JSON file.

Each case builds Megatron's model at other parallel sizes, pushes it through a transport to real engines, and compares greedy log-probs and
every checksum with what the engines then hold.
"""

import json
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore

from slime_hpc.config import names
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.run_folder import RunFolder
from slime_hpc.sync import audit, source
from slime_hpc.sync.buckets import TensorSpec, held, plan
from slime_hpc.sync.transport import TRANSPORTS
from slime_hpc.sync.verify import verify
from slime_hpc.testing.engines import make_context, make_role
from slime_hpc.testing.transport_contract import TOLERANCE
from slime_hpc.trainer import cpu


def main(path):
    settings = json.loads(Path(path).read_text())
    rank, world = settings["rank"], settings["world"]
    cpu.install()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(settings["store"], world), rank=rank, world_size=world)
    results = []
    for case in settings["cases"]:
        results.append(push(case, settings, rank, world))
    if rank == 0:
        Path(settings["results"]).write_text(json.dumps(results))
    dist.destroy_process_group()


def push(case, settings, rank, world):
    from slime_hpc.trainer import checkpoint, parallel, weights
    from slime_hpc.trainer.model import Blueprint, build, transformer_config
    from slime_hpc.trainer.policy import Policy

    run = RunFolder(Path(settings["run"]))
    engines = [Endpoint(**engine) for engine in case["engines"]]
    tables = {"model": {"path": case["model"], "dtype": "float32"}, "trainer": case["trainer"], "sync": case["sync"]}
    context = make_context(run, make_role("trainer", "trainer", tasks=world), rank=rank, **tables)
    experiment = context.experiment
    parallel.split(experiment.trainer, experiment.seed)
    place = parallel.place(torch.device("cpu"))
    blueprint = Blueprint.read(experiment)
    config = transformer_config(blueprint, experiment)
    policy = Policy(build(blueprint, config, place.device), config, place, trainable=False)
    weights.load(policy.model, blueprint.sizes, weights.source_of(experiment, blueprint))
    transport = names.load(TRANSPORTS[experiment.sync.transport], where="sync.transport")(context, experiment.sync)
    transport.connect(engines)
    holders = source.ranks(context)
    try:
        if case["broken"]:
            wrong = weights.export(policy.model, blueprint.sizes, holders=holders)
            return {"failures": source.exchange(refused(transport, case["version"], wrong))}
        report = transport.push(case["version"], weights.export(policy.model, blueprint.sizes, holders=holders))
        score, sizes = policy.score, blueprint.sizes
        difference = verify(engines, context.token, version=case["version"], vocab_size=sizes.vocab_size, score=score, tolerance=TOLERANCE)
        mine = [TensorSpec.of(*named) for named in held(weights.export(policy.model, sizes, holders=holders))]
        counts = source.exchange(len(plan(mine, int(experiment.sync.bucket_mib * 2**20))))
        tensors = list(held(weights.export(policy.model, sizes)))
        equal = 0
        if rank == 0:
            look = audit.look(engines, context.token)
            equal = audit.compare_with_trainer(look, lambda: iter(tensors), num_kv_heads=sizes.num_kv_heads)
        if case["save"]:
            checkpoint.save(run, case["version"], policy, None)
    finally:
        transport.close()
        parallel.unsplit()
    return {"difference": difference, "equal": equal, "holders": list(holders), "planned": counts, **report.figures()}


def refused(transport, version, tensors):
    """What is said of a push whose last norm, which the last stage sends, is too long."""

    def changed():
        for name, tensor in tensors:
            yield name, torch.ones(65) if tensor is not None and name == "model.norm.weight" else tensor

    try:
        transport.push(version, changed())
    except WeightPushError as error:
        return error.what
    return ""


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BaseException:
        # Not every rank's thread ends by itself when another has failed.
        traceback.print_exc()
        raise
