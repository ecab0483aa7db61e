"""Communication that goes on while the program computes. docs/overlap.md is the guide.

`_in_flight.py` has what is waited for, `_slices.py` the number of slices, `_linear.py` and `_conv.py` the operators
that communicate one slice while the next one is computed, `_gradients.py` collectives of gradients, `_scheduler.py`
hooks of a module's layers, `_pipeline.py` loops, and `_measure.py` with `_report.py` and `_timeline.py` how much is
hidden.
Nothing here chooses a stream: a collective of torch.distributed is ordered behind the stream that issues it, and its
wait() orders the stream that waits.
"""

from sagecomm._overlap._conv import conv2d_all_reduce
from sagecomm._overlap._gradients import chunked_all_reduce, fused_allreduce_gradients
from sagecomm._overlap._in_flight import InFlight, Overlap, overlap
from sagecomm._overlap._linear import all_gather_linear, linear_all_reduce, linear_reduce_scatter
from sagecomm._overlap._measure import measure_overlap
from sagecomm._overlap._pipeline import DoubleBuffer, pipeline
from sagecomm._overlap._report import OverlapReport
from sagecomm._overlap._scheduler import OverlapScheduler

__all__ = [
    "DoubleBuffer",
    "InFlight",
    "Overlap",
    "OverlapReport",
    "OverlapScheduler",
    "all_gather_linear",
    "chunked_all_reduce",
    "conv2d_all_reduce",
    "fused_allreduce_gradients",
    "linear_all_reduce",
    "linear_reduce_scatter",
    "measure_overlap",
    "overlap",
    "pipeline",
]
