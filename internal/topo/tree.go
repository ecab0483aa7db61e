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

// tree is a directory that contains a sys and a proc directory. Paths in it have no leading slash.
type tree struct {
	root   string
	opened func(path string) // is called with every path that is read, for recording; may be nil
}

// fileLimit bounds the bytes that are read of a file. Only /proc/cpuinfo of a very large machine is longer, and its beginning
// is enough.
const fileLimit = 1 << 20

func (t tree) at(path string) string {
	if t.opened != nil {
		t.opened(path)
	}
	return filepath.Join(t.root, path)
}

// text returns a file's content without the white space around it, or "" if the file cannot be read. Some files cannot be read
// at times, such as the speed of an interface that is down.
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

// field returns the text behind "name:" in a file of lines with names. In the meminfo of a NUMA node, the node's own name
// precedes the name of the field.
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

// positive reads a file that holds a number above 0. It returns 0 if there is no such number.
func (t tree) positive(path string) int64 {
	n, _ := t.number(path)
	return max(n, 0)
}

func (t tree) id(path string) ID {
	n, ok := t.number(path)
	return asID(n, ok)
}

// asID returns a number of the kernel as an ID. The kernel itself writes -1 for an unknown number.
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

// names returns the sorted names of a directory's entries. An entry may have been removed since.
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

// numbered returns the numbers n of the directories "<prefix>n" in a directory, in ascending order.
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

// link returns the last element of a symbolic link's target.
func (t tree) link(path string) string {
	target, err := os.Readlink(t.at(path))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pci returns the address of the PCI function of a device, or "" if there is none. The function may be a parent of the device,
// as for virtio.
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

// kibibytes returns the number of bytes of a text like "24684084 kB", or 0.
func kibibytes(text string) int64 {
	digits, ok := strings.CutSuffix(text, " kB")
	return scaled(digits, 1<<10, ok)
}

// cacheBytes returns the number of bytes of a text like "107520K", or 0.
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
