package ranks

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/bootstrap"
	"sagecomm/internal/coll"
	"sagecomm/internal/runner"
	"sagecomm/pgbackend"
)

// orders are the settings that a rank is started with.
type orders struct {
	Rank, Size int
	Dir        string // the store's
	Options    map[string]string
	Place      *place // nil: where the test is
}

// command is one line of a rank's input. It answers each with one report, but stops in the middle of Loop.
type command struct {
	Do         string
	Rank, Size int // of create, in place of the orders'
	Name       string
	Ops        int           // of loop; 0: until it fails
	Elements   int           // of loop and reduce; of loop 0: different numbers
	Async      bool          // of reduce: the engine drives
	Timeout    time.Duration // of create, timeout and scribble
	Seed       uint64        // of scribble, by rank Rank
	Die        string        // the process kills itself when create writes a key that has this in it
}

// report is one line of a rank's output.
type report struct {
	Did        string
	Error      string        // of create; At is when it returned
	Failure    *coll.Failure // of the operations
	Entered    time.Time     // the operation that failed
	At         time.Time     // when that returned
	Ops        int
	Longest    time.Duration // that one of them took
	FDs        int
	Goroutines int
	Held       int64 // bytes of memory that the process's memfd takes
}

type rankState struct {
	orders
	group *pgbackend.Group
	out   *json.Encoder
	spare []int // descriptors that are the store's, of a process that has no more
	kept  []int // and what keeps it from having more
}

func rankMain(text string) error {
	var r rankState
	defer r.feed()
	if err := json.Unmarshal([]byte(text), &r.orders); err != nil {
		return err
	}
	if r.Place != nil && os.Getenv(placedVariable) == "" {
		return r.Place.settle()
	}
	r.out = json.NewEncoder(os.Stdout)
	in := json.NewDecoder(os.Stdin)
	for {
		var c command
		if err := in.Decode(&c); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		answer := report{Did: c.Do}
		if err := r.do(c, &answer); err != nil {
			return fmt.Errorf("%s: %w", c.Do, err)
		}
		if err := r.out.Encode(answer); err != nil {
			return err
		}
	}
}

// store returns the store in which the ranks meet for a group.
func (r *rankState) store(c command) (bootstrap.Store, error) {
	if r.Place == nil {
		return bootstrap.NewFileStore(filepath.Join(r.Dir, c.Name))
	}
	unix.Umask(0) // the directory is for other users at once
	dir := filepath.Join(r.Dir, c.Name)
	return openStore{dir}, os.MkdirAll(dir, 0o777)
}

func (r *rankState) do(c command, answer *report) (err error) {
	switch c.Do {
	case "create":
		if c.Size == 0 {
			c.Rank, c.Size, c.Timeout = r.Rank, r.Size, max(c.Timeout, 1)
			if c.Timeout == 1 {
				c.Timeout = opTimeout
			}
		}
		store, err := r.store(c)
		if err != nil {
			return err
		}
		if r.spare != nil {
			store = sparingStore{store, r}
		}
		g, err := pgbackend.Get().Create(pgbackend.Config{Rank: c.Rank, Size: c.Size, Name: c.Name, Timeout: c.Timeout,
			Store: deadlyStore{store, c.Die}, Options: r.Options})
		if err != nil {
			answer.Error, answer.At = err.Error(), time.Now()
		}
		r.group = g
	case "timeout": // the timeout of all later operations
		return r.group.SetTimeout(c.Timeout)
	case "loop":
		return r.loop(c, answer)
	case "async":
		return r.async(answer)
	case "reduce":
		return r.reduce(c, answer)
	case "ring":
		return r.ring(c.Size, answer)
	case "once":
		answer.Failure = r.sum(max(c.Elements, 1))
	case "everything":
		answer.Failure = r.everything()
	case "refuse": // from now on the system has no memory for this process
		return refused{Call: unix.SYS_FALLOCATE, Error: uint32(unix.ENOSPC), Plain: true}.install()
	case "confine": // from now on so many more bytes of address space
		return confine(int64(c.Elements) << 20)
	case "conceal": // from now on other processes of this user cannot look into this one
		return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	case "send":
		answer.Failure = r.send(c.Rank)
	case "receive":
		answer.Failure = r.receive(c.Rank)
	case "destroy":
		return r.group.Destroy()
	case "starve": // from now on it can open so many files, its store a few more
		return r.starve(c.Ops)
	case "solo": // a group of this rank alone, as the first thing that Go does here
		g, err := pgbackend.Get().Create(pgbackend.Config{Size: 1, Name: "solo", Timeout: opTimeout, Store: forgetfulStore{}})
		if err != nil {
			answer.Error = err.Error()
			return nil
		}
		return g.Destroy()
	case "scribble":
		return r.fuzz(c, answer)
	case "held":
		answer.Held, err = held()
		return err
	case "count": // what earlier groups left behind goes when the next one is made
		solo, err := pgbackend.Get().Create(pgbackend.Config{Size: 1, Name: "solo", Timeout: opTimeout, Store: bootstrap.NewMemStore()})
		if err != nil {
			return err
		}
		if err := solo.Destroy(); err != nil {
			return err
		}
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		answer.FDs, answer.Goroutines = len(list), runtime.NumGoroutine()
		answer.Held, err = held()
		return err
	default:
		return errors.New("no such command")
	}
	return nil
}

// deadlyStore ends the process at a moment of the rendezvous.
type deadlyStore struct {
	bootstrap.Store
	at string
}

func (s deadlyStore) Set(key string, value []byte) error {
	if s.at != "" && strings.Contains(key, s.at) {
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	return s.Store.Set(key, value)
}

// sum is an all_reduce whose result is checked.
func (r *rankState) sum(n int) *coll.Failure {
	b := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(i*7+r.group.Rank()))
	}
	if _, f := r.group.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int32}, [][]byte{b}, [][]byte{b}); f != nil {
		return f
	}
	size := r.group.Size()
	for i := range n {
		if got, want := binary.LittleEndian.Uint32(b[4*i:]), uint32(size*i*7+size*(size-1)/2); got != want {
			return &coll.Failure{Status: coll.Internal, Message: fmt.Sprintf("element %d of %d is %d, expected %d", i, n, got, want)}
		}
	}
	return nil
}

// loop reports "looping" when it has begun.
func (r *rankState) loop(c command, answer *report) error {
	elements := []int{1, 10, 1000, 2048, 30_000, 100_000}
	for ; c.Ops == 0 || answer.Ops < c.Ops; answer.Ops++ {
		n := c.Elements
		if n == 0 {
			n = elements[answer.Ops%len(elements)]
		}
		answer.Entered = time.Now()
		if answer.Failure = r.sum(n); answer.Failure != nil {
			answer.At = time.Now()
			return nil
		}
		if answer.Ops == 20 && c.Ops == 0 {
			if err := r.out.Encode(report{Did: "looping"}); err != nil {
				return err
			}
		}
	}
	return nil
}

// async leaves an all_reduce to the progress engine and reports "issued" when it has issued it.
func (r *rankState) async(answer *report) error {
	b := [][]byte{make([]byte, 40)}
	work, f := r.group.Issue(coll.Op{Kind: coll.AllReduce, Type: coll.Int32, Async: true}, b, b)
	if answer.Failure = f; f != nil {
		return nil
	}
	defer work.Release()
	done := make(chan *coll.Failure, 1)
	work.OnDone(func(f *coll.Failure) { done <- f })
	if err := r.out.Encode(report{Did: "issued"}); err != nil {
		return err
	}
	answer.Failure = <-done
	return nil
}

// reduce spends its time inside reduces to rank 0, until one fails. It says "looping" after the first.
func (r *rankState) reduce(c command, answer *report) error {
	in, out := make([]byte, 4*c.Elements), make([]byte, 4*c.Elements)
	for ; answer.Failure == nil; answer.Ops++ {
		if answer.Ops == 1 {
			if err := r.out.Encode(report{Did: "looping"}); err != nil {
				return err
			}
		}
		var work runner.Work
		work, answer.Failure = r.group.Issue(coll.Op{Kind: coll.Reduce, Type: coll.Float32, Async: c.Async}, [][]byte{in}, [][]byte{out})
		if c.Async && answer.Failure == nil {
			done := make(chan *coll.Failure, 1)
			work.OnDone(func(f *coll.Failure) { done <- f })
			answer.Failure = <-done
			work.Release()
		}
	}
	return nil
}

// everything uses all memory that a group can have: both sets of slots, and fifos to the neighbours, with eager sends and with
// announced ones.
func (r *rankState) everything() *coll.Failure {
	me, size := r.group.Rank(), r.group.Size()
	for range 3 {
		for _, n := range []int{1, 1000, 30_000, 1_000_000} {
			if f := r.sum(n); f != nil {
				return f
			}
		}
		for _, bytes := range []int{8, 5000, 300_000} {
			out, in := make([]byte, bytes), make([]byte, bytes)
			for i := range out {
				out[i] = byte(i + me)
			}
			work, f := r.group.Issue(coll.Op{Kind: coll.Send, Root: (me + 1) % size, Type: coll.Uint8, Async: true}, [][]byte{out}, nil)
			if f != nil {
				return f
			}
			from := (me + size - 1) % size
			_, f = r.group.Issue(coll.Op{Kind: coll.Recv, Root: from, Type: coll.Uint8}, nil, [][]byte{in})
			for done := false; f == nil && !done; {
				done, f = work.Wait(time.Second)
			}
			work.Release()
			if f != nil {
				return f
			}
			for i := range in {
				if in[i] != byte(i+from) {
					return &coll.Failure{Status: coll.Internal, Message: fmt.Sprintf("byte %d of %d from rank %d is %d", i, bytes, from, in[i])}
				}
			}
		}
	}
	return nil
}

func (r *rankState) send(to int) *coll.Failure {
	_, f := r.group.Issue(coll.Op{Kind: coll.Send, Root: to, Type: coll.Uint8}, [][]byte{make([]byte, 100)}, nil)
	return f
}

func (r *rankState) receive(from int) *coll.Failure {
	_, f := r.group.Issue(coll.Op{Kind: coll.Recv, Root: from, Type: coll.Uint8}, nil, [][]byte{make([]byte, 100)})
	return f
}

// ring sends to the next of the first n ranks and receives from the one before.
func (r *rankState) ring(n int, answer *report) error {
	me := r.group.Rank()
	send := coll.Op{Kind: coll.Send, Root: (me + 1) % n, Type: coll.Uint8, Async: true}
	recv := coll.Op{Kind: coll.Recv, Root: (me + n - 1) % n, Type: coll.Uint8}
	got := []byte{0}
	var work runner.Work
	work, answer.Failure = r.group.Issue(send, [][]byte{{byte(me)}}, nil)
	if answer.Failure != nil {
		return nil
	}
	defer work.Release()
	_, answer.Failure = r.group.Issue(recv, nil, [][]byte{got})
	if answer.Failure == nil && int(got[0]) != recv.Root {
		return fmt.Errorf("got %d from rank %d", got[0], recv.Root)
	}
	for answer.Failure == nil {
		done, f := work.Wait(time.Second)
		answer.Failure = f
		if done {
			break
		}
	}
	return nil
}
