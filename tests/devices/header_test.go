package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// header is what a vendor's header says. Tables of calls name its parameters, fields and enumerators, and fail with a name that it does
// not have, or parameters in another order.
type header struct {
	t          *testing.T
	path, text string
	parameters map[string][]string // by name of the function
	aliases    map[string]string   // what a macro makes of the name of a function
	numbers    map[string]int64    // enumerators, and macros that are a number
}

var (
	comments  = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	prototype = regexp.MustCompile(`(?:CUDAAPI|DECLDIR)\s+(?:char\s*\*\s*)?(\w+)\s*\(([^;{]*?)\)\s*;`)
	parameter = regexp.MustCompile(`(\w+)(?:\[\w*\])?$`)
	define    = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S+)[ \t]*$`)
	ptsz      = regexp.MustCompile(`^__CUDA_API_PT[DS][SZ]\((\w+)\)$`)
	enum      = regexp.MustCompile(`\benum\s*\w*\s*\{([^}]*)\}`)
)

func readHeader(t *testing.T, path string) *header {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	h := &header{t: t, path: path, text: comments.ReplaceAllString(string(content), " "),
		parameters: map[string][]string{}, aliases: map[string]string{}, numbers: map[string]int64{}}
	for _, found := range prototype.FindAllStringSubmatch(h.text, -1) {
		if _, known := h.parameters[found[1]]; known { // prototypes of earlier versions come last
			continue
		}
		names := []string{}
		for one := range strings.SplitSeq(found[2], ",") {
			if one = strings.TrimSpace(one); one != "" && one != "void" {
				names = append(names, parameter.FindStringSubmatch(one)[1])
			}
		}
		h.parameters[found[1]] = names
	}
	for _, found := range define.FindAllStringSubmatch(h.text, -1) {
		value := found[2]
		if inner := ptsz.FindStringSubmatch(value); inner != nil {
			value = inner[1]
		}
		if number, ok := h.number(value); ok {
			h.numbers[found[1]] = number
		} else if _, known := h.aliases[found[1]]; !known {
			h.aliases[found[1]] = value
		}
	}
	for _, found := range enum.FindAllStringSubmatch(h.text, -1) {
		next, sure := int64(0), true
		for one := range strings.SplitSeq(found[1], ",") {
			name, value, given := strings.Cut(one, "=")
			if given {
				next, sure = h.number(strings.TrimSpace(value))
			}
			if name = strings.TrimSpace(name); name != "" && sure {
				h.numbers[name] = next
			}
			next++
		}
	}
	return h
}

// number returns a number, or that of an enumerator.
func (h *header) number(text string) (int64, bool) {
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return n, true
	}
	n, known := h.numbers[text]
	return n, known
}

// symbol returns the name by which a library has a function.
func (h *header) symbol(function string) string {
	if other, known := h.aliases[function]; known {
		return other
	}
	return function
}

// call returns an expected call for a line of a table: the name of a function and `parameter=value` for each parameter, or the name of a
// structure and `field=value`, or a line without names. A value is a number, enumerators with | between them, or what recording has.
func (h *header) call(line string) string {
	h.t.Helper()
	words := strings.Fields(line)
	names, is := h.parameters[words[0]]
	at := 0 // in the text of the structure
	body := h.structure(words[0])
	made := []string{h.symbol(words[0])}
	for i, word := range words[1:] {
		name, value, named := strings.Cut(word, "=")
		switch {
		case !named:
			value = name
			require.False(h.t, is || body != "", "%s: %q has no name", line, word)
		case is:
			require.Less(h.t, i, len(names), "%s: %s has the parameters %v", line, words[0], names)
			require.Equal(h.t, names[i], name, "%s: %s has the parameters %v", line, words[0], names)
		default:
			outer, _, _ := strings.Cut(name, ".")
			found := regexp.MustCompile(`\b` + outer + `\b`).FindStringIndex(body[at:])
			require.NotNil(h.t, found, "%s: %s has no field %s here: %s", line, words[0], outer, body)
			at += found[0]
		}
		made = append(made, h.value(line, value))
	}
	require.False(h.t, is && len(words) != len(names)+1, "%s: %s has the parameters %v", line, words[0], names)
	return strings.Join(made, " ")
}

// value returns a value with numbers in place of enumerators.
func (h *header) value(line, value string) string {
	if !regexp.MustCompile(`^[A-Z]+_\w`).MatchString(value) {
		return value
	}
	sum := int64(0)
	for name := range strings.SplitSeq(value, "|") {
		n, known := h.numbers[name]
		require.True(h.t, known, "%s: %s has no %s", line, h.path, name)
		sum |= n
	}
	return fmt.Sprint(sum)
}

// structure returns the fields of a structure, "" if there is none of that name.
func (h *header) structure(name string) string {
	_, body, found := strings.Cut(h.text, "struct "+name+"_st {")
	if !found {
		return ""
	}
	body, _, _ = strings.Cut(body, "} "+name)
	return body
}

// headerOfCUDA is the cuda.h with which the emulated driver is built.
func headerOfCUDA(t *testing.T) *header {
	t.Helper()
	found, err := filepath.Glob("../../.venv/lib/python3*/site-packages/nvidia/cu13/include/cuda.h")
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return readHeader(t, found[0])
}

// The order, the names and the numbers of a table are compared with the header.
func TestLinesThatAHeaderDoesNotHave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "some.h")
	require.NoError(t, os.WriteFile(path, []byte(`
typedef enum CUkind_enum { CU_FIRST, CU_SECOND = 0x4, /* CU_THIRD, */ CU_FOURTH } CUkind;
#define CU_FLAG 0x10
#define cuCopy __CUDA_API_PTSZ(cuCopy_v2)
typedef struct CUplace_st { int kind; struct { int id; } location; } CUplace;
CUresult CUDAAPI cuCopy(void *to, const void *from, // of the host
                        size_t bytes);
CUresult CUDAAPI cuNothing(void);
`), 0o600))
	h := readHeader(t, path)
	require.Equal(t, "cuCopy_v2 * host 21", h.call("cuCopy to=* from=host bytes=CU_FOURTH|CU_FLAG"))
	require.Equal(t, "cuNothing", h.call("cuNothing"))
	require.Equal(t, "CUplace 0 7", h.call("CUplace kind=CU_FIRST location.id=7"))
	require.Equal(t, "-> 4", h.call("-> CU_SECOND"))
	for _, wrong := range []string{"cuCopy from=host to=* bytes=5", "cuCopy to=* from=host", "cuCopy to=* host bytes=5", "CUplace location.id=7 kind=CU_FIRST",
		"cuCopy to=* from=host bytes=CU_THIRD", "cuCopy to=* from=host bytes=5 bytes=5"} {
		failed := make(chan bool)
		go func() { // a failed requirement ends its goroutine
			inner := *h
			inner.t = new(testing.T)
			defer func() { failed <- inner.t.Failed() }()
			inner.call(wrong)
		}()
		require.True(t, <-failed, wrong)
	}
}
