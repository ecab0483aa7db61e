// Tuning files: what was measured, for machines and groups of some shapes.

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

// File is what `python -m sagecomm tune` has measured. It is JSON:
//
//	{
//	  "version": 1,
//	  "entries": [
//	    {
//	      "machine": "AMD EPYC 9755, 128 cpus",
//	      "size": 8,
//	      "hosts": 1,
//	      "params": {"board.hop": "180ns", "ring.byte": "95ps"},
//	      "rules": ["all_reduce:0-16K:one_shot", "all_reduce:16K-inf:two_shot@chunk=128K"]
//	    }
//	  ]
//	}
//
// An entry is for groups of one shape on one kind of machine; without size or hosts (0) for groups of all sizes or on
// any number of hosts. Of the entries for a group the one that names more of it counts, the size before the hosts. Both
// parameters and rules are written as in [ParseTune].
type File struct {
	Version int     `json:"version"`
	Entries []Entry `json:"entries"`
}

// Entry is what holds for groups of one shape on one kind of machine.
type Entry struct {
	Machine string            `json:"machine"`
	Size    int               `json:"size,omitempty"`
	Hosts   int               `json:"hosts,omitempty"`
	Params  map[string]string `json:"params,omitempty"`
	Rules   []string          `json:"rules,omitempty"`
}

// ParseFile reads a tuning file and refuses one that says what no group can do, with the name that is given for it.
func ParseFile(name string, text []byte) (*File, error) {
	var f File
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more behind the end of the JSON object", name)
	}
	if f.Version != FileVersion {
		return nil, fmt.Errorf("%s: version %d, expected %d: make it anew with `python -m sagecomm tune`",
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

// Put puts an entry in the place of that for the same groups, or behind the others. Rules of collectives, and
// parameters, that the entry says nothing of stay. It returns what the file says then.
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
	params := maps.Clone(f.Entries[same].Params)
	if params == nil {
		params = map[string]string{}
	}
	maps.Copy(params, e.Params)
	e.Params = params
	f.Entries[same] = e
	_, err := e.tune("the entry")
	return e, err
}

// For is what the file says of a group on a machine: nothing, where no entry is for it. name is the file's, for
// messages.
func (f File) For(name, machine string, shape Shape) (Tune, error) {
	if best := f.entry(machine, shape); best >= 0 {
		return f.Entries[best].tune(name)
	}
	return Tune{}, nil
}

// Has says whether an entry is for a group on a machine.
func (f File) Has(machine string, shape Shape) bool { return f.entry(machine, shape) >= 0 }

func (f File) entry(machine string, shape Shape) int {
	best := -1
	for i, e := range f.Entries {
		if e.Machine == machine && e.fits(shape) && (best < 0 || e.weight() > f.Entries[best].weight()) {
			best = i
		}
	}
	return best
}

func (e Entry) fits(shape Shape) bool {
	return (e.Size == 0 || e.Size == shape.Size) && (e.Hosts == 0 || e.Hosts == shape.HostCount())
}

// weight says how much of a group the entry names.
func (e Entry) weight() (w int) {
	if e.Size > 0 {
		w += 2
	}
	if e.Hosts > 0 {
		w++
	}
	return w
}

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
		if slices.ContainsFunc(t.Settings, func(s Setting) bool { return s.Name == one.Name }) { // but for spaces
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

// Over puts what a user sets on top of what a file says: parameters take the places of those of the same name, a policy
// that of the file's rules as a whole, and rules those of the file's for their lengths.
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
