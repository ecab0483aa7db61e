package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recoveries are the functions in which a panic on a goroutine fails groups, or is a warning where only observers lose something. Those that
// are deferred recover; guard and its like call a function and recover.
var recoveries = []string{"recoverInto", "recoverAll", "recoverFrom", "guard", "Guard"}

// groups are names of a vendor.Group in the engines: its method Go has Guard.
var groups = []string{"group", "g", "j"}

// recovered are goroutines that recover in another way, or do what cannot panic.
var recovered = map[string]string{
	"pgbackend/arbiter.go: go a.run":                     "its panic fails the groups",
	"pgbackend/arbiter.go: go g.takeVerdict":             "takeVerdict recovers into its group",
	"pgbackend/arbiter.go: time.AfterFunc":               "appends to a queue",
	"pgbackend/arbiter.go: go func":                      "ask recovers into its error, and the rest appends to a queue",
	"pgbackend/progress.go: go e.loop":                   "each turn recovers (follow), and a turn between them is a call of C",
	"pgbackend/join.go: all.Go":                          "recovers into the error of the rank that is being made",
	"pgbackend/bucket.go: time.AfterFunc":                "buckets.tick recovers into its group",
	"pgbackend/failure_callback.go: time.AfterFunc":      "closes a channel",
	"pgbackend/join.go: context.AfterFunc":               "closes a store",
	"pgbackend/peers.go: go p.await":                     "Process.await defers recoverFrom",
	"pgbackend/create.go: go g.followRemotes":            "it defers recoverFrom, and compares in guard",
	"internal/device/cuda/graphs.go: runtime.AddCleanup": "a call of C",
	"internal/engine/cuda/ending.go: go s.run":           "the turn of each member is in its guard, and between turns nothing of a group is used",
	"internal/shmem/scm.go: s.running.Go":                "calls of the system, and comparisons with what a client has sent",
	"internal/shmem/scm.go: context.AfterFunc":           "sets a deadline",
}

// A panic on a goroutine that nobody recovers from ends the user's process. So each goroutine, timer and finalizer of the engines, of devices,
// of the memory that ranks share and of pgbackend recovers: its function defers a recovery, or is called in one.
func TestGoroutinesRecover(t *testing.T) {
	met := map[string]bool{}
	for _, tree := range []string{"internal/engine", "internal/device", "internal/shmem", "pgbackend"} {
		root := filepath.Join("../..", tree)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			require.NoError(t, err)
			name, _ := strings.CutPrefix(path, "../../")
			ast.Inspect(file, func(n ast.Node) bool {
				what, call := begins(n, strings.HasPrefix(name, "internal/engine/"))
				if call == nil || recovers(call) {
					return true
				}
				key := name + ": " + what
				met[key] = true
				if recovered[key] == "" {
					t.Errorf("%v: %s: a panic there ends the process; begin it in Group.guard (vendor.Group.Go)", files.Position(n.Pos()), what)
				}
				return true
			})
			return nil
		})
		require.NoError(t, err)
	}
	for key := range recovered {
		require.True(t, met[key], "%s is not there any more", key)
	}
}

// begins returns the call with which a node begins a goroutine, a timer or a finalizer, and its name; nil: it begins none. inEngine tells that
// it is a node of an engine.
func begins(n ast.Node, inEngine bool) (what string, call *ast.CallExpr) {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "go " + nameOf(n.Call.Fun), n.Call
	case *ast.CallExpr:
		name := nameOf(n.Fun)
		parts := strings.Split(name, ".")
		switch {
		case slices.Contains([]string{"time.AfterFunc", "context.AfterFunc", "runtime.AddCleanup", "runtime.SetFinalizer"}, name),
			len(parts) > 1 && parts[len(parts)-1] == "Go" && !(inEngine && slices.Contains(groups, parts[len(parts)-2])):
			return name, n
		}
	}
	return "", nil
}

func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.FuncLit:
		return "func"
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return nameOf(e.X) + "." + e.Sel.Name
	}
	return "?"
}

// recovers reports whether a call is one of recoveries, or has a function that defers one or consists of a call of one.
func recovers(call *ast.CallExpr) bool {
	if isRecovery(call) {
		return true
	}
	for _, e := range append([]ast.Expr{call.Fun}, call.Args...) {
		f, ok := e.(*ast.FuncLit)
		if !ok {
			continue
		}
		for _, s := range f.Body.List {
			if d, ok := s.(*ast.DeferStmt); ok && isRecovery(d.Call) {
				return true
			}
		}
		if len(f.Body.List) == 1 {
			if s, ok := f.Body.List[0].(*ast.ExprStmt); ok {
				if inner, ok := s.X.(*ast.CallExpr); ok && isRecovery(inner) {
					return true
				}
			}
		}
	}
	return false
}

func isRecovery(call *ast.CallExpr) bool {
	name := nameOf(call.Fun)
	return slices.Contains(recoveries, name[strings.LastIndex(name, ".")+1:])
}
