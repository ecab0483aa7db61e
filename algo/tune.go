package algo

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"sagecomm/algo/plan"
	"sagecomm/algo/shmplan"
	"sagecomm/internal/coll"
)

// tuneName is the variable that has the rules, for error messages.
const tuneName = "SAGECOMM_TUNE"

// Rule sets the algorithm of one collective for a range of lengths: those above From, up to and including To. A From of
// 0 includes the length 0. So "0-8K" and "8K-inf" meet without a gap, and 8 KiB belongs to the first.
type Rule struct {
	Kind      coll.Kind
	From, To  uint64
	Algorithm string
	Chunk     int // 0: as predicted

	text string // as the user wrote it
	from string // origin: the variable or file that has the rule
}

// Tune holds the rules, the policy and the parameters that a user has set.
type Tune struct {
	Rules    []Rule    // they do not overlap
	Policy   string    // for lengths without a rule; "" is [Predicted]
	Settings []Setting // parameters, each at most once

	below []Rule // rules of a file, for lengths without a rule in Rules; see Over
}

// ParseTune reads clauses separated by semicolons:
//
//	collective[:from-to]:algorithm[@chunk=bytes]    a rule
//	policy=name                                     how lengths without a rule are chosen
//	class.parameter=time                            a parameter of the prediction
//
// Lengths are whole numbers with an optional K, M or G (powers of 1024); "inf" means no limit. A rule without a range
// is for all lengths. An all_to_all has only such rules, since its ranks need not know the same lengths. Times have a
// unit: s, ms, us, ns or ps. Example:
// all_reduce:0-8K:one_shot;all_reduce:8K-inf:two_shot@chunk=128K;channel.latency=400ns
func ParseTune(text string) (Tune, error) {
	var tune Tune
	for item := range strings.SplitSeq(text, ";") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		if err := tune.parse(item); err != nil {
			return Tune{}, fmt.Errorf("%s: %w", tuneName, err)
		}
	}
	return tune, nil
}

// parse reads one clause. A clause with a colon before any equals sign is a rule.
func (t *Tune) parse(item string) error {
	before, value, setting := strings.Cut(item, "=")
	if !setting || strings.Contains(before, ":") {
		rule, err := parseRule(item)
		if err != nil {
			return fmt.Errorf("rule %q: %w", item, err)
		}
		return t.add(rule)
	}
	if strings.TrimSpace(before) == "policy" {
		value = strings.TrimSpace(value)
		if t.Policy != "" {
			return fmt.Errorf("%q: policy %s is set already", item, t.Policy)
		}
		if _, ok := findPolicy(value); !ok {
			return fmt.Errorf("unknown policy %q, there are: %s", value, strings.Join(Policies(), ", "))
		}
		t.Policy = value
		return nil
	}
	one, err := parseSetting(item)
	if err != nil {
		return fmt.Errorf("%q: %w", item, err)
	}
	if slices.ContainsFunc(t.Settings, func(s Setting) bool { return s.Name == one.Name }) {
		return fmt.Errorf("%q: %s is set already", item, one.Name)
	}
	t.Settings = append(t.Settings, one)
	return nil
}

// add appends a rule. It refuses one that overlaps another one.
func (t *Tune) add(rule Rule) error {
	for _, other := range t.Rules {
		if rule.overlaps(other) {
			return fmt.Errorf("rule %q overlaps rule %q: a length can have one rule only", rule.text, other.text)
		}
	}
	t.Rules = append(t.Rules, rule)
	return nil
}

// parseRule reads a rule.
func parseRule(item string) (Rule, error) {
	rule := Rule{To: NoLimit, text: item, from: tuneName}
	parts := strings.Split(item, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return rule, fmt.Errorf("expected collective:algorithm or collective:from-to:algorithm")
	}
	kind, ok := coll.ParseKind(strings.TrimSpace(parts[0]))
	if !ok || !kind.Collective() {
		return rule, fmt.Errorf("unknown collective %q, there are: %s", strings.TrimSpace(parts[0]), tunable())
	}
	rule.Kind = kind
	if len(parts) == 3 {
		if err := rule.parseRange(parts[1]); err != nil {
			return rule, err
		}
	}
	name, options, given := strings.Cut(parts[len(parts)-1], "@")
	rule.Algorithm = strings.TrimSpace(name)
	if given {
		if err := rule.parseOption(options); err != nil {
			return rule, err
		}
	}
	return rule, rule.check()
}

func (r *Rule) parseRange(text string) (err error) {
	from, to, ok := strings.Cut(text, "-")
	if !ok {
		return fmt.Errorf("range %q: expected from-to, such as 0-8K or 8K-inf", text)
	}
	if r.From, err = parseSize(from); err != nil {
		return err
	}
	r.To, err = parseSize(to)
	return err
}

func (r *Rule) parseOption(option string) error {
	name, value, _ := strings.Cut(option, "=")
	if strings.TrimSpace(name) != "chunk" {
		return fmt.Errorf("unknown option %q, there is: chunk", strings.TrimSpace(name))
	}
	chunk, err := parseSize(value)
	if err != nil {
		return err
	}
	if chunk == 0 || chunk > math.MaxInt32 {
		return r.chunkError(strings.TrimSpace(value))
	}
	r.Chunk = int(chunk)
	return nil
}

func (r Rule) chunkError(text string) error {
	if !r.usesSlots() {
		return fmt.Errorf("chunk %s: expected a multiple of %d below 2G", text, plan.Align)
	}
	return fmt.Errorf("chunk %s: expected a multiple of %d from %d to %dK",
		text, plan.Align, plan.Align, plan.LargeSlotBytes>>10)
}

// check refuses a rule that no group could follow.
func (r Rule) check() error {
	switch {
	case r.From >= r.To:
		return fmt.Errorf("range \"%s-%s\" is empty", size(r.From), size(r.To))
	case oneClass(r.Kind) && (r.From > 0 || r.To != NoLimit):
		return fmt.Errorf("the ranks of an %v need not know the same lengths (splits may be uneven), "+
			"so a rule for it is for all of them: write %v:%s", r.Kind, r.Kind, r.Algorithm)
	case !slices.Contains(Algorithms(r.Kind), r.Algorithm):
		return fmt.Errorf("unknown algorithm %q for %v, there are: %s",
			r.Algorithm, r.Kind, strings.Join(Algorithms(r.Kind), ", "))
	case r.Chunk == 0:
		return nil
	case r.Chunk < 0 || r.Chunk%plan.Align != 0 || r.usesSlots() && r.Chunk > plan.LargeSlotBytes:
		return r.chunkError(size(uint64(r.Chunk)))
	}
	return nil
}

// String returns the rule in the grammar of [ParseTune].
func (r Rule) String() string {
	text := fmt.Sprintf("%v:%s-%s:%s", r.Kind, size(r.From), size(r.To), r.Algorithm)
	if r.From == 0 && r.To == NoLimit {
		text = fmt.Sprintf("%v:%s", r.Kind, r.Algorithm)
	}
	if r.Chunk > 0 {
		text += "@chunk=" + size(uint64(r.Chunk))
	}
	return text
}

// usesSlots reports whether the algorithm is one of slot plans.
func (r Rule) usesSlots() bool { return slices.Contains(shmplan.Algorithms(r.Kind), r.Algorithm) }

// parseSize reads a length.
func parseSize(text string) (uint64, error) {
	text = strings.TrimSpace(text)
	if text == "inf" {
		return NoLimit, nil
	}
	digits, shift := text, 0
	if n := len(text) - 1; n > 0 {
		if i := strings.IndexByte("KMG", text[n]&^0x20); i >= 0 { // either case
			digits, shift = text[:n], 10*(i+1)
		}
	}
	value, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || value > math.MaxUint64>>shift {
		return 0, fmt.Errorf("size %q: expected a whole number of bytes, with K, M or G if you like, or inf", text)
	}
	return value << shift, nil
}

// size returns a length as text that parseSize reads.
func size(bytes uint64) string {
	if bytes == NoLimit {
		return "inf"
	}
	for i, unit := range []string{"G", "M", "K"} {
		if shift := 10 * (3 - i); bytes > 0 && bytes%(1<<shift) == 0 {
			return strconv.FormatUint(bytes>>shift, 10) + unit
		}
	}
	return strconv.FormatUint(bytes, 10)
}

// tunable returns the names of all collectives.
func tunable() string {
	var names []string
	for kind := range coll.KindCount {
		if kind.Collective() {
			names = append(names, kind.String())
		}
	}
	return strings.Join(names, ", ")
}

// overlaps reports whether two rules are for a common length of one kind.
func (r Rule) overlaps(other Rule) bool {
	return r.Kind == other.Kind && r.From < other.To && other.From < r.To
}

// covers reports whether the rule is for a length.
func (r Rule) covers(bytes uint64) bool {
	return bytes <= r.To && (bytes > r.From || r.From == 0)
}

// ruleFor returns the rule for a length, if there is one.
func ruleFor(rules []Rule, kind coll.Kind, bytes uint64) (Rule, bool) {
	for _, r := range rules {
		if r.Kind == kind && r.covers(bytes) {
			return r, true
		}
	}
	return Rule{}, false
}

// apply returns a table in which the rules of a kind replace the classes of their lengths.
func (p *predictor) apply(kind coll.Kind, rules []Rule, table []Class) ([]Class, error) {
	var edges []uint64
	for _, r := range rules {
		if r.Kind != kind {
			continue
		}
		if _, err := p.ruled(r, r.To); err != nil {
			return nil, fmt.Errorf("%s: rule %q: %w", r.from, r.text, err)
		}
		edges = append(edges, r.From, r.To)
	}
	if edges == nil {
		return table, nil
	}
	for _, g := range gradesOf(kind, p.shape.Size) { // they set the chunks of slot plans
		edges = append(edges, g.upTo)
	}
	return cut(table, edges, func(piece Class) Class {
		if r, ok := ruleFor(rules, kind, piece.UpTo); ok {
			if c, err := p.ruled(r, piece.UpTo); err == nil { // it was refused above
				return c
			}
		}
		return piece
	}), nil
}

// ruled returns the class that a rule makes for a length. It shortens the chunk of a slot plan to a slot, because
// lengths of the small slots are one chunk in any case. It refuses a chunk of a sendrecv plan that channels cannot
// carry.
func (p *predictor) ruled(r Rule, bytes uint64) (Class, error) {
	if r.usesSlots() {
		if !p.shape.sharesMemory() {
			return Class{}, fmt.Errorf("%s needs memory that all ranks share, and they are on %d hosts",
				r.Algorithm, len(p.shape.Hosts))
		}
		c := gradeOf(r.Kind, p.shape.Size, bytes).class(r.Kind, r.Algorithm)
		if r.Chunk > 0 {
			c.Chunk = min(r.Chunk, c.Slots.MaxChunk(r.Kind, p.shape.Size))
		}
		return c, nil
	}
	s, err := p.sendRecvCandidate(r.Kind, r.Algorithm, r.Chunk)
	return s.class, err
}
