package pgbackend

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"sagecomm/algo"
	"sagecomm/internal/runner"
	"sagecomm/internal/topo"
)

// crowded reports whether a machine has more ranks of the group than processors that any of them may run on. It is the
// same on all ranks.
func (g *Group) crowded() bool {
	for _, m := range g.machinesInUse() {
		if m.ranks > len(m.free) {
			return true
		}
	}
	return false
}

// crowdedHere reports whether this machine has.
func (g *Group) crowdedHere() bool {
	here := g.machinesInUse()[g.members[g.rank].Arena.BootID]
	return here.ranks > len(here.free)
}

// processors returns the number of processors of all machines on which any rank of the group may run.
func (g *Group) processors() (n int) {
	for _, m := range g.machinesInUse() {
		n += len(m.free)
	}
	return n
}

// machineInUse is what a group uses of a machine, which may be several hosts.
type machineInUse struct {
	ranks int
	free  map[int]bool // processors on which any of the ranks may run
}

// machinesInUse returns the machines of the group, by boot id.
func (g *Group) machinesInUse() map[string]*machineInUse {
	all := map[string]*machineInUse{}
	for _, m := range g.members {
		at := all[m.Arena.BootID]
		if at == nil {
			at = &machineInUse{free: map[int]bool{}}
			all[m.Arena.BootID] = at
		}
		at.ranks++
		for _, cpu := range m.Processors {
			at.free[cpu] = true
		}
	}
	return all
}

// switching is the hop of a crowded group, in octaves: 8 us, the time until the kernel has switched ranks. With it the
// tables leave one-shot all_reduce between 32 and 64 KiB, which is where it stopped being the fastest among 4 ranks on
// 2 processors (docs/measured.md).
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

// geometry returns how long the group's messages and fifos may be.
func (g *Group) geometry() runner.Geometry {
	if g.shape().HasLongMessages() {
		return runner.Long
	}
	return runner.Short
}

// shape returns the shape of the group.
func (g *Group) shape() algo.Shape {
	if g.apart() {
		return algo.Shape{Size: g.size, Hosts: g.hosts, Apart: true}
	}
	return algo.Shape{Size: g.size}
}
