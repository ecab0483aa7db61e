package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// replaced are words that docs/glossary.md has replaced. Each stood for an idea that has another name now, or for several
// ideas at once. The words of identifiers are seen as well: makeFlow is "make flow", scr_fold_fn is "scr fold fn".
var replaced = []struct {
	stem string // what a line with the word contains, whatever its case
	word *regexp.Regexp
	say  string
}{
	{"board", regexp.MustCompile(`\b(board)s?\b`), "shared block, slot or slot plan"},
	{"lane", regexp.MustCompile(`\b(small|large) (lane)s?\b`), "small slots, large slots"},
	{"flow", regexp.MustCompile(`\b(flow)s?\b`), "channel (or data flow)"},
	{"ring", regexp.MustCompile(`\bscr (ring)s?\b`), "fifo, or wake"},
	{"fold", regexp.MustCompile(`\b(fold)(s|ed|ing)?\b`), "reduce"},
	{"trouble", regexp.MustCompile(`\b(trouble)s?\b`), "incident"},
	{"judg", regexp.MustCompile(`\b(judge)(s|d)?\b|\b(judging)\b`), "diagnose"},
	{"blam", regexp.MustCompile(`\b(blame)(s|d)?\b|\b(blaming)\b`), "culprit, or name"},
	{"bundle", regexp.MustCompile(`\b(bundle)(s|d)?\b`), "composite work"},
	{"patience", regexp.MustCompile(`\b(patience)\b`), "backoff"},
	{"let", regexp.MustCompile(`\b(let go)\b`), "release"},
	{"fallen", regexp.MustCompile(`\b(fallen)\b`), "failed"},
	{"wish", regexp.MustCompile(`\b(wish)(es)?\b`), "tuning settings"},
	{"finding", regexp.MustCompile(`\b(finding)s?\b`), "probe result"},
	{"alarm", regexp.MustCompile(`\b(alarm)\b`), "failure callback"},
	{"peerwatch", regexp.MustCompile(`\bpeerwatch\b`), "procwatch"},
	{"procinfo", regexp.MustCompile(`\bprocinfo\b`), "procwatch"},
}

// allowed are phrases in which such a word has its ordinary meaning.
var allowed = regexp.MustCompile(`(?i)\bdata flows?\b|\bequal fold\b|\bboard\.[a-z]*|\bcontrol flow\b|\bworkflows?\b`)

// spoken are kinds of files that people read.
var spoken = []string{".go", ".c", ".h", ".cpp", ".hpp", ".py", ".md", ".toml", ".txt", ".json", ".pyi", ".S", ".inc", ""}

// exempt are files that name the words themselves, or what others wrote.
var exempt = []string{"docs/glossary.md", "tests/lint/words_test.go", "LICENSE", "internal/lazylink/nvml_symbols.h", "internal/lazylink/cu_symbols.h"}

var (
	humps   = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)
	digits  = regexp.MustCompile(`([A-Za-z])([0-9])`)
	scores  = regexp.MustCompile(`_+`)
	newline = regexp.MustCompile(`\r?\n`)
)

// words makes prose of a line: identifiers fall into their words, all in lower case.
func words(line string) string {
	line = humps.ReplaceAllString(line, "$1$3 $2$4")
	line = digits.ReplaceAllString(line, "$1 $2")
	line = scores.ReplaceAllString(line, " ")
	return strings.ToLower(line)
}

// replacedIn returns what a line should say instead of the first replaced word in it, and that word; "" if there is none.
func replacedIn(line string) (word, say string) {
	lower := strings.ToLower(line)
	for _, r := range replaced {
		if !strings.Contains(lower, r.stem) { // searching most lines for the expression takes seconds
			continue
		}
		if found := r.word.FindString(allowed.ReplaceAllString(words(line), "")); found != "" {
			return found, r.say
		}
	}
	return "", ""
}

func TestWordsOfTheGlossary(t *testing.T) {
	list, err := exec.Command("git", "-C", "../..", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("no list of files: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if !slices.Contains(spoken, filepath.Ext(name)) || slices.Contains(exempt, name) {
			continue
		}
		if word, say := replacedIn(strings.TrimSuffix(filepath.ToSlash(name), filepath.Ext(name))); word != "" {
			t.Errorf("%s: its name says %q; say %s (docs/glossary.md)", name, word, say)
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			if os.IsNotExist(err) { // deleted, and not yet committed
				continue
			}
			t.Fatal(err)
		}
		for i, line := range newline.Split(string(text), -1) {
			if word, say := replacedIn(line); word != "" {
				t.Errorf("%s:%d: %q; say %s (docs/glossary.md): %s", name, i+1, word, say, strings.TrimSpace(line))
			}
		}
	}
}

func TestReplacedWordsAreFound(t *testing.T) {
	for line, want := range map[string]string{
		"the boards of peers": "boards", "func makeFlow()": "flow", "SCR_LARGE_FOLD_MAX": "fold", "scr_ring_put(x)": "scr ring",
		"g.letGo()": "let go", "overflow and data flow": "", "a ring of ranks": "", "keyboard": "", "BoardBytes": "board", "_fold_bool": "fold", "flow0": "flow", "SCRFlow": "flow", "x_": "",
	} {
		if word, _ := replacedIn(line); word != want {
			t.Errorf("in %q: found %q, expected %q", line, word, want)
		}
	}
}
