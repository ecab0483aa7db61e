package shmem

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The kernel need not refuse pages beyond the memory that is left; it may kill a process instead. So this file reads first how
// much memory is left. Other processes change that number at any time; it is good enough to turn a wrong size into an error.

// budget is the memory that can still be taken, with the limit that determines it.
type budget struct {
	bytes int64
	limit string
}

// hierarchy lists the files of one version of memory control groups.
type hierarchy struct {
	mount      string
	mark       string // what precedes the group's path in /proc/self/cgroup, after the first colon
	max        string
	current    string
	statPrefix string
}

var hierarchies = []hierarchy{
	{"sys/fs/cgroup", ":/", "memory.max", "memory.current", ""},
	{"sys/fs/cgroup/memory", "memory:/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"},
}

// available returns the tightest limit: that of the machine, or of a memory control group that contains this process. It ignores
// a limit that cannot be read. root is the root of the file system.
func available(root fs.FS) budget {
	b := budget{math.MaxInt64, "nothing"}
	if m := table(root, "proc/meminfo"); m["MemAvailable"] > 0 {
		b = budget{(m["MemAvailable"] + m["SwapFree"]) << 10, "the machine's free memory"}
	}
	for _, h := range hierarchies {
		for dir := path.Join(h.mount, h.ownGroup(root)); strings.HasPrefix(dir, h.mount); dir = path.Dir(dir) {
			limit, limited := number(root, dir+"/"+h.max)
			used, known := number(root, dir+"/"+h.current)
			if !limited || !known {
				continue
			}
			stat := table(root, dir+"/memory.stat")
			// The kernel drops the page cache of files when it needs memory; it does not count shared memory there.
			left := max(limit-used+stat[h.statPrefix+"inactive_file"]+stat[h.statPrefix+"active_file"], 0)
			if left < b.bytes {
				b = budget{left, "/" + dir + "/" + h.max}
			}
		}
	}
	return b
}

// ownGroup returns the path of this process's control group without its leading slash. In a container the path is usually empty,
// and the limits lie in the root of the mount. ownGroup also returns an empty path for one that leads out of the mount.
func (h *hierarchy) ownGroup(root fs.FS) string {
	data, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), ":")
		if group, ok := strings.CutPrefix(line, h.mark); ok && !strings.Contains(group, "..") {
			return group
		}
	}
	return ""
}

// number reads a file that holds one number. It returns false for "max" and any other text.
func number(root fs.FS, name string) (int64, bool) {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}

// table reads lines that consist of a name and a number, as in meminfo ("MemFree:  12 kB") and memory.stat ("file 12").
func table(root fs.FS, name string) map[string]int64 {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return nil
	}
	t := make(map[string]int64)
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) >= 2 {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				t[strings.TrimSuffix(f[0], ":")] = n
			}
		}
	}
	return t
}

// room is the memory that this process may still take. Reading the limits opens some twenty files, which costs about as much as
// the rest of making a group. So the small pieces that groups take when they are made use the result of the last reading, for a
// while and for a small part of the memory that was left, because other processes take memory too.
type room struct {
	mu     sync.Mutex
	root   fs.FS
	looked time.Time // when the limits were read; the zero time: never
	spare  int64     // bytes that may be taken before the limits are read again
}

const (
	lookServes = time.Second
	smallPiece = 512 << 10 // bytes; for a larger piece the limits are read at once
	sparePart  = 64        // of the memory that was left, 1/sparePart may be taken before the limits are read again
)

var processRoom = room{root: os.DirFS("/")}

// take returns an error if n bytes do not fit into the memory that is left.
func (r *room) take(n int64, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > min(r.spare, smallPiece) || now.Sub(r.looked) > lookServes {
		left := available(r.root)
		if err := left.check(n); err != nil {
			return err
		}
		r.looked, r.spare = now, (left.bytes-n)/sparePart
		return nil
	}
	r.spare -= n
	return nil
}

// check returns an error if n bytes do not fit into the budget.
func (b budget) check(n int64) error {
	if n <= b.bytes {
		return nil
	}
	return fmt.Errorf("only %s are left in %s", mib(b.bytes), b.limit)
}

// mib returns a number of bytes as a text in MiB.
func mib(n int64) string { return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB" }
