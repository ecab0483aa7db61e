// Package observe shows people and programs what the groups of this process do: statistics, metrics, the flight recorder and
// its dumps, the timeline, the answer to `python -m sagecomm status`, and log lines.
//
// It reads groups through [Group], a view that pgbackend implements, and changes nothing in them. It owns the files that it
// writes, the goroutines that write them, and the list of flight recorders in shared memory ([Listing]). It decides nothing
// about operations, and a fault or a hanging file system here never fails or delays a group for longer than the bounds in
// dump.go and observers.go.
//
// Any goroutine may call every function. Whoever reads a group that may be destroyed meanwhile acquires it first (see
// [Group]). Writing a dump holds only the lock by which dumps wait for each other, no lock of a group or of the list of groups.
//
// Start reading at group.go, then observers.go (what runs while there are groups), records.go and torch_trace.go (the flight
// recorder in the terms of torch), dump.go (when files of it are written) and list.go (how a process reads the recorders of
// its peers).
package observe
