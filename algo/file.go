package algo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// FileVersion is the version of the format of [File].
const FileVersion = 1

// File is a tuning file, which `python -m sagecomm tune` writes. It is JSON:
//
//	{
//	  "version": 1,
//	  "entries": [
//	    {
//	      "machine": "AMD EPYC 9755, 128 cpus",
//	      "size": 8,
//	      "hosts": 1,
//	      "params": {"slots.hop": "180ns", "channel.byte": "95ps"},
//	      "rules": ["all_reduce:0-16K:one_shot", "all_reduce:16K-inf:two_shot@chunk=128K"]
//	    }
//	  ]
//	}
//
// An entry is for groups of one shape on one kind of machine. Without a size (0) it is for groups of all sizes, without
// hosts (0) for groups on any number of hosts. If several entries fit a group, the most specific one counts, and a size
// is more specific than hosts. Parameters and rules are written as in [ParseTune].
type File struct {
	Version int     `json:"version"`
	Entries []Entry `json:"entries"`
}

// Entry holds the parameters and rules for groups of one shape on one kind of machine.
type Entry struct {
	Machine string            `json:"machine"`
	Size    int               `json:"size,omitempty"`
	Hosts   int               `json:"hosts,omitempty"`
	Params  map[string]string `json:"params,omitempty"`
	Rules   []string          `json:"rules,omitempty"`
}

// ParseFile reads a tuning file. It refuses one with rules or parameters that no group can have. Its errors begin with
// name.
func ParseFile(name string, text []byte) (*File, error) {
	var f File
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		var kind *json.UnmarshalTypeError
		switch {
		case errors.Is(err, io.EOF):
			err = errors.New("the file is empty")
		case errors.As(err, &kind):
			err = fmt.Errorf("byte %d: %s, expected a tuning file as `python -m sagecomm tune` writes it", kind.Offset, kind.Value)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more text after the JSON object", name)
	}
	if f.Version != FileVersion {
		return nil, fmt.Errorf("%s: version %d, expected %d: write it again with `python -m sagecomm tune`",
			name, f.Version, FileVersion)
	}
	for i, e := range f.Entries {
		if _, err := e.tune(name); err != nil {
			return nil, fmt.Errorf("%s: entry %d (%s): %w", name, i, e.Machine, err)
		}
		for j, other := range f.Entries[:i] {
			if e.Machine == other.Machine && e.Size == other.Size && e.Hosts == other.Hosts {
				return nil, fmt.Errorf("%s: entries %d and %d are for the same groups of %s", name, j, i, e.Machine)
			}
		}
	}
	return &f, nil
}

// Write is the inverse of [ParseFile].
func (f File) Write() ([]byte, error) {
	text, err := json.MarshalIndent(f, "", "  ")
	return append(text, '\n'), err
}

// Put replaces the entry for the same groups, or appends one. It keeps the old entry's rules of collectives for which
// the new one has none, and the old parameters that the new one does not set. It returns the entry as it then stands in
// the file.
func (f *File) Put(e Entry) (Entry, error) {
	same := slices.IndexFunc(f.Entries, func(other Entry) bool {
		return e.Machine == other.Machine && e.Size == other.Size && e.Hosts == other.Hosts
	})
	if same < 0 {
		same = len(f.Entries)
		f.Entries = append(f.Entries, Entry{})
	}
	of := func(rule string) string { return strings.TrimSpace(rule[:strings.IndexByte(rule+":", ':')]) }
	old := slices.DeleteFunc(f.Entries[same].Rules, func(rule string) bool {
		return slices.ContainsFunc(e.Rules, func(by string) bool { return of(by) == of(rule) })
	})
	e.Rules = append(old, e.Rules...)
	params := map[string]string{}
	for name, value := range f.Entries[same].Params {
		if known, err := findParameter(strings.TrimSpace(name)); err == nil {
			name = known.name // the file may have names of earlier versions
		}
		params[name] = value
	}
	maps.Copy(params, e.Params)
	e.Params = params
	f.Entries[same] = e
	_, err := e.tune("the entry")
	return e, err
}

// For returns the file's tuning for a group on a machine, or an empty tuning if no entry is for it. Its errors begin
// with name.
func (f File) For(name, machine string, shape Shape) (Tune, error) {
	if best := f.entry(machine, shape); best >= 0 {
		return f.Entries[best].tune(name)
	}
	return Tune{}, nil
}

// Has reports whether an entry is for a group on a machine.
func (f File) Has(machine string, shape Shape) bool { return f.entry(machine, shape) >= 0 }

// entry returns the index of the most specific entry for a group, or -1.
func (f File) entry(machine string, shape Shape) int {
	best := -1
	for i, e := range f.Entries {
		if e.Machine == machine && e.fits(shape) && (best < 0 || e.weight() > f.Entries[best].weight()) {
			best = i
		}
	}
	return best
}

// fits reports whether the entry is for groups of a shape.
func (e Entry) fits(shape Shape) bool {
	return (e.Size == 0 || e.Size == shape.Size) && (e.Hosts == 0 || e.Hosts == shape.HostCount())
}

// weight returns how specific the entry is: a size counts more than hosts.
func (e Entry) weight() (w int) {
	if e.Size > 0 {
		w += 2
	}
	if e.Hosts > 0 {
		w++
	}
	return w
}

// tune parses the entry.
func (e Entry) tune(name string) (t Tune, err error) {
	switch {
	case e.Machine == "":
		return t, errors.New("it names no machine")
	case e.Size < 0 || e.Size > MaxSize:
		return t, fmt.Errorf("groups of %d ranks: expected 1 to %d, or 0 for all", e.Size, MaxSize)
	case e.Hosts < 0:
		return t, fmt.Errorf("groups on %d hosts: expected 1 or more, or 0 for any", e.Hosts)
	}
	for parameter, value := range e.Params {
		one, err := parseSetting(parameter + "=" + value)
		if err != nil {
			return t, err
		}
		if slices.ContainsFunc(t.Settings, func(s Setting) bool { return s.Name == one.Name }) { // names may differ in spaces, or be of an earlier version
			return t, fmt.Errorf("%s is set twice", one.Name)
		}
		t.Settings = append(t.Settings, one)
	}
	slices.SortFunc(t.Settings, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	for _, text := range e.Rules {
		rule, err := parseRule(text)
		if err != nil {
			return t, fmt.Errorf("rule %q: %w", text, err)
		}
		rule.from = name
		if err := t.add(rule); err != nil {
			return t, err
		}
	}
	return t, nil
}

// Over returns a user's tuning combined with a file's. The user's parameters replace the file's of the same name, the
// user's rules replace the file's for their lengths, and a user's policy replaces all rules of the file.
func (t Tune) Over(file Tune) Tune {
	out := Tune{Rules: slices.Clone(t.Rules), Policy: t.Policy}
	for _, s := range file.Settings {
		if !slices.ContainsFunc(t.Settings, func(own Setting) bool { return own.Name == s.Name }) {
			out.Settings = append(out.Settings, s)
		}
	}
	out.Settings = append(out.Settings, t.Settings...)
	if t.Policy == "" {
		out.below = slices.Clone(file.Rules)
	}
	return out
}
