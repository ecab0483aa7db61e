package topo

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A recorded tree is one file, testdata/<name>.tree, of lines
//
//	# a comment
//	path: content            a file; \n in the content is a new line
//	path -> target           a symbolic link
//	path/                    a directory that may be empty
//
// `go test ./internal/topo -run RecordOf -record <name>` records the machine that it runs on. The tree contains only the files
// that [Read] reads, without the host name, the boot id and mounts other than those of cgroups. Then
// `go test ./internal/topo -update` writes the golden <name>.json, and tests/python/test_topo.py needs a text for it.

// unpack writes the tree of a fixture to a directory and returns its root.
func unpack(t *testing.T, text string) string {
	t.Helper()
	root := t.TempDir()
	for number, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := unpackLine(root, line); err != nil {
			t.Fatalf("line %d, %q: %v", number+1, line, err)
		}
	}
	return root
}

func unpackLine(root, line string) error {
	if path, target, ok := strings.Cut(line, " -> "); ok {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		return os.Symlink(target, path)
	}
	if path, ok := strings.CutSuffix(line, "/"); ok && !strings.Contains(line, ": ") {
		return os.MkdirAll(filepath.Join(root, path), 0o777)
	}
	path, content, ok := strings.Cut(line, ": ")
	if !ok {
		return fmt.Errorf("neither a file nor a link nor a directory")
	}
	path = filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(strings.ReplaceAll(content, `\n`, "\n")+"\n"), 0o666)
}

// recorder records the files below / that are read, under their paths without symbolic links.
type recorder struct {
	lines []string
	seen  map[string]bool
}

func (r *recorder) add(path, line string) {
	if !r.seen[path] {
		r.seen[path] = true
		r.lines = append(r.lines, line)
	}
}

func (r *recorder) opened(path string) {
	// A file below a symbolic link is recorded below the target of the link.
	at := ""
	for rest := strings.Split(path, "/"); len(rest) > 0; {
		at, rest = filepath.Join(at, rest[0]), rest[1:]
		if target, err := os.Readlink("/" + at); err == nil && at != "proc/self" {
			r.add(at, at+" -> "+target)
			at = filepath.Join(filepath.Dir(at), target)
		}
	}
	switch info, err := os.Lstat("/" + at); {
	case err != nil:
	case info.IsDir():
		r.add(at, at+"/")
		entries, _ := os.ReadDir("/" + at)
		for _, e := range entries {
			switch entry := filepath.Join(at, e.Name()); {
			case e.Type()&fs.ModeSymlink != 0 && isDevice(at):
				r.opened(entry)
			case at == "dev" && deviceFile.MatchString(e.Name()):
				r.add(entry, entry+": ")
			}
		}
	default:
		if content, err := os.ReadFile("/" + at); err == nil {
			if text := strings.TrimSpace(kept(at, string(content))); text != "" { // else it reads like a missing one
				r.add(at, at+": "+strings.ReplaceAll(text, "\n", `\n`))
			}
		}
	}
}

func isDevice(dir string) bool { return dir == pciDevices || dir == netClass || dir == rdmaClass }

// kept returns the part of a file's content that is recorded.
func kept(path, content string) string {
	var lines *regexp.Regexp
	switch path {
	case "proc/sys/kernel/hostname":
		return "recorded"
	case "proc/sys/kernel/random/boot_id":
		return "00000000-0000-4000-8000-000000000000"
	case "proc/cpuinfo":
		lines = regexp.MustCompile(`(?m)^model name.*$`)
		return lines.FindString(content)
	case "proc/meminfo":
		lines = regexp.MustCompile(`(?m)^MemTotal:.*$`)
	case "proc/self/status":
		lines = regexp.MustCompile(`(?m)^(Cpus|Mems)_allowed_list:.*$`)
	case "proc/self/cgroup":
		lines = regexp.MustCompile(`(?m)^\d+:([^:]*\bcpu\b[^:]*)?:.*$`)
	case "proc/self/mountinfo":
		lines = regexp.MustCompile(`(?m)^.* - (cgroup2 .*|cgroup .*\bcpu\b.*)$`)
	default:
		if strings.HasSuffix(path, "/meminfo") {
			lines = regexp.MustCompile(`(?m)^.*MemTotal:.*$`)
			break
		}
		return content
	}
	return strings.Join(lines.FindAllString(content, -1), "\n")
}
