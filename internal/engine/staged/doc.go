// Package staged is the engine that moves the memory of a device through pinned host memory: a stream copies the input into
// pinned memory and raises the word of a gate, the runner carries out the program of the host on that memory, and the output is
// copied back when the run is complete. P2p operations (p2p.go) are posted at gates in the same way. The engine needs no more of a
// device than asynchronous copies, so it serves every type.
//
// [Pool] keeps the pinned memory and the streams of the process, [Engine] serves the device lane of one group. Start reading at
// Engine.Issue; docs/protocol.md, section 11, has the gate.
package staged
