package pgbackend

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sagecomm/internal/coll"
	"sagecomm/internal/env"
	"sagecomm/internal/pickle"
	"sagecomm/internal/runner"
)

// Dumps: files that torch's analyser reads, one per rank of the job, named by a prefix and the rank's number. Every rank
// writes its own when a group of it fails. A rank that has died or was stopped cannot: its records, and the list of them,
// lie in memory that the others have mapped (flight_list.go), so the first of them in each group that is not gone or
// missing itself writes the file of such a rank, unless somebody has since the failure.
//
// One death fails many groups at once. So one goroutine writes for all that have failed by the time that it begins, and
// goes round again for those that came meanwhile: a rank's file is written twice or so, not once for each group.

// dumper writes dumps, one after another.
type dumper struct {
	writing sync.Mutex // files, and what is known of them
	written map[string]writtenDump

	mu      sync.Mutex
	pending []failedGroup
	running bool
	round   chan struct{} // closed when what is pending has been written
	idle    chan struct{} // closed when nothing is pending any more; nil: nothing ever was
}

// writtenDump is what a file held when it was written.
type writtenDump struct {
	groups []uint64 // numbers
	at     time.Time
}

// failedGroup is a group that is to be dumped. It is held until it was.
type failedGroup struct {
	group  *Group
	prefix string
	absent []int // ranks that cannot write their own
	at     time.Time
	own    bool // this rank's file is to be written as well
}

const (
	// dumpTimeout is how long a failure is held back for its dump: the first process that ends because of it may end the
	// others, by a launcher's hand. It is far less than the time within which failures are told.
	dumpTimeout = 500 * time.Millisecond
	// sameFailure is longer than one failure takes to reach all groups of a process.
	sameFailure = 10 * time.Second
)

// exitTimeout is how long the end of the process, or of its groups, waits for files. Tests make it shorter.
var exitTimeout = 5 * time.Second

// torch's variables for the same thing: where dumps go, and whether failures are dumped.
var (
	dumpPlaces   = []string{"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
	dumpSwitches = []string{"TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_NCCL_DUMP_ON_TIMEOUT"}
)

// firstOf is the value of the first of some variables that is set and not empty.
func firstOf(environ []string, names []string) string {
	for _, name := range names {
		for _, entry := range environ {
			if value, ok := strings.CutPrefix(entry, name+"="); ok && value != "" {
				return value
			}
		}
	}
	return ""
}

// dumpPrefix is where dumps of failures go, empty if none are to be written.
func dumpPrefix(s *env.Settings, environ []string) string {
	switch chosen := env.FlightDump.Get(s); {
	case !chosen.Given:
		if off, err := strconv.ParseBool(firstOf(environ, dumpSwitches)); err == nil && !off {
			return ""
		}
		return firstOf(environ, dumpPlaces)
	case chosen.Value == env.NoDump:
		return ""
	default:
		return chosen.Value
	}
}

// dumpFailure is called when a group has failed and before its operations learn it.
func (g *Group) dumpFailure(f *coll.Failure) {
	prefix := dumpPrefix(g.settings, runner.Environ())
	if prefix == "" || f.Status == coll.Aborted || !g.acquire() {
		return
	}
	written := g.process.dumpSoon(failedGroup{g, prefix, g.silent(f), time.Now(), true})
	select {
	case <-written:
	case <-time.After(dumpTimeout):
	}
}

// dumpLate has the file of a rank written that died after the group had failed.
func (g *Group) dumpLate(rank int) {
	prefix := dumpPrefix(g.settings, runner.Environ())
	if f := g.cause.Load(); prefix == "" || f == nil || f.Status == coll.Aborted || !g.acquire() {
		return
	}
	g.process.dumpSoon(failedGroup{g, prefix, append(g.dead(), rank), time.Now(), false})
}

// dumpSoon returns what is closed when it has been written.
func (p *Process) dumpSoon(one failedGroup) <-chan struct{} {
	d := &p.dumps
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending == nil {
		d.round = make(chan struct{})
	}
	d.pending = append(d.pending, one)
	if !d.running {
		d.running, d.idle = true, make(chan struct{})
		go p.writeDumps()
	}
	return d.round
}

func (p *Process) writeDumps() {
	d := &p.dumps
	for {
		d.mu.Lock()
		list, round := d.pending, d.round
		d.pending = nil
		if list == nil {
			d.running = false
			close(d.idle)
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		p.writeRound(list)
		close(round)
	}
}

// dumpFile is what is to be written for one rank.
type dumpFile struct {
	prefix string
	rank   int // in the job
	groups []flightGroup
	since  time.Time // a file that is younger stays; zero: none does
}

// writeRound writes the files of some groups that have failed. Where they go may hang, so no group is held meanwhile.
func (p *Process) writeRound(list []failedGroup) {
	defer recoverFrom("a dump of the flight recorder")
	for _, file := range p.filesOf(list) {
		if err := p.dumps.write(file); err != nil {
			p.warn("the flight recorder's dump of the failure of group %q is missing: %v", list[0].group.name, err)
		}
	}
}

// filesOf is what is to be written for some groups that have failed. They are let go.
func (p *Process) filesOf(list []failedGroup) (files []dumpFile) {
	groups := p.held()
	defer func() { release(groups) }()
	for _, one := range list {
		if slices.Contains(groups, one.group) {
			one.group.release()
		} else { // it is being destroyed, or failed twice
			groups = append(groups, one.group)
		}
	}
	add := func(file dumpFile, of func() []flightGroup) {
		same := func(f dumpFile) bool { return f.prefix == file.prefix && f.rank == file.rank }
		if slices.ContainsFunc(files, same) {
			return
		}
		if file.groups = of(); len(file.groups) > 0 {
			files = append(files, file)
		}
	}
	for _, one := range list {
		if one.own {
			add(dumpFile{prefix: one.prefix, rank: one.group.globalRank(one.group.rank)}, func() []flightGroup { return ownFlights(groups) })
		}
	}
	for _, one := range list {
		for _, rank := range one.group.toWrite(one.absent) {
			add(dumpFile{prefix: one.prefix, rank: one.group.globalRank(rank), since: one.at},
				func() []flightGroup { return listedBy(one.group.members[rank].id(), groups) })
		}
	}
	return files
}

// finishDumps waits for what is being written, not for ever.
func (p *Process) finishDumps() {
	p.dumps.mu.Lock()
	idle := p.dumps.idle
	p.dumps.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(exitTimeout):
		p.warn("the process ends while the flight recorder is dumped: the file system is slow")
	}
}

// Dump writes this rank's file now. An empty prefix means the one of failures.
func (p *Process) Dump(prefix string) error {
	groups := p.held()
	list := ownFlights(groups)
	rank := 0
	if len(groups) > 0 {
		rank = groups[0].globalRank(groups[0].rank)
		if prefix == "" {
			prefix = dumpPrefix(groups[0].settings, runner.Environ())
		}
	}
	release(groups)
	if prefix == "" {
		return fmt.Errorf("sagecomm: where is the flight recorder's dump to go? Give a prefix, or set %s or %s", env.FlightDump.Name(), dumpPlaces[0])
	}
	if len(list) == 0 {
		return errors.New("sagecomm: there is no group whose flight recorder is on")
	}
	return p.dumps.write(dumpFile{prefix: prefix, rank: rank, groups: list})
}

// ownFlights is what this process's recorders know.
func ownFlights(groups []*Group) (list []flightGroup) {
	for _, g := range groups {
		if g.flights > 0 {
			list = append(list, g.flightGroup())
		}
	}
	return list
}

// held is the groups in the order of their creation, none of which goes away until release.
func (p *Process) held() []*Group {
	return slices.DeleteFunc(p.inOrder(), func(g *Group) bool { return !g.acquire() })
}

func release(groups []*Group) {
	for _, g := range groups {
		g.release()
	}
}

// silent are the ranks that cannot write a dump themselves: they have died, or have not come to the operation in which
// that was noticed.
func (g *Group) silent(f *coll.Failure) []int {
	silent := g.dead()
	if f.Status == coll.PeerFailure || f.Status == coll.Timeout {
		silent = append(silent, f.Rank)
	}
	if f.Status == coll.Timeout && f.Sequence > 0 {
		for rank := range g.size {
			if last, _ := g.run.LastCall(rank); last < f.Sequence {
				silent = append(silent, rank)
			}
		}
	}
	silent = slices.DeleteFunc(silent, func(rank int) bool { return rank < 0 || rank >= g.size || rank == g.rank })
	slices.Sort(silent)
	return slices.Compact(silent)
}

// toWrite are those of the absent ranks, which cannot write their own files, that it is for this rank to write for.
func (g *Group) toWrite(absent []int) []int {
	for rank := range g.rank {
		if !slices.Contains(absent, rank) {
			return nil // that one does
		}
	}
	return absent
}

func dumpPath(prefix string, rank int) string { return prefix + strconv.Itoa(rank) }

// write makes the file of one rank.
func (d *dumper) write(file dumpFile) error {
	data, err := pickle.Marshal(traceFile(file.groups))
	if err != nil {
		return err
	}
	path, numbers := dumpPath(file.prefix, file.rank), make([]uint64, len(file.groups))
	for i, g := range file.groups {
		numbers[i] = g.ID
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	// What was written since the failure stays: another survivor has done it, or the rank itself.
	if info, err := os.Stat(path); err == nil && !file.since.IsZero() && !info.ModTime().Before(file.since) {
		return nil
	}
	// Groups go one by one after a failure: what is left of them does not replace what all of them said.
	last := d.written[path]
	if len(numbers) < len(last.groups) && time.Since(last.at) < sameFailure &&
		!slices.ContainsFunc(numbers, func(n uint64) bool { return !slices.Contains(last.groups, n) }) {
		return nil
	}
	if d.written == nil {
		d.written = map[string]writtenDump{}
	}
	d.written[path] = writtenDump{numbers, time.Now()}
	return replaceFile(path, data)
}

// traceFile puts groups together as torch has them in one file.
func traceFile(groups []flightGroup) pickle.Dict {
	var config, status pickle.Dict
	entries := []pickle.Dict{}
	var lost int64
	for _, g := range groups {
		config = append(config, pickle.Item{Key: g.Group, Value: g.Config})
		status = append(status, pickle.Item{Key: strconv.FormatUint(g.ID-1, 10), Value: g.Status})
		lost += int64(g.Total) - int64(len(g.Entries))
		entries = append(entries, g.Entries...)
	}
	slices.SortStableFunc(entries, func(a, b pickle.Dict) int {
		return cmp.Compare(a.Get("time_created_ns").(int64), b.Get("time_created_ns").(int64))
	})
	for i, e := range entries {
		e.Set("record_id", lost+int64(i))
	}
	return pickle.Dict{{Key: "version", Value: traceVersion}, {Key: "pg_config", Value: config},
		{Key: "pg_status", Value: status}, {Key: "entries", Value: entries}}
}

// replaceFile writes a file of which nobody ever sees a part. The error names that file, not the one that becomes it.
func replaceFile(path string, data []byte) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return cannotWrite(path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // there is nothing more to do about it
		return cannotWrite(path, err)
	}
	return nil
}

func cannotWrite(path string, err error) error {
	var of *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &of):
		err = of.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return fmt.Errorf("%s cannot be written: %w", path, err)
}
