package lint

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/errors.md quotes texts of errors with examples in the places of what varies. Each is looked for in the string
// literals of the sources, word by word: what stands together in a quotation stands together in a literal. Numbers,
// names in quotation marks, paths and "..." are examples.

// boundary stands where a text is not fixed.
const boundary = "\x00"

var (
	verb     = regexp.MustCompile(`%[-+# 0]*[0-9.]*[a-zA-Z]|\{[^{}]*\}`) // of fmt, printf and Python's format strings
	examples = regexp.MustCompile(`"[^"]*"|\.\.\.|[/@][\w./<>*-]+|\S*\d\S*|SAGECOMM_\w+=`)
	word     = regexp.MustCompile(`[A-Za-z_][A-Za-z_'-]+|\x00`)
	adjacent = regexp.MustCompile(`"\s*\n\s*(?:u8|f)?"`)
	literal  = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"`)
)

// corpus holds the fixed parts of all literals.
type corpus struct {
	pairs, alone map[string]bool
	runs         map[string]bool // of up to longRun words
}

const longRun = 4

func (c *corpus) add(text string) {
	for _, prefix := range []string{"sagecomm: ", "shmem: "} { // quotations leave it out
		if rest, found := strings.CutPrefix(text, prefix); found {
			c.add(rest)
		}
	}
	for _, run := range runsOf(verb.ReplaceAllString(text, " "+boundary+" ")) {
		if len(run) == 1 {
			c.alone[run[0]] = true
		}
		for i := range run {
			if i > 0 {
				c.pairs[run[i-1]+" "+run[i]] = true
			}
			for n := 1; n <= longRun && i+n <= len(run); n++ {
				c.runs[strings.Join(run[i:i+n], " ")] = true
			}
		}
	}
}

// runsOf returns the words between boundaries.
func runsOf(text string) (list [][]string) {
	var run []string
	for _, w := range append(word.FindAllString(text, -1), boundary) {
		if w != boundary {
			run = append(run, w)
		} else if len(run) > 0 {
			list = append(list, run)
			run = nil
		}
	}
	return list
}

// strange are the words of a quotation that no literal has beside their neighbours. A quotation of which no longer piece
// stands in one literal is strange as a whole.
func (c *corpus) strange(quotation string) (words []string) {
	known, longest := false, 0
	for _, run := range runsOf(examples.ReplaceAllString(quotation, " "+boundary+" ")) {
		longest = max(longest, len(run))
		for i, w := range run {
			beside := i > 0 && c.pairs[run[i-1]+" "+w] || i+1 < len(run) && c.pairs[w+" "+run[i+1]]
			if !beside && !c.alone[w] {
				words = append(words, w)
			}
			n := min(longRun, len(run))
			known = known || i+n <= len(run) && c.runs[strings.Join(run[i:i+n], " ")]
		}
	}
	if !known && longest > 0 && words == nil {
		words = []string{quotation}
	}
	return words
}

func sources(t *testing.T) *corpus {
	t.Helper()
	c := &corpus{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for e := syscall.Errno(1); e < 134; e++ {
		c.add(e.Error())
	}
	for _, dir := range []string{"algo", "cshim", "export", "facade", "fusion", "hccl", "internal", "nccl", "pgbackend", "torch_ext"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || strings.HasSuffix(path, "_test.go") {
				return err
			}
			if !slices.Contains([]string{".go", ".c", ".h", ".cpp", ".hpp", ".py"}, filepath.Ext(path)) {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if filepath.Ext(path) == ".go" {
				addGo(c, text)
				return nil
			}
			joined := adjacent.ReplaceAllString(string(text), "")
			for _, l := range literal.FindAllString(joined, -1) {
				c.add(l[1 : len(l)-1])
			}
			return nil
		})
		require.NoError(t, err)
	}
	return c
}

// addGo adds the string literals of a file, those that + joins as one.
func addGo(c *corpus, text []byte) {
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile("", files.Base(), len(text)), text, nil, 0)
	whole, joined := "", false
	for {
		_, tok, lit := s.Scan()
		switch {
		case tok == token.STRING:
			value, err := strconv.Unquote(lit)
			if err != nil {
				continue
			}
			if !joined {
				c.add(whole)
				whole = ""
			}
			whole, joined = whole+value, false
		case tok == token.ADD:
			joined = true
		case tok == token.EOF:
			c.add(whole)
			return
		default:
			joined = false
		}
	}
}

func TestDocumentedErrorsAreInTheSources(t *testing.T) {
	c := sources(t)
	quoted := quotations(t)
	for _, q := range quoted {
		if words := c.strange(q.text); words != nil {
			t.Errorf("docs/errors.md:%d: `%s`: not in the sources: %q", q.line, q.text, words)
		}
	}
	if len(quoted) < 50 {
		t.Errorf("only %d texts are quoted", len(quoted))
	}
}

type quotation struct {
	line int
	text string
}

// quotations returns the code in the columns of texts of docs/errors.md.
func quotations(t *testing.T) (list []quotation) {
	t.Helper()
	text, err := os.ReadFile("../../docs/errors.md")
	require.NoError(t, err)
	span := regexp.MustCompile("`[^`]+`")
	column := -1
	for number, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "|") {
			column = -1
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		if column < 0 {
			column = slices.IndexFunc(cells, func(s string) bool { return strings.TrimSpace(s) == "text" })
			if column < 0 {
				t.Fatalf("line %d: this table has no column of texts", number+1)
			}
			continue
		}
		if strings.HasPrefix(line, "|---") {
			continue
		}
		for _, q := range span.FindAllString(cells[column], -1) {
			list = append(list, quotation{number + 1, strings.Trim(q, "`")})
		}
	}
	return list
}

// hidden are texts that no user of the library sees, by their beginnings.
var hidden = []string{
	"there is no kind", "there is no such method", "shmem: allocate", "shmem: [", "%q is not 32", "shmem: the arena is closed", "fstat", // faults of the library
	"sagecomm: rendezvous %s: rank %d of %d ranks does not exist",
	"the key did not appear in time", // wrapped by what says whose
	"the store was given back",       // of a claim whose answer nobody waits for
	"%s has no start time",           // of /proc: not Linux as it is
}

// Every error that the making of groups and memory can end with is in docs/errors.md.
func TestErrorsOfMemoryAreDocumented(t *testing.T) {
	docs := &corpus{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for _, q := range quotations(t) {
		docs.add(examples.ReplaceAllString(q.text, " "+boundary+" "))
	}
	var files []string
	for _, pattern := range []string{"internal/shmem/*.go", "internal/bootstrap/*.go", "internal/procwatch/*.go",
		"pgbackend/create.go", "pgbackend/memory.go", "pgbackend/peers.go", "pgbackend/process.go", "pgbackend/rendezvous.go"} {
		list, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || list == nil {
			t.Fatalf("%s: %v, %v", pattern, list, err)
		}
		files = append(files, list...)
	}
	seen := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, text := range errorTexts(t, file) {
			if slices.ContainsFunc(hidden, func(begin string) bool { return strings.HasPrefix(text, begin) }) {
				continue
			}
			var longest []string
			rest := strings.TrimPrefix(strings.TrimPrefix(text, "sagecomm: "), "shmem: ")
			for _, run := range runsOf(examples.ReplaceAllString(verb.ReplaceAllString(rest, " "+boundary+" "), " "+boundary+" ")) {
				if len(run) > len(longest) {
					longest = run
				}
			}
			if len(longest) < 2 {
				continue // the text names only what failed; the reason is another text
			}
			seen++
			if !docs.runs[strings.Join(longest[:min(longRun, len(longest))], " ")] {
				t.Errorf("%s: %q is not in docs/errors.md", file, text)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d texts were found", seen)
	}
}

// errorTexts returns the formats of the errors and warnings that a file makes.
func errorTexts(t *testing.T, file string) (texts []string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	ast.Inspect(tree, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		made, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Errorf", "New", "warn", "Warn"}, made.Sel.Name) {
			return true
		}
		if lit, ok := call.Args[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}

// The check above refuses texts that are not in the sources.
func TestStrangeTextsAreNoticed(t *testing.T) {
	c := sources(t)
	for _, q := range []string{
		"the limit on file lengths is 64.0 MiB",
		"rank 2 (host h, pid 4711) perished in or after all_reduce #17",
		"let processes open fewer files",
	} {
		if c.strange(q) == nil {
			t.Errorf("%q passes for a text of the sources", q)
		}
	}
}
