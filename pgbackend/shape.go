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

// crowded reports whether a machine has more ranks of the group than processors that any of them may run on. It is the same on all ranks.
func (g *Group) crowded() bool {
	return slices.ContainsFunc(g.members, func(m member) bool { return g.crowdedOn(m.Arena.BootID) })
}

// crowdedHere reports whether this machine has.
func (g *Group) crowdedHere() bool { return g.crowdedOn(g.members[g.rank].Arena.BootID) }

// crowdedOn reports whether a machine has. A machine may be several hosts.
func (g *Group) crowdedOn(boot string) bool {
	ranks := 0
	for _, m := range g.members {
		if m.Arena.BootID == boot {
			ranks++
		}
	}
	return ranks > g.processorsOn(boot)
}

// processorsOn returns the number of processors of a machine on which any rank of the group may run.
func (g *Group) processorsOn(boot string) int {
	free := map[int]bool{}
	for _, m := range g.members {
		if m.Arena.BootID != boot {
			continue
		}
		for _, cpu := range m.Processors {
			free[cpu] = true
		}
	}
	return len(free)
}

// processors returns the number of processors of all machines on which any rank of the group may run.
func (g *Group) processors() (n int) {
	seen := map[string]bool{}
	for _, m := range g.members {
		if boot := m.Arena.BootID; !seen[boot] {
			seen[boot] = true
			n += g.processorsOn(boot)
		}
	}
	return n
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

// shape returns the shape of the group.
func (g *Group) shape() algo.Shape {
	if g.apart() {
		return algo.Shape{Size: g.size, Hosts: g.hosts, Apart: true}
	}
	return algo.Shape{Size: g.size}
}
