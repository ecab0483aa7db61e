// Gen lists the functions of a vendor's library that a Go package calls, as macros of C. It builds the package and reads which
// symbols its objects leave undefined.
//
//	go run ./gen PACKAGE PREFIX HEADER [FUNCTION-THAT-RETURNS-TEXT ...]
package main

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 4 {
		log.Fatal("usage: gen PACKAGE PREFIX HEADER [FUNCTION-THAT-RETURNS-TEXT ...]")
	}
	path, prefix, header, texts := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	names, err := undefined(path, prefix)
	if err != nil {
		log.Fatal(err)
	}
	for _, text := range texts {
		if !slices.Contains(names, text) {
			log.Fatalf("%s does not call %s", path, text)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(texts, name) })
	var out bytes.Buffer
	fmt.Fprintf(&out, "/* Written by `go generate ./internal/lazylink`: the functions that %s calls. Those of the first list\n * return a status, those of the second one a text. */\n", path)
	writeList(&out, strings.ToUpper(prefix)+"_FUNCTIONS", names)
	writeList(&out, strings.ToUpper(prefix)+"_TEXTS", texts)
	if err := os.WriteFile(header, out.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}

func writeList(out *bytes.Buffer, macro string, names []string) {
	fmt.Fprintf(out, "\n#define %s(X)", macro)
	for _, name := range names {
		fmt.Fprintf(out, " \\\n  X(%s)", name)
	}
	fmt.Fprintln(out)
}

// undefined returns the symbols with a prefix that the objects of a package leave undefined, in order.
func undefined(path, prefix string) (names []string, err error) {
	dir, err := os.MkdirTemp("", "lazylink-")
	if err != nil {
		return nil, err
	}
	defer func() { err = joined(err, os.RemoveAll(dir)) }()
	archive := filepath.Join(dir, "package.a")
	if output, err := exec.Command("go", "build", "-buildmode=archive", "-o", archive, path).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %w\n%s", path, err, output)
	}
	output, err := exec.Command("nm", "--undefined-only", "--format=posix", archive).Output()
	if err != nil {
		return nil, fmt.Errorf("nm: %w", err)
	}
	for line := range strings.Lines(string(output)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func joined(first, second error) error {
	if first != nil {
		return first
	}
	return second
}
