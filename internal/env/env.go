// Package env is the one list of SAGECOMM_* variables and the only place that turns their texts into values.
//
// A variable is declared once, in variables.go, with its type, default and one sentence. The typed getter, the check, the
// list of variables and docs/environment.md follow from that line. The package reads no environment by itself: the caller
// passes the entries to [Resolve], because a shared library must use the current C environment of its process, not the one
// at the start of the Go runtime.
//
// Start reading at variables.go, then [Resolve].
package env

import "fmt"

// Prefix begins the name of every variable.
const Prefix = "SAGECOMM_"

// Variable is one declared variable whose value has type T.
type Variable[T any] struct {
	spec  *spec
	parse parser[T]
}

// Name returns the variable's full name in the environment.
func (v Variable[T]) Name() string { return v.spec.name }

// Get returns the variable's value in s; a nil s gives the default.
func (v Variable[T]) Get(s *Settings) T {
	text := v.spec.fallback
	if s != nil {
		text = s.entries[v.spec.name].text
	}
	value, err := v.parse.from(text)
	if err != nil { // impossible: Resolve has checked the text and declare the default
		panic(fmt.Sprintf("env: %s=%q: %v", v.spec.name, text, err))
	}
	return value
}

// spec holds the data of a variable that do not depend on its Go type.
type spec struct {
	name     string
	typ      string // description of the accepted texts, for messages and the table
	fallback string // the default, as a user would write it
	sentence string
	check    func(text string) error
	hidden   bool // its value is not shown
}

// catalogue holds every variable in the order of declaration. It is written by package initialisation only.
var catalogue []*spec

// declare adds a variable. The default is text that the parser accepts.
func declare[T any](suffix, fallback string, p parser[T], sentence string) Variable[T] {
	s := &spec{
		name:     Prefix + suffix,
		typ:      p.accepts,
		fallback: fallback,
		sentence: sentence,
		check:    func(text string) error { _, err := p.from(text); return err },
	}
	if err := s.check(fallback); err != nil {
		panic(fmt.Sprintf("env: the default of %s, %q, is not accepted: %v", s.name, fallback, err))
	}
	catalogue = append(catalogue, s)
	return Variable[T]{spec: s, parse: p}
}

// hidden lets the value of a variable not be shown. Its parser accepts every text, since a refusal would show it.
func hidden(v Variable[string]) Variable[string] {
	v.spec.hidden = true
	return v
}

func lookup(name string) *spec {
	for _, s := range catalogue {
		if s.name == name {
			return s
		}
	}
	return nil
}
