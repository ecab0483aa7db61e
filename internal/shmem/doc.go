// Package shmem provides the memory that the processes of one host share. Each process owns an [Arena] or several; its peers map
// them.
//
// An arena is an unnamed file (memfd), or a file whose name is removed once all peers have mapped it. Its address space is large
// and costs nothing. [Arena.Alloc] takes pages from the system, and [Arena.Free] returns them. Lack of memory shows there as an
// error: the pages of an allocated range exist, so no access ends in SIGBUS.
//
// The memory of a memfd is limited by the machine and by the memory control group of the process, not by the size of /dev/shm or
// by RLIMIT_MEMLOCK. The memory of a file is limited by its file system as well. RLIMIT_FSIZE and RLIMIT_AS limit the logical
// size; an arena beyond them cannot be made. A page counts for the control group of the process that touches it first, which is
// the owner, in Alloc.
//
// A peer gets the owner's [Descriptor] through the rendezvous and calls [Attach]. Two processes are on the same host if attaching
// works; no host names are compared.
//
// A forked child must not use the package. It inherits the mappings and keeps the pages alive until it ends or executes another
// program.
//
// The package does not know what lies in a range or who may write it. Any goroutine may call it. It needs Linux.
//
// Start reading at arena.go, then attach.go.
package shmem
