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

// A reservation of more pages than the system has need not fail: the kernel may kill a process instead. So the free memory is
// checked first. The result is a snapshot, because other processes take memory too, but it turns a wrong size into an error.

// budget is the memory that can still be taken, and the name of its limit.
type budget struct {
	bytes int64
	limit string
}

// hierarchy describes where a version of memory control groups keeps its numbers.
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

// available finds the tightest limit: the machine, or a memory control group around this process. A limit that cannot
// be read does not count. root is the file system's root.
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
			// The kernel can reclaim the page cache of files; pages of shared memory are not part of these two numbers.
			left := max(limit-used+stat[h.statPrefix+"inactive_file"]+stat[h.statPrefix+"active_file"], 0)
			if left < b.bytes {
				b = budget{left, "/" + dir + "/" + h.max}
			}
		}
	}
	return b
}

// ownGroup returns the path of this process's control group without its leading slash. Inside a container the path is usually
// empty, and the limits lie in the root of the mount. A path that leads out of the mount counts as empty too.
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

// number reads a file that holds one number. It returns false for "max" and any other content.
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

// room is the memory that this process may still take. Reading the limits opens some twenty files, about as much work as the
// rest of making a group. Groups take small pieces when they are made, so one reading serves small pieces for a while. It
// serves only a small part of the memory that was left, because other processes read the limits and take memory too.
type room struct {
	mu     sync.Mutex
	root   fs.FS
	looked time.Time // the zero time: never
	spare  int64     // bytes that may be taken without another look
}

const (
	lookServes = time.Second
	smallPiece = 512 << 10 // bytes; for a larger piece the limits are always read
	sparePart  = 64        // 1/sparePart of the memory that was left may be taken without another reading
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

// mib formats a number of bytes in MiB for messages.
func mib(n int64) string { return strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64) + " MiB" }
