package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// packages puts every cpu that is online into exactly one core of one package. If the files of several cpus contradict each
// other about a core, the lowest cpu counts.
func (t tree) packages(online CPUSet) []Package {
	var packages []Package
	placed := map[int]bool{}
	for _, cpu := range online {
		if placed[cpu] {
			continue
		}
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
		core := Core{ID: t.id(dir + "core_id"), CPUs: CPUSet{cpu}}
		for _, sibling := range t.cpus(dir + "thread_siblings_list") {
			if sibling > cpu && online.contains(sibling) && !placed[sibling] {
				core.CPUs = append(core.CPUs, sibling)
			}
		}
		for _, c := range core.CPUs {
			placed[c] = true
		}
		id := t.id(dir + "physical_package_id")
		i := slices.IndexFunc(packages, func(p Package) bool { return p.ID == id })
		if i < 0 {
			i = len(packages)
			packages = append(packages, Package{ID: id})
		}
		packages[i].Cores = append(packages[i].Cores, core)
		packages[i].CPUs = append(packages[i].CPUs, core.CPUs...)
	}
	for i := range packages {
		packages[i].CPUs = packages[i].CPUs.sorted()
	}
	slices.SortFunc(packages, func(a, b Package) int { return cmp.Compare(a.ID, b.ID) })
	return packages
}

// caches returns the caches for data of level 2 and above. The files list a cache at each of its cpus; caches returns it once.
func (t tree) caches(online CPUSet) []Cache {
	var caches []Cache
	seen := map[string]bool{}
	for _, cpu := range online {
		all := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache", cpu)
		for _, index := range t.numbered(all, "index") {
			dir := fmt.Sprintf("%s/index%d/", all, index)
			level, shared := t.positive(dir+"level"), t.cpus(dir+"shared_cpu_list")
			key := fmt.Sprint(level, shared)
			if level < 2 || level > 9 || len(shared) == 0 || seen[key] || t.text(dir+"type") == "Instruction" {
				continue
			}
			seen[key] = true
			caches = append(caches, Cache{Level: int(level), Bytes: cacheBytes(t.text(dir + "size")), CPUs: shared})
		}
	}
	slices.SortStableFunc(caches, func(a, b Cache) int { return cmp.Compare(a.Level, b.Level) })
	return caches
}

func (t tree) nodes() []Node {
	const all = "sys/devices/system/node"
	numbers := t.numbered(all, "node")
	var nodes []Node
	for _, n := range numbers {
		dir := fmt.Sprintf("%s/node%d/", all, n)
		nodes = append(nodes, Node{
			ID:          ID(n),
			CPUs:        t.cpus(dir + "cpulist"),
			MemoryBytes: kibibytes(t.field(dir+"meminfo", "MemTotal")),
			Distances:   distances(t.text(dir+"distance"), len(numbers)),
		})
	}
	return nodes
}

// distances reads a node's row of distances, which has a number for each node that is online.
func distances(text string, nodes int) []int {
	fields := strings.Fields(text)
	if len(fields) != nodes {
		return nil
	}
	row := make([]int, nodes)
	for i, f := range fields {
		n, err := strconv.ParseUint(f, 10, 16)
		if err != nil {
			return nil
		}
		row[i] = int(n)
	}
	return row
}
