package env

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Origin is the source of a value.
type Origin string

// The origins, the strongest last.
const (
	FromDefault     Origin = "default"
	FromOptions     Origin = "options"
	FromEnvironment Origin = "environment"
)

// entry is the value of one variable, as text that its parser accepts.
type entry struct {
	text   string
	origin Origin
}

// Settings are the values of all variables for one group. They do not change after [Resolve].
type Settings struct {
	entries  map[string]entry
	warnings []string
}

// Warnings returns one sentence for each SAGECOMM_* name in the environment that is no variable. The caller prints them once
// in the life of the process.
func (s *Settings) Warnings() []string { return s.warnings }

// Origin returns the source of the value of the variable with that full name.
func (s *Settings) Origin(name string) Origin { return s.entries[name].origin }

// Resolve checks and combines the environment ("NAME=value" entries) and the options given at group creation (names in
// lower case without the prefix). The environment wins; an empty value counts as absent. An unknown name is an error
// in the options, which come from code, and a warning in the environment, which may be meant for another version too.
// The error names every bad value, not only the first.
func Resolve(environ []string, options map[string]string) (*Settings, error) {
	s := &Settings{entries: make(map[string]entry, len(catalogue))}
	for _, v := range catalogue {
		s.entries[v.name] = entry{v.fallback, FromDefault}
	}
	var errs []error
	for _, key := range sortedKeys(options) {
		v := lookup(Prefix + strings.ToUpper(key))
		switch {
		case v == nil:
			errs = append(errs, fmt.Errorf("sagecomm: unknown option %q%s", key, suggestion(key, optionName)))
		case options[key] == "":
		default:
			if err := v.accept(fmt.Sprintf("option %s=%q", key, options[key]), options[key]); err != nil {
				errs = append(errs, err)
			} else {
				s.entries[v.name] = entry{options[key], FromOptions}
			}
		}
	}
	for _, e := range ours(environ) {
		v := lookup(e.name)
		switch {
		case v == nil:
			s.warnings = append(s.warnings, unknown(e.name))
		case e.value == "":
		default:
			if err := v.accept(fmt.Sprintf("%s=%q", e.name, e.value), e.value); err != nil {
				errs = append(errs, err)
			} else {
				s.entries[v.name] = entry{e.value, FromEnvironment}
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return s, nil
}

// unknown returns the warning about a name in the environment that is no variable.
func unknown(name string) string {
	return fmt.Sprintf("sagecomm: %s is set but there is no such variable%s", name, suggestion(name, func(v *spec) string { return v.name }))
}

// accept checks a value. what is the name of the setting in the message.
func (v *spec) accept(what, value string) error {
	err := v.check(value)
	if err == nil {
		return nil
	}
	msg := fmt.Sprintf("sagecomm: %s is not accepted: expected %s", what, v.typ)
	if why := err.Error(); why != "" {
		msg += " (" + why + ")"
	}
	return errors.New(msg)
}

// optionName returns the name of the variable in an options map.
func optionName(v *spec) string { return strings.ToLower(strings.TrimPrefix(v.name, Prefix)) }

type assignment struct{ name, value string }

// ours returns the entries that begin with the prefix, sorted by name. If a name occurs twice, the first entry counts, as for
// getenv.
func ours(environ []string) []assignment {
	var list []assignment
	for _, e := range environ {
		name, value, ok := strings.Cut(e, "=")
		if !ok || !strings.HasPrefix(name, Prefix) ||
			slices.ContainsFunc(list, func(a assignment) bool { return a.name == name }) {
			continue
		}
		list = append(list, assignment{name, value})
	}
	slices.SortFunc(list, func(a, b assignment) int { return strings.Compare(a.name, b.name) })
	return list
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// suggestion names the variable with the most similar name, if the difference is small enough for a typing error.
func suggestion(name string, nameOf func(*spec) string) string {
	best, bestDistance := "", len(name)
	for _, v := range catalogue {
		if d := distance(strings.ToUpper(name), strings.ToUpper(nameOf(v))); d < bestDistance {
			best, bestDistance = nameOf(v), d
		}
	}
	suffix := len(strings.TrimPrefix(strings.ToUpper(name), Prefix))
	if best == "" || bestDistance > max(2, suffix/2) {
		return "; `python -m sagecomm env` lists what there is"
	}
	return "; did you mean " + best + "?"
}

// distance returns the Levenshtein distance of two ASCII texts.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
