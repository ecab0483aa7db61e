"""Communication backends: one interface over sagecomm, gloo, nccl, hccl and cncl.

    backend = sagecomm.create_comm_backend("auto")
    total = backend.all_reduce(tensor, op="sum")

docs/comm-backends.md is the guide to it.
"""

from sagecomm.backends.create import create_comm_backend
from sagecomm.backends.protocol import CommBackendProtocol, CommOp

__all__ = ["CommBackendProtocol", "CommOp", "create_comm_backend"]
