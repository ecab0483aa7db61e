package pgbackend

import (
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"sagecomm/algo"
	"sagecomm/internal/topo"
)

// crowded reports whether the group has more ranks than there are processors that any of them may run on. All ranks share
// memory and so run on one machine, even where host identities differ.
func (g *Group) crowded() bool { return g.size > len(g.processors()) }

// processors returns the processors that any rank of the group may run on.
func (g *Group) processors() map[int]bool {
	free := map[int]bool{}
	for _, m := range g.members {
		for _, cpu := range m.Processors {
			free[cpu] = true
		}
	}
	return free
}

// switching is the hop of a crowded group, in octaves: 8 us, the time until the kernel has switched ranks. With it the
// tables leave one-shot all_reduce between 32 and 64 KiB, which is where it stopped being the fastest among 4 ranks on 2
// processors (docs/measured.md).
const switching = 5

// processors returns the processors that this process may run on. If the system does not report
// them, it returns as many as Go counts.
func processors() (list topo.CPUSet) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(os.Getpid(), &set) != nil {
		for cpu := range runtime.NumCPU() {
			list = append(list, cpu)
		}
		return list
	}
	for cpu := range 8 * int(unsafe.Sizeof(set)) {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list
}

// shape returns the shape of the group. It lists the ranks of each host, hosts in the order of their first ranks, if
// several hosts have equally many ranks; otherwise plans see one flat group.
func (g *Group) shape() algo.Shape {
	shape := algo.Shape{Size: g.size}
	var list [][]int
	number := map[string]int{}
	for rank, m := range g.members {
		at, known := number[m.HostID]
		if !known {
			at = len(list)
			number[m.HostID] = at
			list = append(list, nil)
		}
		list[at] = append(list[at], rank)
	}
	shape.Spread = len(list)
	if len(list) > 1 && !slices.ContainsFunc(list, func(ranks []int) bool { return len(ranks) != len(list[0]) }) {
		shape.Hosts = list
	}
	return shape
}
