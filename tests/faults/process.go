package main

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
)

// hangAfter is longer than any step of a rank takes on a busy machine.
const hangAfter = 30 * time.Second

// now returns the time on the clock of the ranks, in nanoseconds.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// result is what a rank answers to an order.
type result struct {
	Status      coll.Status
	OK          int   // calls that succeeded
	Entered, At int64 // of the last call: when it began and when it returned
	Rank        int   // the culprit
	PID         int
	Message     string
	held        level // of snapshot
}

func (r result) String() string {
	return fmt.Sprintf("%v after %d calls, names rank %d pid %d: %s", r.Status, r.OK, r.Rank, r.PID, r.Message)
}

// level counts the resources that a process holds.
type level struct{ descriptors, threads, mappings, storeCalls int }

// process is one rank's process. Between cells it is kept for the next one.
type process struct {
	cmd    *exec.Cmd
	pid    int
	in     io.WriteCloser
	stderr strings.Builder // to be read when it has ended
	ended  chan struct{}   // closed when it has ended and been waited for
	hits   chan int64      // when an armed fault happened, at the end of a channel that never fills up
	did    chan result     // what a fault did on another thread
	phases chan phase      // of a life; nil where nobody listens

	mu      sync.Mutex
	number  int
	waiting map[string]chan result
	said    []string // the last lines, orders included
	strange []string // lines that the tool does not understand
	threads string   // what they waited for when the process gave no answer

	base  level // before its first group
	rests []int // sizes of the last groups that it gave up after it had promised to join
}

// phase is where a rank is in its life.
type phase struct {
	name string
	op   int
}

func startProcess(b built) (*process, error) {
	p := &process{cmd: exec.Command(b.rank, b.library), ended: make(chan struct{}), hits: make(chan int64, 64),
		did: make(chan result, 4), phases: make(chan phase, 4096), waiting: map[string]chan result{}}
	p.cmd.Stderr, p.cmd.Env = &p.stderr, environment()
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.in = in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.pid = p.cmd.Process.Pid
	go p.listen(out)
	return p, nil
}

func (p *process) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		p.hear(lines.Text())
	}
	_ = p.cmd.Wait()
	close(p.ended)
}

func (p *process) note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said = append(p.said, line); len(p.said) > 60 {
		p.said = p.said[20:]
	}
}

func (p *process) hear(line string) {
	f := strings.Split(line, "\t")
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(f[i], 10, 64)
		return n
	}
	if f[0] != "phase" {
		p.note("< " + line)
	}
	var r result
	switch {
	case f[0] == "hit" && len(f) == 3:
		p.hits <- number(2)
		return
	case f[0] == "did" && len(f) == 6:
		p.did <- result{Status: coll.Status(number(2)), Entered: number(3), At: number(4), Message: f[5]}
		return
	case f[0] == "phase" && len(f) == 3:
		p.phases <- phase{f[1], int(number(2))}
		return
	case f[0] == "done" && len(f) == 9:
		r = result{Status: coll.Status(number(2)), OK: int(number(3)), Entered: number(4), At: number(5), Rank: int(number(6)),
			PID: int(number(7)), Message: f[8]}
	case f[0] == "held" && len(f) == 6:
		r.held = level{int(number(2)), int(number(3)), int(number(4)), int(number(5))}
	default:
		p.mu.Lock()
		p.strange = append(p.strange, line)
		p.mu.Unlock()
		return
	}
	p.mu.Lock()
	answer := p.waiting[f[1]]
	delete(p.waiting, f[1])
	p.mu.Unlock()
	if answer != nil {
		answer <- r
	}
}

// order gives an order; the answer comes through the channel.
func (p *process) order(what string, words ...any) <-chan result {
	p.mu.Lock()
	p.number++
	id := strconv.Itoa(p.number)
	answer := make(chan result, 1)
	p.waiting[id] = answer
	p.mu.Unlock()
	line := what + " " + id
	for _, w := range words {
		line += fmt.Sprint(" ", w)
	}
	p.note("> " + line)
	_, _ = io.WriteString(p.in, line+"\n") // if the process has ended, the answer says so
	return answer
}

// await returns the answer to an order.
func (p *process) await(answer <-chan result) (result, error) {
	hang := time.NewTimer(hangAfter)
	defer hang.Stop()
	select {
	case r := <-answer:
		return r, nil
	case <-p.ended:
		select {
		case r := <-answer:
			return r, nil
		default:
			return result{}, fmt.Errorf("process %d has ended: %v", p.pid, p.cmd.ProcessState)
		}
	case <-hang.C:
		p.dump()
		return result{}, fmt.Errorf("process %d hangs", p.pid)
	}
}

// hit waits until the armed fault happens.
func (p *process) hit() (int64, error) {
	hang := time.NewTimer(hangAfter)
	defer hang.Stop()
	select {
	case at := <-p.hits:
		return at, nil
	case <-p.ended:
		select {
		case at := <-p.hits:
			return at, nil
		default:
		}
		return 0, fmt.Errorf("process %d has ended: %v", p.pid, p.cmd.ProcessState)
	case <-hang.C:
		p.dump()
		return 0, fmt.Errorf("process %d did not reach its fault", p.pid)
	}
}

// hitWithin waits until the armed fault happens, for d at most. The next hit() finds it.
func (p *process) hitWithin(d time.Duration) {
	select {
	case at := <-p.hits:
		p.hits <- at
	case <-p.ended:
	case <-time.After(d):
	}
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
	_ = p.in.Close()
}

// finish lets the process end by itself.
func (p *process) finish() error {
	_ = p.in.Close()
	select {
	case <-p.ended:
	case <-time.After(hangAfter):
		p.dump()
		p.kill()
		return fmt.Errorf("process %d did not end when it was told to: %s", p.pid, p.tail())
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("process %d: %v: %s", p.pid, p.cmd.ProcessState, p.stderr.String())
	}
	return nil
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// stopped waits until a process has stopped.
func (p *process) stopped() error {
	for began := time.Now(); time.Since(began) < hangAfter; time.Sleep(100 * time.Microsecond) {
		state, err := processState(p.pid)
		if err != nil {
			return err
		}
		if state == 'T' {
			return nil
		}
	}
	return fmt.Errorf("process %d does not stop", p.pid)
}

// misunderstood returns the lines that the tool has not understood, once.
func (p *process) misunderstood() (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list, p.strange = p.strange, nil
	return list
}

// tail returns the last orders and answers of the rank.
func (p *process) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := strings.Join(p.said, "\n    ")
	if p.threads != "" {
		text += "\n    gave no answer; its threads then:\n" + p.threads
	}
	if !p.alive() {
		text += "\n    ended: " + p.cmd.ProcessState.String() + " " + firstOf(p.stderr.String())
	}
	return text
}
