"""One of two trainer ranks of test_distributed: python two_ranks.py RUN MODEL ROLE,PORT,GPUS ..."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from slime_hpc.config.schema import Sync
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.errors import WeightPushError
from slime_hpc.run_folder import RunFolder
from slime_hpc.sync.distributed import DistributedTransport
from slime_hpc.sync.verify import verify
from slime_hpc.testing.engines import make_context, make_role
from slime_hpc.testing.transport_contract import TOLERANCE, Rig


def main(run, model, *engines):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    parts = [engine.split(",") for engine in engines]
    endpoints = [
        Endpoint(role=role, rank=0, host="127.0.0.1", port=int(port), node="here", pid=0, gpus=int(gpus)) for role, port, gpus in parts
    ]
    context = make_context(RunFolder(Path(run)), make_role("trainer", "trainer", tasks=2), rank=rank, model={"path": model})
    rig = Rig(endpoints, context.token, AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), 320)

    def mine(tensors):
        return ((name, tensor if rank == 0 else None) for name, tensor in tensors)

    transport = DistributedTransport(context, Sync(timeout_s=30.0, bucket_mib=1))
    transport.connect(endpoints if rank == 0 else [])
    transport.push(71, mine(rig.tensors()))
    difference = verify(endpoints, context.token, version=71, vocab_size=320, score=rig.score, tolerance=TOLERANCE)
    print("RESULT", difference)
    wrong = dict(rig.tensors()) | {"model.norm.weight": torch.ones(65)}
    try:
        transport.push(72, mine(wrong.items()))
    except WeightPushError as error:
        print("RESULT", error.cause)
    transport.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
