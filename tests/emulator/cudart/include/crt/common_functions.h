// Stands in for a header of NVIDIA's compiler package, see host_defines.h: host code needs nothing of it.
