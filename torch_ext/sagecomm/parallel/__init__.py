"""Groups of four-dimensional parallelism, and the exchanges between neighbours in them.

    manager = sagecomm.ProcessGroupManager(tp=2, cp=2, pp=2, dp=2)

`_layout.py` numbers the ranks, `_manager.py` makes the groups, `_ring.py` has the exchanges of context parallelism and
`_pipeline.py` those between the stages of a pipeline. docs/parallelism.md has pictures.
"""

from sagecomm.parallel._layout import DIMENSIONS, JOINT, Layout
from sagecomm.parallel._manager import (
    ProcessGroupManager,
    get_process_group_manager,
    setup_process_group_manager,
)
from sagecomm.parallel._pipeline import PipelineStage
from sagecomm.parallel._ring import ring, ring_shift

__all__ = [
    "DIMENSIONS",
    "JOINT",
    "Layout",
    "PipelineStage",
    "ProcessGroupManager",
    "get_process_group_manager",
    "ring",
    "ring_shift",
    "setup_process_group_manager",
]
