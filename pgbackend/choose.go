package pgbackend

import (
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sagecomm/algo"
	"sagecomm/internal/env"
	"sagecomm/internal/runner"
	"sagecomm/internal/topo"
)

// tuningSettings are what the users of a group's ranks have set about the choice of algorithms. Ranks compare their fingerprint.
type tuningSettings struct {
	tune     algo.Tune
	text     string // SAGECOMM_TUNE
	file     *algo.File
	fileName string
	fileHash uint64
	machine  string // as a tuning file calls this one
	probe    bool
}

func readTuningSettings(s *env.Settings) (w tuningSettings, err error) {
	w.text, w.fileName, w.probe = env.Tune.Get(s), env.TuneFile.Get(s), env.Probe.Get(s)
	if w.tune, err = algo.ParseTune(w.text); err != nil || w.fileName == "" {
		return w, err
	}
	text, err := readTuning(w.fileName)
	if err != nil {
		return w, fmt.Errorf("sagecomm: %s: %w", env.TuneFile.Name(), err)
	}
	if w.file, err = algo.ParseFile(w.fileName, text); err != nil {
		return w, fmt.Errorf("sagecomm: %s: %w", env.TuneFile.Name(), err)
	}
	h := fnv.New64a()
	_, _ = h.Write(text)
	w.fileHash, w.machine = h.Sum64(), Machine()
	return w, nil
}

// longestTuning is more bytes than entries for all machines of a data centre take.
const longestTuning = 16 << 20

// readTuning reads a file that is one: a pipe or a device would keep the rank, and all that wait for it.
func readTuning(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // as without it, but for pipes
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", name)
	case info.Size() > longestTuning:
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d", name, info.Size(), longestTuning)
	}
	return io.ReadAll(io.LimitReader(f, longestTuning))
}

// Machine is what a tuning file calls this machine: its processor and how many of them it has.
func Machine() string {
	host := topo.Read("/")
	return fmt.Sprintf("%s, %d cpus", host.CPUModel, len(host.Online))
}

// fingerprint is the same for tuningSettings that are the same, in libraries that predict from the same parameters.
func (w tuningSettings) fingerprint() uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, w.text, w.fileHash, w.probe, algo.Geometry(), algo.DefaultParams())
	return h.Sum64()
}

// choice is what the tables of a group follow from.
type choice struct {
	tuningSettings uint64
	machine, shape string
	found          probeResult
}

// selector is one for all groups that have their tables alike: to price the plans of large groups takes tenths of a
// second.
func (p *Process) selector(shape algo.Shape, machine string, w tuningSettings, found probeResult) (*algo.Selector, error) {
	key := choice{w.fingerprint(), machine, fmt.Sprint(shape), found}
	p.choosing.Lock() // one at a time: others may want the same
	defer p.choosing.Unlock()
	if known := p.selectors[key]; known != nil {
		return known, nil
	}
	tune := w.tune
	if w.file != nil {
		file, err := w.file.For(w.fileName, machine, shape)
		if err != nil {
			return nil, err
		}
		tune = tune.Over(file)
	}
	made, err := algo.NewSelector(shape, algo.DefaultParams().Scaled(found.scale()), tune)
	if err != nil {
		return nil, err
	}
	p.selectors[key] = made
	return made, nil
}

// choose makes the tables of the group, whose members are known.
func (g *Group) choose() (err error) {
	shape := g.shape()
	list := make([]probeResult, g.size)
	for rank, m := range g.members {
		list[rank] = m.Probe
	}
	found := agree(list)
	if g.tuningSettings.probe && g.crowded() {
		found[0] = max(found[0], switching)
	}
	g.selector, err = g.process.selector(shape, g.members[0].Machine, g.tuningSettings, found)
	return err
}

// untuned says what a tuning file has nothing for, if so.
func (g *Group) untuned() string {
	w, shape := g.tuningSettings, g.shape()
	if w.file == nil || w.file.Has(g.members[0].Machine, shape) {
		return ""
	}
	return fmt.Sprintf("%s has no entry for %d ranks on %d hosts of %q: python -m sagecomm tune measures them",
		w.fileName, shape.Size, shape.HostCount(), g.members[0].Machine)
}

// crowded says whether the group has more ranks than processors that they may run on, all together. They share memory, so
// they are on one machine, whatever their hosts are called.
func (g *Group) crowded() bool {
	free := map[int]bool{}
	for _, m := range g.members {
		for _, cpu := range m.Processors {
			free[cpu] = true
		}
	}
	return g.size > len(free)
}

// switching is how long a hop is where ranks take turns on processors, in octaves: 8 us, until the kernel has switched.
// With it one-shot all_reduce ends where it was measured to end among 4 ranks on 2 processors, between 32 and 64 KiB
// (docs/measured.md).
const switching = 5

// processors are those that this process may run on: as many as Go counts, if the system does not tell which.
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

// shape has the ranks of each host in the order of their first ranks, if there are several with equally many: else plans
// take the group as it is.
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

// probeResult are what a probe has found: how many times as long as on the machine of the defaults a hop, a byte copied, a
// byte taken from another core and a byte reduced take, as powers of two. Coarse, so that the same machine gives the same
// tables every time: prediction is not much better than that, and other tables mean sums in another order.
type probeResult [4]int8

func (f probeResult) scale() algo.Scale {
	x := func(i int) float64 { return math.Exp2(float64(f[i])) }
	return algo.Scale{Hop: x(0), Copy: x(1), Far: x(2), Reduce: x(3)}
}

// What the probe gives on the machine of algo.DefaultParams, whose two processors are threads of one core: the medians of
// 20 processes (docs/measured.md).
var usual = runner.Probe{Hop: 52e-9, Copy: 22e-12, Far: 26e-12, Reduce: 17e-12}

// probeBudget bounds what the first group of a process waits for it.
const probeBudget = 50 * time.Millisecond

// probe measures once in a process, if then each of that many ranks can have two processors for it: what two threads
// find that share one says nothing about memory.
func (p *Process) probe(ranks int) probeResult {
	p.probing.Do(func() {
		if runtime.NumCPU() < 2*ranks {
			return
		}
		if found, ok := runner.RunProbe(probeBudget); ok {
			p.found = probeResult{octaves(found.Hop, usual.Hop), octaves(found.Copy, usual.Copy), octaves(found.Far, usual.Far), octaves(found.Reduce, usual.Reduce)}
		}
	})
	return p.found
}

// same is how many times as long, or as short, still counts as the same: the least and the most of 20 processes on one
// machine were 0.28 and 3.8 times the median of a hop, 0.8 and 3.2 times that of a byte taken from another core.
const same = 4

// octaves is a ratio as a power of two, 0 for what is the same or was not measured.
func octaves(got, usual float64) int8 {
	if got <= 0 || got < same*usual && got > usual/same {
		return 0
	}
	return int8(math.Round(math.Log2(got / usual)))
}

// mostOctaves is more than machines differ: what is further off is a mistake.
const mostOctaves = 8

// agree is what all ranks go by: of each the lower median.
func agree(list []probeResult) (out probeResult) {
	for i := range out {
		values := make([]int8, len(list))
		for rank, f := range list {
			values[rank] = max(-mostOctaves, min(mostOctaves, f[i]))
		}
		slices.Sort(values)
		out[i] = values[(len(values)-1)/2]
	}
	return out
}
