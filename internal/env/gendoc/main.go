// Command gendoc writes docs/environment.md from the list of variables; `go generate ./internal/env` runs it.
package main

import (
	"fmt"
	"os"

	"sagecomm/internal/env"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendoc FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], []byte(env.Markdown()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
