// Package procwatch identifies processes of this host and reports when one of them has ended.
//
// A pid alone does not name a process: it may be used again, and it means another process in another pid namespace. The
// identity of a process is its pid together with its start time ([StartTime]), its pid namespace ([PIDNamespace]) and the
// boot ([BootID]). All of these come from /proc.
//
// A [Watcher] reports the end of one process. It costs one descriptor (a pidfd) and one parked goroutine: the poller of the
// Go runtime waits for the pidfd, so that there is no thread per peer and no polling. Watching needs no permission on the
// process. It needs Linux 5.3 or later.
//
// Any goroutine may call every function. Start reading at watch.go.
package procwatch
