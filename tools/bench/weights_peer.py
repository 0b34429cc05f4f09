"""The other side of `weights.py`'s bare broadcasts: a process that joins one gloo group and receives into one buffer, until it is killed.

python weights_peer.py PORT GROUP BYTES
"""

import datetime
import sys

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


def main(port: str, name: str, num_bytes: str) -> None:
    """Join as rank 1 of 2 and receive."""
    timeout = datetime.timedelta(seconds=600)
    store, _, _ = next(dist.rendezvous(f"tcp://127.0.0.1:{port}", 1, 2, timeout=timeout))
    group, _ = c10d._new_process_group_helper(
        2, 1, [], c10d.Backend("gloo"), c10d.PrefixStore(name, store), group_name=name, timeout=timeout
    )
    data = torch.zeros(int(num_bytes), dtype=torch.uint8)
    while True:
        group.broadcast([data], dist.BroadcastOptions()).wait()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except RuntimeError:
        # The sender has left.
        sys.exit(0)
