package topo

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCPUQuota(t *testing.T) {
	const (
		v1 = `30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct`
		v2 = `33 24 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw`
	)
	for _, c := range []struct {
		name, cgroup, mounts string
		files                []string
		want                 float64
	}{
		{"none", "0::/a", v2, nil, 0},
		{"no limit", "0::/a", v2, []string{"sys/fs/cgroup/a/cpu.max: max 100000"}, 0},
		{"own", "0::/a", v2, []string{"sys/fs/cgroup/a/cpu.max: 250000 100000"}, 2.5},
		{"the least of those around", "0::/a/b/c", v2, []string{
			"sys/fs/cgroup/a/cpu.max: 50000 100000", "sys/fs/cgroup/a/b/cpu.max: 20000 10000",
			"sys/fs/cgroup/a/b/c/cpu.max: max 100000",
		}, 0.5},
		{"not a neighbour's", "0::/a", v2, []string{"sys/fs/cgroup/ab/cpu.max: 50000 100000"}, 0},
		{"version 1", `4:cpu,cpuacct:/a\n3:cpuset:/b`, v1, []string{
			"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us: 300000", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us: 100000",
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us: -1", "sys/fs/cgroup/cpu/cpu.cfs_period_us: 100000",
		}, 3},
		{"version 1 without the controller", "4:cpuset:/a", v1, []string{
			"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us: 300000", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us: 100000",
		}, 0},
		{"a container without a cgroup namespace", "0::/docker/1f", strings.Replace(v2, " / ", " /docker/1f ", 1), []string{
			"sys/fs/cgroup/cpu.max: 150000 100000",
		}, 1.5},
		{"below the cgroup that is mounted", "0::/docker/1f/a", strings.Replace(v2, " / ", " /docker/1f ", 1), []string{
			"sys/fs/cgroup/a/cpu.max: 150000 100000",
		}, 1.5},
		{"outside of the namespace", "0::/../a", v2, []string{
			"sys/fs/cgroup/cpu.max: 700000 100000", "sys/fs/cgroup/a/cpu.max: 150000 100000",
		}, 7},
		{"a mount with a space in it", "0::/", strings.Replace(v2, "/sys/fs/cgroup", `/my\040groups`, 1), []string{
			"my groups/cpu.max: 150000 100000",
		}, 1.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := append([]string{"proc/self/cgroup: " + c.cgroup, "proc/self/mountinfo: " + c.mounts}, c.files...)
			if got := Read(unpack(t, strings.Join(lines, "\n"))).Process.CPUQuota; got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// With any content of the files, Read does not panic, hang or allocate without bound, and JSON can hold the result.
func FuzzTexts(f *testing.F) {
	for _, text := range []string{
		"0::/a/b", "4:cpu,cpuacct:/a", "33 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "50000 100000", "max 100000",
		"400 Gb/sec (4X NDR)", "Inf Gb/sec", "107520K", "9223372036854775807M", "MemTotal: 24684084 kB",
		"Node 0 MemTotal:       24684084 kB", "10 21", "0x030200", `\040\x\777\04`, "a: \xff",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, bytes := range []int64{cacheBytes(text), kibibytes(text)} {
			if bytes < 0 {
				t.Fatalf("%q has %d bytes", text, bytes)
			}
		}
		for _, m := range parseMounts(text) {
			for _, dir := range m.upwards(text) {
				if strings.HasPrefix(dir, "/") || strings.Contains("/"+dir+"/", "/../") {
					t.Fatalf("%q leads to %q", text, dir)
				}
			}
		}
		row := distances(text, len(strings.Fields(text)))
		if quota := quotaV2(text); quota < 0 {
			t.Fatalf("%q is a quota of %v", text, quota)
		}
		for _, value := range []any{portRate(text), quotaV2(text), row, unescape(text)} {
			if _, err := json.Marshal(value); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
		}
	})
}
