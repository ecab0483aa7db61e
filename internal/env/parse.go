package env

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// parser turns a text into a T and describes the texts that it accepts.
type parser[T any] struct {
	accepts string
	from    func(text string) (T, error)
}

// Optional is a value that a user may leave to the library.
type Optional[T any] struct {
	Value T
	Given bool // false: the library decides
}

// notAccepted is the error of a parser that does not accept a text. The caller adds the variable, the text and the accepted
// form, so most parsers give no further reason.
type notAccepted string

func (e notAccepted) Error() string { return string(e) }

// reject returns an error that adds a reason to the standard sentence, or nothing if why is empty.
func reject(why string) error { return notAccepted(why) }

func text(accepts string) parser[string] {
	return parser[string]{accepts, func(s string) (string, error) { return s, nil }}
}

// choice is a word that a variable accepts, with the value that it stands for.
type choice[T any] struct {
	word  string
	value T
}

// oneOf accepts the words of some choices in any case. Users read the words in the order given here.
func oneOf[T any](choices ...choice[T]) parser[T] {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = c.word
	}
	return parser[T]{"one of " + strings.Join(words, ", "), func(s string) (T, error) {
		for _, c := range choices {
			if strings.EqualFold(c.word, s) {
				return c.value, nil
			}
		}
		var none T
		return none, reject("")
	}}
}

// offOrOn accepts the words of a switch.
func offOrOn() parser[bool] { return oneOf(choice[bool]{"off", false}, choice[bool]{"on", true}) }

// listOf accepts an ordered list of words, each at most once.
func listOf(words ...string) parser[[]string] {
	accepts := "ordered list out of " + strings.Join(words, ",")
	return parser[[]string]{accepts, func(s string) ([]string, error) {
		var list []string
		for part := range strings.SplitSeq(s, ",") {
			w := strings.ToLower(strings.TrimSpace(part))
			if !slices.Contains(words, w) {
				return nil, reject(fmt.Sprintf("%q is none of them", part))
			}
			if slices.Contains(list, w) {
				return nil, reject(fmt.Sprintf("%q stands twice", w))
			}
			list = append(list, w)
		}
		return list, nil
	}}
}

func absolutePath() parser[string] {
	return parser[string]{"absolute path of a directory", func(s string) (string, error) {
		if !filepath.IsAbs(s) {
			return "", reject("the path is relative")
		}
		return filepath.Clean(s), nil
	}}
}

// byteSize accepts a number of bytes with an optional K, M, G or T (powers of 1024).
func byteSize(least, most int64) parser[int64] {
	accepts := fmt.Sprintf("bytes, with K, M, G or T for powers of 1024, from %s to %s", FormatBytes(least), FormatBytes(most))
	return parser[int64]{accepts, func(s string) (int64, error) {
		n, err := ParseBytes(s)
		if err != nil {
			return 0, reject("")
		}
		if n < least || n > most {
			return 0, reject("out of range")
		}
		return n, nil
	}}
}

// ParseBytes reads a number of bytes such as 4096, 512K, 64M, 1G, 2T (powers of 1024; "KB" and "KiB" mean the same).
func ParseBytes(s string) (int64, error) {
	t := strings.ToUpper(strings.TrimSpace(s))
	if short, ok := strings.CutSuffix(t, "IB"); ok {
		t = short
	} else {
		t = strings.TrimSuffix(t, "B")
	}
	shift := 0
	if t != "" {
		if i := strings.IndexByte("KMGT", t[len(t)-1]); i >= 0 {
			shift = 10 * (i + 1)
			t = t[:len(t)-1]
		}
	}
	n, err := strconv.ParseUint(t, 10, 63)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a number of bytes", s)
	}
	return int64(n) << shift, nil
}

// FormatBytes writes n in the largest unit that divides it.
func FormatBytes(n int64) string {
	for i, unit := range []string{"T", "G", "M", "K"} {
		if size := int64(1) << (10 * (4 - i)); n != 0 && n%size == 0 {
			return strconv.FormatInt(n/size, 10) + unit
		}
	}
	return strconv.FormatInt(n, 10)
}

func seconds() parser[time.Duration] {
	return parser[time.Duration]{"seconds, more than 0", func(s string) (time.Duration, error) {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !(f > 0) || f > math.MaxInt64/1e9 { // the negation refuses NaN too
			return 0, reject("")
		}
		return max(time.Duration(f*1e9), 1), nil
	}}
}

// secondsWithin accepts a number of seconds within bounds.
func secondsWithin(least, most time.Duration) parser[time.Duration] {
	accepts := fmt.Sprintf("seconds, %v to %v", least.Seconds(), most.Seconds())
	return parser[time.Duration]{accepts, func(s string) (time.Duration, error) {
		d, err := seconds().from(s)
		if err != nil || d < least || d > most {
			return 0, reject("")
		}
		return d, nil
	}}
}

// countWithin accepts a whole number within bounds.
func countWithin(least, most int) parser[int] {
	return parser[int]{fmt.Sprintf("number, %d to %d", least, most), func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < least || n > most {
			return 0, reject("")
		}
		return n, nil
	}}
}

func microseconds() parser[time.Duration] {
	const most = 10_000_000
	return parser[time.Duration]{"microseconds, 0 to 10000000", func(s string) (time.Duration, error) {
		n, err := strconv.ParseUint(s, 10, 63)
		if err != nil || n > most {
			return 0, reject("")
		}
		return time.Duration(n) * time.Microsecond, nil
	}}
}

// cpuList accepts the kernel's form, 0-3,8.
func cpuList() parser[[]int] {
	const most = 1 << 16
	return parser[[]int]{"list of cores such as 0-3,8", func(s string) ([]int, error) {
		var cpus []int
		for part := range strings.SplitSeq(s, ",") {
			low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
			first, err := strconv.ParseUint(low, 10, 16)
			last := first
			if err == nil && isRange {
				last, err = strconv.ParseUint(high, 10, 16)
			}
			if err != nil || last < first || last >= most {
				return nil, reject(fmt.Sprintf("%q is no core and no range of cores", part))
			}
			for c := first; c <= last; c++ {
				cpus = append(cpus, int(c))
			}
		}
		slices.Sort(cpus)
		return slices.Compact(cpus), nil
	}}
}

// orWord also accepts a word that leaves the value to the library.
func orWord[T any](word string, p parser[T]) parser[Optional[T]] {
	return parser[Optional[T]]{p.accepts + ", or " + word, func(s string) (Optional[T], error) {
		if strings.EqualFold(s, word) {
			return Optional[T]{}, nil
		}
		v, err := p.from(s)
		return Optional[T]{Value: v, Given: err == nil}, err
	}}
}
