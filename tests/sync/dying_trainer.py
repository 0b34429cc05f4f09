"""A trainer that is killed while engines wait in its second broadcast: python dying_trainer.py RUN MODEL ROLE,PORT,GPUS ..."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from slime_hpc.config.schema import Sync
from slime_hpc.control.endpoint import Endpoint
from slime_hpc.run_folder import RunFolder
from slime_hpc.sync.distributed import DistributedTransport
from slime_hpc.sync.group import WeightGroup
from slime_hpc.testing.engines import make_context, make_role


def main(run, model, *engines):
    parts = [engine.split(",") for engine in engines]
    endpoints = [
        Endpoint(role=role, rank=0, host="127.0.0.1", port=int(port), node="here", pid=0, gpus=int(gpus)) for role, port, gpus in parts
    ]
    context = make_context(RunFolder(Path(run)), make_role("trainer", "trainer"), model={"path": model})
    transport = DistributedTransport(context, Sync(timeout_s=60.0, bucket_mib=0.1))
    transport.connect(endpoints)
    broadcast, sent = WeightGroup.broadcast, []

    def broadcast_once(self, data, **options):
        sent.append(data)
        if len(sent) == 1:
            broadcast(self, data, **options)
            return
        # The engines have been asked, and wait.
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    WeightGroup.broadcast = broadcast_once
    transport.push(80, AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict().items())


if __name__ == "__main__":
    main(*sys.argv[1:])
