// Gen lists the functions of a vendor's library that Go packages call, as macros of C. It builds the packages and reads which
// symbols their objects leave undefined.
//
//	go run ./gen -prefix PREFIX -header FILE [-texts NAMES] [-starts NAMES] [-also NAMES] PACKAGE ...
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

func main() {
	log.SetFlags(0)
	prefix := flag.String("prefix", "", "that the names of the library begin with")
	header := flag.String("header", "", "to write")
	texts := flag.String("texts", "", "functions that give a text; the others give a status only")
	starts := flag.String("starts", "", "functions that start the library")
	also := flag.String("also", "", "functions that the packages call when they are built with another header")
	flag.Parse()
	names := list(*also)
	for _, path := range flag.Args() {
		more, err := undefined(path, *prefix)
		if err != nil {
			log.Fatal(err)
		}
		names = append(names, more...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var out bytes.Buffer
	fmt.Fprintln(&out, "/* Written by `go generate ./internal/lazylink`: the functions that these packages call:")
	for _, path := range flag.Args() {
		fmt.Fprintf(&out, " *   %s\n", path)
	}
	fmt.Fprintln(&out, " */")
	for _, special := range []struct {
		macro string
		names []string
	}{{"TEXTS", list(*texts)}, {"STARTS", list(*starts)}} {
		for _, name := range special.names {
			if !slices.Contains(names, name) {
				log.Fatalf("nobody calls %s", name)
			}
		}
		writeList(&out, strings.ToUpper(*prefix)+"_"+special.macro, special.names)
		names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(special.names, name) })
	}
	writeList(&out, strings.ToUpper(*prefix)+"_FUNCTIONS", names)
	if err := os.WriteFile(*header, out.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}

func list(names string) []string {
	return strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
}

func writeList(out *bytes.Buffer, macro string, names []string) {
	fmt.Fprintf(out, "\n#define %s(X)", macro)
	for _, name := range names {
		fmt.Fprintf(out, " \\\n  X(%s)", name)
	}
	fmt.Fprintln(out)
}

// undefined returns the symbols with a prefix that the objects of a package leave undefined.
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
	output, err := exec.Command("nm", "--format=posix", archive).Output()
	if err != nil {
		return nil, fmt.Errorf("nm: %w", err)
	}
	defined := map[string]bool{}
	for line := range strings.Lines(string(output)) {
		fields := strings.Fields(line) // name, type, and where it is defined its value
		if len(fields) < 2 || !strings.HasPrefix(fields[0], prefix) || len(fields[0]) == len(prefix) || !unicode.IsUpper(rune(fields[0][len(prefix)])) {
			continue
		}
		if fields[1] == "U" {
			names = append(names, fields[0])
		} else {
			defined[fields[0]] = true // by another object of the package
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return defined[name] }), nil
}

func joined(first, second error) error {
	if first != nil {
		return first
	}
	return second
}
