package algo

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"sagecomm/algo/board"
	"sagecomm/internal/coll"
)

// tuneName is the variable that rules come from, for error messages.
const tuneName = "SAGECOMM_TUNE"

// Rule sets the algorithm of one collective for a range of lengths: those above From (or from 0 on, if From is 0) up
// to and including To. So "0-8K" and "8K-inf" meet without a gap and 8 KiB belongs to the first.
type Rule struct {
	Kind      coll.Kind
	From, To  uint64
	Algorithm string
	Chunk     int // 0: as predicted

	text string
}

// Tune is the user's rules. No two of them meet.
type Tune []Rule

// ParseTune reads rules separated by semicolons:
//
//	collective[:from-to]:algorithm[@chunk=bytes]
//
// Lengths are whole numbers with an optional K, M or G (powers of 1024); "inf" is no limit. Without a range a rule is
// for all lengths. Example: all_reduce:0-8K:one_shot;all_reduce:8K-inf:two_shot@chunk=128K
func ParseTune(text string) (Tune, error) {
	var tune Tune
	for item := range strings.SplitSeq(text, ";") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		rule, err := parseRule(item)
		if err != nil {
			return nil, fmt.Errorf("%s: rule %q: %w", tuneName, item, err)
		}
		for _, other := range tune {
			if rule.overlaps(other) {
				return nil, fmt.Errorf("%s: rule %q overlaps rule %q: a length can have one rule only", tuneName, item, other.text)
			}
		}
		tune = append(tune, rule)
	}
	return tune, nil
}

func parseRule(item string) (Rule, error) {
	rule := Rule{To: NoLimit, text: item}
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
		from, to, ok := strings.Cut(parts[1], "-")
		if !ok {
			return rule, fmt.Errorf("range %q: expected from-to, such as 0-8K or 8K-inf", parts[1])
		}
		var err error
		if rule.From, err = parseSize(from); err != nil {
			return rule, err
		}
		if rule.To, err = parseSize(to); err != nil {
			return rule, err
		}
		if rule.From >= rule.To {
			return rule, fmt.Errorf("range %q is empty", parts[1])
		}
	}
	name, options, given := strings.Cut(parts[len(parts)-1], "@")
	rule.Algorithm = strings.TrimSpace(name)
	if !slices.Contains(board.Algorithms(kind), rule.Algorithm) {
		return rule, fmt.Errorf("unknown algorithm %q for %v, there are: %s", rule.Algorithm, kind, strings.Join(board.Algorithms(kind), ", "))
	}
	if given {
		return rule, rule.parseOption(options)
	}
	return rule, nil
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
	if chunk == 0 || chunk%board.Align != 0 || chunk > board.LargeSlot {
		return fmt.Errorf("chunk %s: expected a multiple of %d from %d to %dK", strings.TrimSpace(value), board.Align, board.Align, board.LargeSlot>>10)
	}
	r.Chunk = int(chunk)
	return nil
}

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

func tunable() string {
	var names []string
	for kind := range coll.KindCount {
		if kind.Collective() {
			names = append(names, kind.String())
		}
	}
	return strings.Join(names, ", ")
}

func (r Rule) overlaps(other Rule) bool {
	return r.Kind == other.Kind && r.From < other.To && other.From < r.To
}

// covers says whether the rule is for messages of that length.
func (r Rule) covers(bytes uint64) bool {
	return bytes <= r.To && (bytes > r.From || r.From == 0)
}

// rule returns the rule for a message, if there is one.
func (t Tune) rule(kind coll.Kind, bytes uint64) (Rule, bool) {
	for _, r := range t {
		if r.Kind == kind && r.covers(bytes) {
			return r, true
		}
	}
	return Rule{}, false
}

// apply puts the rules of a kind on top of its predicted classes. A rule's chunk is cut to what a slot of the lane holds:
// a message of the small lane is one chunk in any case.
func (t Tune) apply(kind coll.Kind, size int, predicted []Class) []Class {
	var table []Class
	add := func(c Class) {
		if n := len(table); n > 0 && table[n-1].Algorithm == c.Algorithm && table[n-1].Lane == c.Lane && table[n-1].Chunk == c.Chunk {
			table[n-1].UpTo = c.UpTo
			return
		}
		table = append(table, c)
	}
	low := uint64(0)
	for _, class := range predicted {
		for low <= class.UpTo {
			// The piece from low to the next edge of a rule lies in one rule or in none.
			piece := class
			for _, r := range t {
				if r.Kind != kind {
					continue
				}
				for _, edge := range []uint64{r.From, r.To} {
					if edge >= low && edge < piece.UpTo && edge > 0 {
						piece.UpTo = edge
					}
				}
			}
			if r, ok := t.rule(kind, piece.UpTo); ok {
				piece.Algorithm = r.Algorithm
				piece.Lane = laneFor(kind, r.Algorithm, class.UpTo)
				if r.Chunk > 0 {
					piece.Chunk = min(r.Chunk, piece.Lane.MaxChunk(kind, size))
				}
			}
			add(piece)
			if piece.UpTo == NoLimit {
				return table
			}
			low = piece.UpTo + 1
		}
	}
	return table
}
