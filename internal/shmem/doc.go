// Package shmem is the memory that the processes of one host share: one [Arena] per process, written by its owner and
// mapped by its peers.
//
// An arena is an unnamed file (memfd), or a file that loses its name once everybody has mapped it. Its address space is
// large and costs nothing; pages are taken from the system when [Arena.Alloc] hands out a range and go back when it is
// freed. Everything that can fail for want of memory fails there, with an error: a page that has been handed out is
// there to be touched, so no access ends in SIGBUS. What limits the memory: for a memfd the machine and the memory
// control group of the process (the size of /dev/shm and RLIMIT_MEMLOCK do not matter); for a file the file system
// it lies on as well. RLIMIT_FSIZE and RLIMIT_AS limit the logical size and are checked, or reported, at creation. A
// page counts for the control group of the process that touched it first, which Alloc makes the owner.
//
// A peer gets the owner's [Descriptor] through the rendezvous and calls [Attach]. That attaching worked is the
// definition of "same host": no name of a host is compared anywhere.
//
// Fork: the mappings stay in a forked child, whose copy of this package must not be used; nothing here runs by itself
// in it. The child keeps the pages alive until it ends or executes another program.
//
// Not here: what lies in a range, who may write which line, waiting. Linux only.
//
// Start reading at arena.go, then attach.go.
package shmem
