package pgbackend

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/env"
)

// output is where lines go: standard error, or the file of SAGECOMM_DEBUG_FILE.
var output struct {
	sync.Mutex
	to   io.Writer // nil: standard error
	host string    // in lines of a file, which may be gathered from several hosts
}

// logTo opens the file of the first group that names one.
func logTo(pattern string, rank int) error {
	output.Lock()
	defer output.Unlock()
	if pattern == "" || output.to != nil {
		return nil
	}
	f, err := os.OpenFile(expand(pattern, rank), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("sagecomm: %s: %w", env.DebugFile.Name(), err)
	}
	output.to, output.host = f, bootstrap.HostName()
	return nil
}

// expand puts the host for %h, the process for %p and the rank in the job for %r; %% is a percent sign.
func expand(pattern string, rank int) string {
	return strings.NewReplacer("%%", "%", "%h", bootstrap.HostName(), "%p", strconv.Itoa(os.Getpid()), "%r", strconv.Itoa(rank)).Replace(pattern)
}

// say writes one line. A closed standard error is no reason to fail.
func say(level, text string) {
	output.Lock()
	defer output.Unlock()
	if output.to == nil {
		_, _ = fmt.Fprintf(os.Stderr, "sagecomm %s [%d] %s\n", level, os.Getpid(), text)
		return
	}
	_, _ = fmt.Fprintf(output.to, "%s sagecomm %s [%s:%d] %s\n", time.Now().Format("2006-01-02T15:04:05.000000"), level, output.host, os.Getpid(), text)
}

// warn prints a sentence once per process.
func (p *Process) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.mu.Lock()
	seen := p.warned[text]
	p.warned[text] = true
	p.mu.Unlock()
	if !seen {
		say("WARN", text)
	}
}

func (g *Group) info(format string, args ...any) {
	if env.Debug.Get(g.settings) >= env.Info {
		say("INFO", fmt.Sprintf("group %q rank %d: ", g.name, g.rank)+fmt.Sprintf(format, args...))
	}
}
