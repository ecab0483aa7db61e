package topo

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

func (t tree) process() Process {
	const status = "proc/self/status"
	allowed := func(what string) CPUSet {
		set, err := ParseCPUSet(t.field(status, what))
		if err != nil {
			return nil
		}
		return set
	}
	return Process{
		CPUs:     allowed("Cpus_allowed_list"),
		Nodes:    allowed("Mems_allowed_list"),
		CPUQuota: t.cpuQuota(),
		Files:    t.deviceFiles(),
	}
}

// cpuQuota returns the smallest quota of this process's cgroups and of the cgroups around them, or 0 if there is none. Both
// versions of cgroups may be mounted.
func (t tree) cpuQuota() float64 {
	least := 0.0
	mounts := parseMounts(t.text("proc/self/mountinfo"))
	for line := range strings.Lines(t.text("proc/self/cgroup")) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		v2 := fields[1] == ""
		if !v2 && !slices.Contains(strings.Split(fields[1], ","), "cpu") {
			continue
		}
		for _, m := range mounts {
			if m.v2 != v2 || !v2 && !m.cpu {
				continue
			}
			for _, dir := range m.upwards(fields[2]) {
				quota := t.quotaV1(dir)
				if v2 {
					quota = quotaV2(t.text(dir + "/cpu.max"))
				}
				if quota > 0 && (least == 0 || quota < least) {
					least = quota
				}
			}
		}
	}
	return least
}

// quotaV2 reads a quota like "50000 100000" or "max 100000": microseconds of processor time in each period, and the period.
func quotaV2(text string) float64 {
	quota, period, ok := strings.Cut(text, " ")
	if !ok {
		return 0
	}
	return ratio(quota, period)
}

func (t tree) quotaV1(dir string) float64 {
	return ratio(t.text(dir+"/cpu.cfs_quota_us"), t.text(dir+"/cpu.cfs_period_us"))
}

func ratio(quota, period string) float64 {
	q, errQ := strconv.ParseInt(quota, 10, 64)
	p, errP := strconv.ParseInt(period, 10, 64)
	if errQ != nil || errP != nil || q <= 0 || p <= 0 { // v1 writes -1 for no limit
		return 0
	}
	return float64(q) / float64(p)
}

// cgroupMount is a mounted hierarchy of cgroups.
type cgroupMount struct {
	v2, cpu bool   // cpu: a v1 hierarchy with the cpu controller
	top     string // path of the mounted cgroup, as in /proc/self/cgroup
	point   string // mount point
}

// parseMounts reads /proc/self/mountinfo, see proc_pid_mountinfo(5).
func parseMounts(mountinfo string) (mounts []cgroupMount) {
	for line := range strings.Lines(mountinfo) {
		mounted, kind, ok := strings.Cut(strings.TrimSpace(line), " - ")
		left, right := strings.Fields(mounted), strings.Fields(kind)
		if !ok || len(left) < 6 || len(right) < 3 {
			continue
		}
		m := cgroupMount{top: unescape(left[3]), point: unescape(left[4])}
		switch right[0] {
		case "cgroup2":
			m.v2 = true
		case "cgroup":
			m.cpu = slices.Contains(strings.Split(right[2], ","), "cpu")
		default:
			continue
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// upwards returns the directories of a cgroup and of the cgroups around it, as far as they are mounted. In a container without
// a cgroup namespace, the container's own cgroup is mounted and has the path that the host sees.
func (m cgroupMount) upwards(cgroup string) (dirs []string) {
	inside := "/"
	switch clean := path.Clean("/" + cgroup); {
	case strings.HasPrefix(cgroup, "/.."): // outside of this cgroup namespace
	case m.top == "/":
		inside = clean
	case strings.HasPrefix(clean, m.top+"/"):
		inside = strings.TrimPrefix(clean, m.top)
	}
	for ; ; inside = path.Dir(inside) {
		dirs = append(dirs, strings.TrimPrefix(path.Join("/", m.point, inside), "/"))
		if inside == "/" {
			return dirs
		}
	}
}

// unescape replaces escapes like \040, which stand for white space and backslashes.
func unescape(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
