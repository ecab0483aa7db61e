package observe

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"sagecomm/internal/pickle"
)

// dumper writes the dumps of groups that have failed. One death fails many groups at once, so one goroutine takes snapshots
// for all groups that have failed by the time that it begins, and repeats that for groups that fail meanwhile: a rank's
// file is written about twice, not once for each group. Another goroutine writes the snapshots. The file system may hang for
// ever, so the first goroutine waits for the second one only for roundTimeout, and no group is held while a file is written.
type dumper struct {
	files dumpFiles

	mu         sync.Mutex
	failed     []failedGroup   // groups without a snapshot yet; they are acquired
	round      chan struct{}   // closed when the files of the failed groups are written
	collecting bool            // the goroutine that takes snapshots is running
	waiting    []dumpFile      // files to write, at most one for each rank
	rounds     []chan struct{} // closed when the waiting files are written
	writing    bool            // the goroutine that writes files is running
	idle       chan struct{}   // closed when neither goroutine runs any more; nil: neither was ever started
}

// failedGroup is a group that is to be dumped. It is acquired until its snapshot is taken.
type failedGroup struct {
	group  Group
	prefix string
	absent []int // ranks that cannot write their own files
	at     time.Time
	own    bool // this rank's file is to be written as well
}

// dumpFile is a file that is to be written for one rank.
type dumpFile struct {
	prefix string
	rank   int // in the job
	groups []snapshot
	since  time.Time // an existing file that is newer stays; zero: it is replaced
}

// roundTimeout bounds how long the goroutine that takes snapshots waits until the files of its last ones are written. Groups
// that fail meanwhile share the next snapshots.
const roundTimeout = 200 * time.Millisecond

// add queues a group for its dump and returns a channel that is closed when the files are written.
// Requires: the group is acquired; the dumper releases it.
func (d *dumper) add(groups func() []Group, one failedGroup) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.round = make(chan struct{})
	}
	d.failed = append(d.failed, one)
	if !d.collecting {
		d.collecting = true
		if !d.writing {
			d.idle = make(chan struct{})
		}
		go d.collect(groups)
	}
	return d.round
}

// written returns a channel that is closed when no file is left to write.
func (d *dumper) written() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.collecting && !d.writing {
		nothing := make(chan struct{})
		close(nothing)
		return nothing
	}
	return d.idle
}

// collect takes snapshots until no failed group is left.
func (d *dumper) collect(groups func() []Group) {
	for {
		d.mu.Lock()
		failed, round := d.failed, d.round
		d.failed = nil
		if failed == nil {
			d.collecting = false
			d.stopped()
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		files := snapshots(groups, failed)
		d.mu.Lock()
		for _, f := range files {
			d.put(f)
		}
		d.rounds = append(d.rounds, round)
		if !d.writing {
			d.writing = true
			go d.write()
		}
		d.mu.Unlock()
		within(roundTimeout, round)
	}
}

// put adds a file, in the place of an older one of the same rank. Requires: d.mu.
func (d *dumper) put(f dumpFile) {
	i := slices.IndexFunc(d.waiting, func(w dumpFile) bool { return w.prefix == f.prefix && w.rank == f.rank })
	if i < 0 {
		d.waiting = append(d.waiting, f)
		return
	}
	if d.waiting[i].since.IsZero() {
		f.since = time.Time{}
	}
	d.waiting[i] = f
}

// write writes files until none is left.
func (d *dumper) write() {
	for {
		d.mu.Lock()
		files, rounds := d.waiting, d.rounds
		d.waiting, d.rounds = nil, nil
		if rounds == nil {
			d.writing = false
			d.stopped()
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		for _, f := range files {
			if err := d.writeOne(f); err != nil {
				Warn("the flight recorder's dump of the failure of group %q is missing: %v", f.groups[0].Group, err)
			}
		}
		for _, round := range rounds {
			close(round)
		}
	}
}

func (d *dumper) writeOne(f dumpFile) error {
	defer recoverFrom("a dump of the flight recorder")
	return d.files.write(f)
}

// stopped closes idle if no goroutine is left. Each goroutine calls it when it ends. Requires: d.mu.
func (d *dumper) stopped() {
	if !d.collecting && !d.writing {
		close(d.idle)
	}
}

// snapshots returns the files to write for failed groups and releases the groups.
func snapshots(all func() []Group, failed []failedGroup) (files []dumpFile) {
	defer recoverFrom("a dump of the flight recorder")
	groups := all()
	for _, one := range failed {
		if slices.Contains(groups, one.group) {
			one.group.Release()
		} else { // it is being destroyed, or is in failed twice
			groups = append(groups, one.group)
		}
	}
	defer releaseAll(groups)
	add := func(f dumpFile, of func() []snapshot) {
		same := func(known dumpFile) bool { return known.prefix == f.prefix && known.rank == f.rank }
		if slices.ContainsFunc(files, same) {
			return
		}
		if f.groups = of(); len(f.groups) > 0 {
			files = append(files, f)
		}
	}
	for _, one := range failed {
		if h := one.group.Header(); one.own {
			add(dumpFile{prefix: one.prefix, rank: h.GlobalRank(h.Rank)}, func() []snapshot { return ownFlights(groups) })
		}
	}
	for _, one := range failed {
		h := one.group.Header()
		for _, rank := range writtenBy(h.Rank, one.absent, one.group.Members()) {
			add(dumpFile{prefix: one.prefix, rank: h.GlobalRank(rank), since: one.at},
				func() []snapshot { return listedBy(one.group.Members()[rank].Process, groups) })
		}
	}
	return files
}

// dumpFiles writes files one after another and remembers the content of each.
type dumpFiles struct {
	mu      sync.Mutex // held while a file is written
	written map[string]writtenDump
}

// writtenDump describes the content of a file that was written.
type writtenDump struct {
	groups []int64 // numbers of their lanes
	at     time.Time
}

// sameFailure is longer than one failure takes to reach all groups of a process.
const sameFailure = 10 * time.Second

// write writes the file of one rank.
func (d *dumpFiles) write(file dumpFile) error {
	data, err := pickle.Marshal(traceFile(file.groups))
	if err != nil {
		return err
	}
	path, numbers := file.prefix+strconv.Itoa(file.rank), make([]int64, len(file.groups))
	for i, g := range file.groups {
		numbers[i] = g.pgID()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// A file that is newer than the failure stays, because another survivor or the rank itself has written it.
	if info, err := os.Stat(path); err == nil && !file.since.IsZero() && !info.ModTime().Before(file.since) {
		return nil
	}
	// Groups are destroyed one by one after a failure: a dump of the remaining groups does not replace one of all of them.
	last := d.written[path]
	if len(numbers) < len(last.groups) && time.Since(last.at) < sameFailure &&
		!slices.ContainsFunc(numbers, func(n int64) bool { return !slices.Contains(last.groups, n) }) {
		return nil
	}
	if d.written == nil {
		d.written = map[string]writtenDump{}
	}
	d.written[path] = writtenDump{numbers, time.Now()}
	return replaceFile(path, data)
}

// traceFile combines groups in the layout of torch's files.
func traceFile(groups []snapshot) pickle.Dict {
	var config, status pickle.Dict
	entries := []pickle.Dict{}
	var lost int64
	for _, s := range groups {
		g := s.inTorchTerms()
		config = append(config, pickle.Item{Key: s.traceGroup(), Value: g.Config})
		status = append(status, pickle.Item{Key: strconv.FormatInt(g.PGID, 10), Value: g.Status})
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
