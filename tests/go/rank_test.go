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

// orders is what a rank is started with.
type orders struct {
	Rank, Size int
	Dir        string // the store's
	Options    map[string]string
}

// command is one line of a rank's input. It answers each with one report, but stops in the middle of Loop.
type command struct {
	Do         string
	Rank, Size int // of create, in place of the orders'
	Name       string
	Ops        int           // of loop; 0: until it fails
	Elements   int           // of loop and reduce; of loop 0: different numbers
	Async      bool          // of reduce: the engine drives
	Timeout    time.Duration // of create
	Die        string        // the process kills itself when create writes a key that has this in it
}

// report is one line of its output.
type report struct {
	Did        string
	Error      string        // of create
	Failure    *coll.Failure // of the operations
	Entered    time.Time     // the operation that failed
	At         time.Time     // when it returned
	Ops        int
	FDs        int
	Goroutines int
}

type rankState struct {
	orders
	group *pgbackend.Group
	out   *json.Encoder
}

func rankMain(text string) error {
	var r rankState
	if err := json.Unmarshal([]byte(text), &r.orders); err != nil {
		return err
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

func (r *rankState) do(c command, answer *report) error {
	switch c.Do {
	case "create":
		if c.Size == 0 {
			c.Rank, c.Size, c.Timeout = r.Rank, r.Size, max(c.Timeout, 1)
			if c.Timeout == 1 {
				c.Timeout = opTimeout
			}
		}
		store, err := bootstrap.NewFileStore(filepath.Join(r.Dir, c.Name))
		if err != nil {
			return err
		}
		g, err := pgbackend.Get().Create(pgbackend.Config{Rank: c.Rank, Size: c.Size, Name: c.Name, Timeout: c.Timeout,
			Store: deadlyStore{store, c.Die}, Options: r.Options})
		if err != nil {
			answer.Error = err.Error()
		}
		r.group = g
	case "loop":
		return r.loop(c, answer)
	case "async":
		return r.async(answer)
	case "reduce":
		return r.reduce(c, answer)
	case "ring":
		return r.ring(c.Size, answer)
	case "once":
		answer.Failure = r.sum(1)
	case "destroy":
		return r.group.Destroy()
	case "starve": // from now on it can open so many files
		return starve(c.Ops)
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

// starve lets this process open n more descriptors.
func starve(n int) error {
	limit := unix.Rlimit{Cur: 64, Max: 64}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	var taken []int
	for {
		fd, err := unix.Dup(2)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	for _, fd := range taken[len(taken)-n:] {
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
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

// loop says "looping" when it is on its way.
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

// async leaves an all_reduce to the progress engine and says "issued" when it is on its way.
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
