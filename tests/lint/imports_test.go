// Package lint holds rules about the code itself, as tests.
package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The import rules of docs/architecture.md: imports point one way, from a higher layer to a lower one, or stay within
// one subtree.

const module = "sagecomm/"

// layer is the place of a package, and of the packages below it, in the import order.
type layer struct {
	tree   string
	height int
	only   []string // if it is set, the packages of ours that it may import
	pure   bool     // no input and output, no cgo, no clock
	cgo    bool     // may use cgo
}

const (
	vocabulary = iota
	helpers
	parts
	carriers
	libraries
	observers
	backend
	abi
	outside // imports what it likes and is imported by nobody
)

var layers = []layer{
	{tree: "internal/coll", height: vocabulary, pure: true},

	{tree: "internal/env", height: helpers},
	{tree: "internal/handshake", height: helpers},
	{tree: "internal/kernels", height: helpers, cgo: true},
	{tree: "internal/lazylink", height: helpers, cgo: true},
	{tree: "internal/pickle", height: helpers},
	{tree: "internal/procwatch", height: helpers},
	{tree: "internal/shmem", height: helpers},
	{tree: "internal/statussock", height: helpers},
	{tree: "internal/verdict", height: helpers, pure: true},

	{tree: "algo", height: parts, only: []string{"internal/coll"}, pure: true},
	{tree: "algo/plan", height: parts, only: []string{"internal/coll"}, pure: true},
	{tree: "algo/sendrecv", height: parts, only: []string{"internal/coll", "algo/plan"}, pure: true},
	{tree: "algo/shmplan", height: parts, only: []string{"internal/coll", "algo/plan"}, pure: true},
	{tree: "algo/verify", height: parts, only: []string{"internal/coll", "algo/plan"}, pure: true},
	{tree: "algo/cost", height: parts, only: []string{"internal/coll", "algo/plan"}, pure: true},
	{tree: "algo/cluster", height: parts, only: []string{"internal/coll", "algo/plan", "algo/sendrecv", "algo/cost"}, pure: true},
	{tree: "internal/runner", height: parts, cgo: true},
	{tree: "internal/device", height: parts, cgo: true},
	{tree: "internal/topo", height: parts},
	{tree: "internal/transport", height: parts},
	{tree: "internal/topo/dcmi", height: parts, cgo: true},
	{tree: "internal/topo/cndev", height: parts, cgo: true},

	{tree: "fusion", height: carriers, only: []string{"internal/coll"}, pure: true},
	{tree: "internal/bootstrap", height: carriers},
	{tree: "internal/engine", height: carriers},
	{tree: "internal/shadow", height: carriers},
	{tree: "internal/engine/nccl", height: libraries, cgo: true},
	{tree: "internal/engine/hccl", height: libraries, cgo: true},
	{tree: "internal/engine/cncl", height: libraries, cgo: true},

	{tree: "internal/observe", height: observers},

	{tree: "pgbackend", height: backend},
	{tree: "export", height: abi, cgo: true},

	{tree: "internal/env/gendoc", height: outside},
	{tree: "internal/lazylink/gen", height: outside},
	{tree: "tests", height: outside},
	{tree: "tests/devices", height: outside, cgo: true},
}

// impure are the packages that a pure package does not import.
var impure = []string{"C", "net", "os", "os/exec", "io/fs", "syscall", "unsafe"}

func within(tree, path string) bool { return path == tree || strings.HasPrefix(path, tree+"/") }

// layerOf finds the innermost layer of a package.
func layerOf(path string) (best layer, ok bool) {
	for _, l := range layers {
		if within(l.tree, path) && len(l.tree) > len(best.tree) {
			best, ok = l, true
		}
	}
	return best, ok
}

// pkg is what `go list -json` says, without tests.
type pkg struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
	CgoFiles   []string
}

// violations returns a sentence for each rule that a package breaks.
func violations(p pkg) (list []string) {
	path := strings.TrimPrefix(p.ImportPath, module)
	mine, ok := layerOf(path)
	if !ok {
		return []string{fmt.Sprintf("%s has no layer: give it one in tests/lint and in docs/architecture.md", path)}
	}
	if len(p.CgoFiles) > 0 && !mine.cgo {
		list = append(list, fmt.Sprintf("%s uses cgo in %v: cgo stands in export, runner, kernels, lazylink, device and the vendors' libraries only", path, p.CgoFiles))
	}
	for _, imported := range p.Imports {
		if mine.pure && (slices.Contains(impure, imported) || strings.Contains(imported, ".")) {
			list = append(list, fmt.Sprintf("%s imports %s: it is to be pure Go without input and output", path, imported))
		}
		other, ours := strings.CutPrefix(imported, module)
		if !ours {
			continue
		}
		theirs, known := layerOf(other)
		switch {
		case !known, within(mine.tree, other), mine.height == outside, slices.Contains(mine.only, other):
		case mine.only != nil:
			list = append(list, fmt.Sprintf("%s imports %s: of ours it may import %s only", path, other, strings.Join(mine.only, ", ")))
		case theirs.height == outside:
			list = append(list, fmt.Sprintf("%s imports %s, which is not part of the library", path, other))
		case theirs.height > mine.height, theirs.height == mine.height && mine.height != helpers:
			list = append(list, fmt.Sprintf("%s imports %s: imports point from higher layers to lower ones", path, other))
		}
	}
	return list
}

func TestImportRules(t *testing.T) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles,CgoFiles", "./...")
	cmd.Dir = "../.."
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, exit.Stderr)
		}
		t.Fatal(err)
	}
	seen, empty := 0, slices.Clone(layers)
	for d := json.NewDecoder(strings.NewReader(string(output))); ; seen++ {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, v := range violations(p) {
			t.Error(v)
		}
		mine, _ := layerOf(strings.TrimPrefix(p.ImportPath, module))
		empty = slices.DeleteFunc(empty, func(l layer) bool { return l.tree == mine.tree })
		if mine.pure {
			for _, name := range p.GoFiles {
				for _, v := range clocks(t, filepath.Join(p.Dir, name), nil) {
					t.Error(v)
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d packages were found", seen)
	}
	for _, l := range empty {
		t.Errorf("the layer %s has no package: take it out of tests/lint", l.tree)
	}
}

// timeless are the names of the package time that a pure package may use.
var timeless = []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"}

// clocks returns a sentence for each use of a clock in a file, or in src if that is given.
func clocks(t *testing.T, name string, src any) (list []string) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	require.NoError(t, err)
	as := ""
	for _, i := range file.Imports {
		if i.Path.Value == `"time"` {
			if as = "time"; i.Name != nil {
				as = i.Name.Name
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && as != "" && x.Name == as && !slices.Contains(timeless, s.Sel.Name) {
			list = append(list, fmt.Sprintf("%v uses time.%s: a pure package has no clock", fset.Position(s.Pos()), s.Sel.Name))
		}
		return true
	})
	return list
}

func TestClocksAreNoticed(t *testing.T) {
	for src, bad := range map[string]bool{
		"import \"time\"; const x = 2 * time.Second":   false,
		"import \"time\"; var x = time.Now()":          true,
		"import t \"time\"; var x = t.Since":           true,
		"var time struct{ Now int }; var x = time.Now": false,
	} {
		if list := clocks(t, "x.go", "package x; "+src); (len(list) > 0) != bad {
			t.Errorf("%s: %v", src, list)
		}
	}
}

func TestImportRulesNotice(t *testing.T) {
	for _, c := range []struct {
		path     string
		imported string
		cgo      bool
		bad      bool
	}{
		{"algo", "sagecomm/internal/coll", false, false},
		{"algo", "sagecomm/algo/plan", false, false},
		{"algo", "sagecomm/algo/cost", false, false},
		{"algo/sendrecv", "sagecomm/algo/plan", false, false},
		{"algo/sendrecv", "sagecomm/algo/verify", false, true},
		{"algo/plan", "sagecomm/algo/sendrecv", false, true},
		{"algo/cost", "sagecomm/algo/sendrecv", false, true},
		{"algo/cluster", "sagecomm/algo/cost", false, false},
		{"algo/plan", "sagecomm/internal/coll", false, false},
		{"algo/verify", "sagecomm/internal/env", false, true},
		{"algo", "sagecomm/internal/env", false, true},
		{"algo", "os", false, true},
		{"algo", "golang.org/x/sys/unix", false, true},
		{"algo", "C", true, true},
		{"fusion", "sagecomm/algo", false, true},
		{"internal/coll", "sagecomm/internal/env", false, true},
		{"internal/shmem", "sagecomm/internal/procwatch", false, false},
		{"internal/shmem", "sagecomm/internal/runner", false, true},
		{"internal/runner", "sagecomm/internal/coll", true, false},
		{"internal/runner", "sagecomm/algo", false, true},
		{"internal/runner", "sagecomm/pgbackend", false, true},
		{"internal/engine/host", "sagecomm/internal/runner", false, false},
		{"internal/engine/host", "sagecomm/internal/bootstrap", false, true},
		{"internal/engine/host", "C", true, true},
		{"internal/engine/nccl", "sagecomm/internal/engine/vendor", true, false},
		{"pgbackend", "sagecomm/internal/engine/host", false, false},
		{"pgbackend", "sagecomm/internal/observe", false, false},
		{"internal/observe", "sagecomm/pgbackend", false, true},
		{"pgbackend", "sagecomm/export", false, true},
		{"pgbackend", "sagecomm/tests/modelcheck", false, true},
		{"pgbackend", "C", true, true},
		{"export", "sagecomm/pgbackend", true, false},
		{"tests/go", "sagecomm/pgbackend", false, false},
		{"internal/newcomer", "fmt", false, true},
	} {
		p := pkg{ImportPath: module + c.path, Imports: []string{c.imported}}
		if c.cgo {
			p.CgoFiles = []string{"x.go"}
		}
		if list := violations(p); (len(list) > 0) != c.bad {
			t.Errorf("%s imports %s, cgo %t: %v", c.path, c.imported, c.cgo, list)
		}
	}
}
