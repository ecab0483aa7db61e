package runner

import (
	"unsafe"

	"sagecomm/internal/coll"
)

// What package runner_test uses, which imports packages that import this one.

type QueuedRun = queuedRun

func (g *Group) QueueRun(kind coll.Kind, root int, in, out unsafe.Pointer, nIn, nOut int64, outBlocks []uint64, p Compiled) QueuedRun {
	return g.queueRun(kind, root, in, out, nIn, nOut, outBlocks, p)
}

func (r queuedRun) Drive() (finished, owes, ok bool) { return r.drive() }
func (r queuedRun) Release()                         { r.release() }

func (g *Group) Published() uint64     { return g.published() }
func (g *Group) ConsumedSmall() uint64 { return g.consumedSmall() }
