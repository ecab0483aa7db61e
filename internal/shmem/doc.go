// Package shmem is the memory that the processes of one host share: one [Arena] per process, written by its owner and
// mapped by its peers.
//
// An arena is an unnamed file (memfd), or a file whose name is removed once all peers have mapped it. Its address space is
// large and costs nothing. [Arena.Alloc] takes pages from the system and [Arena.Free] returns them. A lack of memory is an
// error of Alloc: the pages of an allocated range exist, so no access ends in SIGBUS. The memory of a memfd is limited by
// the machine and by the memory control group of the process (the size of /dev/shm and RLIMIT_MEMLOCK do not matter), the
// memory of a file also by its file system. RLIMIT_FSIZE and RLIMIT_AS limit the logical size; an arena that exceeds them
// is an error at creation. A page counts for the control group of the process that touches it first: Alloc touches all
// pages, so that this is the owner.
//
// A peer gets the owner's [Descriptor] through the rendezvous and calls [Attach]. Two processes are on the same host
// exactly if attaching works: host names are never compared.
//
// Fork: a forked child inherits the mappings, but must not use its copy of this package, which does nothing by itself in
// the child. The child keeps the pages alive until it ends or executes another program.
//
// The package does not define the content of ranges or the rules for writing to them, and it does not wait. It is for
// Linux only.
//
// Start reading at arena.go, then attach.go.
package shmem
