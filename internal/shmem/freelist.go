package shmem

import (
	"fmt"
	"slices"
)

// Range is a piece of an arena: offset from its beginning and length, in bytes.
type Range struct {
	Off, Len int64
}

// End returns the offset behind the range.
func (r Range) End() int64 { return r.Off + r.Len }

// freeList allocates ranges of whole pages in an address space, first fit. It touches no memory.
type freeList struct {
	page int64
	free []Range         // sorted, never adjacent, never empty
	used map[int64]int64 // length of each allocated range, by offset
}

func newFreeList(space Range, page int64) *freeList {
	return &freeList{page: page, free: []Range{space}, used: make(map[int64]int64)}
}

// take allocates n bytes, rounded up to pages, at a multiple of align (a power of two).
func (l *freeList) take(n, align int64) (Range, bool) {
	n, align = roundUp(n, l.page), max(align, l.page)
	for i, f := range l.free {
		off := roundUp(f.Off, align)
		if off < f.Off || off > f.End()-n { // the first test catches overflow
			continue
		}
		got := Range{off, n}
		rest := make([]Range, 0, 2)
		if off > f.Off {
			rest = append(rest, Range{f.Off, off - f.Off})
		}
		if got.End() < f.End() {
			rest = append(rest, Range{got.End(), f.End() - got.End()})
		}
		l.free = slices.Replace(l.free, i, i+1, rest...)
		l.used[off] = n
		return got, true
	}
	return Range{}, false
}

// retire ends the use of an allocated range. The range can be allocated again only after give.
func (l *freeList) retire(r Range) error {
	if n, ok := l.used[r.Off]; !ok || n != r.Len {
		return fmt.Errorf("shmem: [%d, %d) is not an allocated range: freed twice?", r.Off, r.End())
	}
	delete(l.used, r.Off)
	return nil
}

// give adds a retired range to the free ranges and joins it with its neighbours.
func (l *freeList) give(r Range) {
	i, _ := slices.BinarySearchFunc(l.free, r, func(a, b Range) int { return int(min(max(a.Off-b.Off, -1), 1)) })
	from, to := i, i
	if i > 0 && l.free[i-1].End() == r.Off {
		from--
		r = Range{l.free[from].Off, l.free[from].Len + r.Len}
	}
	if i < len(l.free) && l.free[i].Off == r.End() {
		r.Len += l.free[i].Len
		to++
	}
	l.free = slices.Replace(l.free, from, to, r)
}

// inUse returns the total length of the allocated ranges in bytes.
func (l *freeList) inUse() int64 {
	var n int64
	for _, length := range l.used {
		n += length
	}
	return n
}

// largest returns the length of the longest free range.
func (l *freeList) largest() int64 {
	var n int64
	for _, f := range l.free {
		n = max(n, f.Len)
	}
	return n
}

// roundUp returns the next multiple of unit, a power of two.
func roundUp(n, unit int64) int64 { return (n + unit - 1) &^ (unit - 1) }
