package shmem

import (
	"math"
	"os"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheTightestLimitCounts(t *testing.T) {
	meminfo := "MemTotal:  900 kB\nMemAvailable:  600 kB\nSwapFree: 100 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		bytes int64
		limit string
	}{
		{"machine", map[string]string{"proc/meminfo": meminfo}, 700 << 10, "the machine's free memory"},
		{"nothing known", nil, math.MaxInt64, "nothing"},
		{"outer group", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "5\n",
			"sys/fs/cgroup/a/memory.max": "5000\n", "sys/fs/cgroup/a/memory.current": "4000\n",
			"sys/fs/cgroup/a/memory.stat": "anon 7\ninactive_file 30\nactive_file 4\n"}, 1034, "/sys/fs/cgroup/a/memory.max"},
		{"container", map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "10\n", "sys/fs/cgroup/memory.current": "12\n"}, 0, "/sys/fs/cgroup/memory.max"},
		{"version 1", map[string]string{
			"proc/self/cgroup": "5:cpu:/c\n4:memory:/a/b\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "9\n", "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "100\n",
			"sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "60\n",
			"sys/fs/cgroup/memory/a/b/memory.stat":           "inactive_file 1\ntotal_inactive_file 7\n"}, 47, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes"},
		{"path outside of the mount", map[string]string{
			"proc/self/cgroup": "12:cpu:/x\n0::/../../y\n", "sys/fs/cgroup/memory.max": "10\n", "sys/fs/cgroup/memory.current": "2\n"}, 8, "/sys/fs/cgroup/memory.max"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, data := range c.files {
				root[name] = &fstest.MapFile{Data: []byte(data)}
			}
			if b := available(root); b != (budget{c.bytes, c.limit}) {
				t.Errorf("got %+v", b)
			}
		})
	}
}

func TestAllocBeyondTheLimitIsRefused(t *testing.T) {
	left := available(os.DirFS("/"))
	if left.bytes > 1<<45 {
		t.Skip("no limit on memory is readable here")
	}
	a, err := NewArena(Memfd, 1<<46, "")
	if err != nil {
		t.Skipf("no address space for the test: %v", err)
	}
	defer a.Close()
	_, err = a.Alloc(left.bytes*2, 0)
	refused(t, err, "are left in", "free memory")
	if a.InUse() != 0 {
		t.Errorf("%d bytes in use", a.InUse())
	}
}

// countingFS counts how often the machine's free memory is read.
type countingFS struct {
	fstest.MapFS
	looks int
}

func (c *countingFS) ReadFile(name string) ([]byte, error) {
	if name == "proc/meminfo" {
		c.looks++
	}
	return c.MapFS.ReadFile(name)
}

func TestAReadingOfTheLimitsIsReused(t *testing.T) {
	files := &countingFS{MapFS: fstest.MapFS{"proc/meminfo": {Data: []byte("MemAvailable: 1000 kB\n")}}}
	r, now := room{root: files}, time.Now()
	take := func(n int64, after time.Duration, looks int) {
		t.Helper()
		require.NoError(t, r.take(n, now.Add(after)))
		if files.looks != looks {
			t.Fatalf("%d looks, expected %d", files.looks, looks)
		}
	}
	const all = 1000 << 10
	take(1, 0, 1)
	take(all/128, lookServes, 1)
	take(all/64, lookServes, 2) // exceeds 1/sparePart of the last reading, so the limits are read again
	take(1, lookServes, 2)
	take(1, 3*lookServes, 3) // the last reading is too old
	if err := r.take(all+1, now.Add(3*lookServes)); err == nil || files.looks != 4 {
		t.Fatalf("took more than there is: %v, %d looks", err, files.looks)
	}
	files.MapFS["proc/meminfo"] = &fstest.MapFile{Data: []byte("MemAvailable: 1000000 kB\n")}
	take(smallPiece, 5*lookServes, 5)
	take(smallPiece, 5*lookServes, 5)
	take(smallPiece+1, 5*lookServes, 6) // longer than smallPiece, so they are read at once
	files.MapFS["proc/meminfo"] = &fstest.MapFile{Data: []byte("MemAvailable: 1 kB\n")}
	if err := r.take(1<<10+1, now.Add(7*lookServes)); err == nil {
		t.Fatal("took more than is left now")
	}
}
