"""Where compilers of a job's kernels keep what they compile: on the node itself, in a folder that no other job shares."""

from __future__ import annotations

from slime_hpc.topology.schema import Topology

CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
}
"""Environment variable of each compiler, and its folder's name."""


def cache_folder(topology: Topology) -> str:
    """What a job's own folder on each node begins with; user and job id follow."""
    return f"{topology.node.local_folder.rstrip('/')}/slime-hpc-"
