"""python -m sagecomm bench: times operations in the manner of nccl-tests, beside other backends in one interleaved run.

| module | what it does |
|---|---|
| arguments | the options of the command, and the [Job] that they make |
| cases | which operations with which sizes, types, reductions and roots |
| checking | data to send, and what must come out |
| calls | what one iteration calls: once or several times, at once or asynchronously, coalesced, beside computation |
| measuring | what each rank does, all alike |
| peers, peer_mpi, peer_vllm | libraries with processes of their own |
| launching | starts the ranks, and collects what they measured |
| rows | figures from samples: time, bandwidths, percentiles |
| output, picture | rows as text, JSON, CSV, and as a picture |

Start with launching.run(). docs/bench.md says what is measured, and how to read it.
"""
