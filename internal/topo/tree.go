package topo

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// tree is a directory that has a /sys and a /proc. Paths in it have no leading slash.
type tree struct {
	root   string
	opened func(path string) // told of every path that is looked at, for recording; may be nil
}

// fileLimit is enough for all that is read: of /proc/cpuinfo of a very large machine the beginning does.
const fileLimit = 1 << 20

func (t tree) at(path string) string {
	if t.opened != nil {
		t.opened(path)
	}
	return filepath.Join(t.root, path)
}

// text is a file's content without the white space around it; "" if it cannot be read. Some files cannot at times: the
// speed of an interface that is down.
func (t tree) text(path string) string {
	f, err := os.Open(t.at(path))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, fileLimit))
	if err != nil || !utf8.Valid(b) {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// field is the text behind "name:" in a file of such lines. A NUMA node's meminfo has its own name before that.
func (t tree) field(path, name string) string {
	for line := range strings.Lines(t.text(path)) {
		key, value, ok := strings.Cut(line, ":")
		key = strings.TrimSpace(key)
		if ok && (key == name || strings.HasPrefix(key, "Node ") && strings.HasSuffix(key, " "+name)) {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (t tree) number(path string) (int64, bool) {
	n, err := strconv.ParseInt(t.text(path), 10, 64)
	return n, err == nil
}

// positive is a number above 0; 0 if there is none.
func (t tree) positive(path string) int64 {
	n, _ := t.number(path)
	return max(n, 0)
}

func (t tree) id(path string) ID {
	n, ok := t.number(path)
	return asID(n, ok)
}

// asID takes what the kernel numbers. It writes -1 for what it does not know itself.
func asID(n int64, ok bool) ID {
	if !ok || n < 0 || n > maxCPU {
		return unknown
	}
	return ID(n)
}

func (t tree) cpus(path string) CPUSet {
	set, err := ParseCPUSet(t.text(path))
	if err != nil {
		return nil
	}
	return set
}

// names are what a directory has, sorted. What they stand for may be gone.
func (t tree) names(path string) (names []string) {
	entries, err := os.ReadDir(t.at(path))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// numbered are the numbers n of the directories "<prefix>n" in a directory, ascending.
func (t tree) numbered(path, prefix string) []int {
	var set CPUSet
	for _, name := range t.names(path) {
		digits, ok := strings.CutPrefix(name, prefix)
		n, err := parseCPU(digits)
		if !ok || err != nil {
			continue
		}
		if info, err := os.Stat(t.at(path + "/" + name)); err == nil && info.IsDir() {
			set = append(set, n)
		}
	}
	return set.sorted()
}

// link is the last element of what a symbolic link points to.
func (t tree) link(path string) string {
	target, err := os.Readlink(t.at(path))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pci is the address of the PCI function that a device is, or is part of: a virtio device is a child of one. "" if it
// is on none.
func (t tree) pci(device string) string {
	path, err := filepath.EvalSymlinks(t.at(device))
	if err != nil {
		return ""
	}
	for ; path != filepath.Dir(path); path = filepath.Dir(path) {
		if pciAddress.MatchString(filepath.Base(path)) {
			return filepath.Base(path)
		}
	}
	return ""
}

// kibibytes are the bytes of "24684084 kB", or 0.
func kibibytes(text string) int64 {
	digits, ok := strings.CutSuffix(text, " kB")
	return scaled(digits, 1<<10, ok)
}

// cacheBytes are the bytes of "107520K", or 0.
func cacheBytes(text string) int64 {
	for suffix, unit := range map[string]int64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
		if digits, ok := strings.CutSuffix(text, suffix); ok {
			return scaled(digits, unit, true)
		}
	}
	return scaled(text, 1, true)
}

func scaled(digits string, unit int64, ok bool) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	if !ok || err != nil || n < 0 || n > (1<<62)/unit {
		return 0
	}
	return n * unit
}
