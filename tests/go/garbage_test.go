package ranks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/coll"
	"sagecomm/tests/quick"
)

const (
	garbageTimeout = 400 * time.Millisecond // of operations, while somebody scribbles
	garbageLasts   = 120 * time.Millisecond // for so long if no rank fails
	garbageBound   = 5 * time.Second        // how much longer than its timeout an operation may take on a slow machine
)

// A process writes random words all over the memory that it shares, while all ranks use it. No process ends, no operation
// exceeds its time, no buffer is written beyond its end, and an error that a rank reports names the culprit.
// Results may be wrong. Afterwards the same processes make a group that works.
func TestGarbageFromAnotherProcess(t *testing.T) {
	random := newRandom(t)
	ends := map[string]int{}
	sizes := []int{4, 2}
	if quick.Only() {
		sizes = sizes[:1]
	}
	for _, size := range sizes {
		list := start(t, size, nil)
		for round := range (*garbage + 1) / 2 {
			ill, s := random.IntN(size), random.Uint64()
			create(t, list, fmt.Sprintf("g%d", round), 0)
			reports := all(list, command{Do: "scribble", Rank: ill, Seed: s, Timeout: garbageTimeout})
			for rank, r := range reports {
				if r.Error != "" || r.Longest > garbageTimeout+garbageBound {
					t.Errorf("round %d, rank %d of %d, garbage from rank %d: %s, the longest operation took %v", round, rank, size, ill, r.Error, r.Longest)
				}
				f := r.Failure
				ends[f.Status.String()]++
				if !namesCulprit(f, ill, size) {
					t.Errorf("round %d, rank %d of %d: garbage from rank %d, and it says of %s: %+v", round, rank, size, ill, f.Op, f)
				}
			}
			succeed(t, all(list, command{Do: "destroy"}))
		}
		create(t, list, "after", 0)
		succeed(t, all(list, command{Do: "everything"}))
		for _, p := range list {
			if err := p.end(); err != nil {
				t.Errorf("rank %d: %v", p.rank, err)
			}
		}
	}
	t.Log(ends) // chance: pgbackend/garbage_test.go and tests/runner/garbage.c say what garbage leads to
}

// namesCulprit: where ranks wait for each other, whom a timeout names follows from counts that may be garbage; of two ranks,
// where the count is garbage that says how far the healthy one has come. And lengths of an all_to_all that are garbage may be others when another rank reads them: the two then part, in
// that call or some calls behind it, and one takes what the other wrote for an earlier or later call for garbage of its own.
func namesCulprit(f *coll.Failure, ill, size int) bool {
	switch f.Status {
	case coll.Aborted: // the time of the test was over on some rank
		return strings.Contains(f.Message, "enough")
	case coll.Timeout:
		if size > 2 || strings.Contains(f.Message, "does not go on") {
			return true
		}
	case coll.Internal, coll.Mismatch:
		parted := strings.Contains(f.Message, "no mark of its calls") || strings.Contains(f.Message, "hash of its calls") ||
			strings.Contains(f.Message, "their calls are equal") // the other one has not announced the later call yet
		if size > 2 && parted {
			return true
		}
	}
	named, err := regexp.MatchString(fmt.Sprintf(`\branks? (\d+ and )?%d\b`, ill), f.Message)
	return named && err == nil
}

// fuzz runs operations that use all memory of a group while one rank scribbles.
func (r *rankState) fuzz(c command, answer *report) error {
	if err := r.traffic(0); err != nil { // all memory is there
		return r.record(err, answer) // the other one began already
	}
	if err := r.group.SetTimeout(c.Timeout); err != nil {
		return err
	}
	if r.Rank == c.Rank {
		stop, err := scribble(c.Seed)
		if err != nil {
			return err
		}
		defer stop()
	}
	for began := time.Now(); time.Since(began) < garbageLasts && answer.Failure == nil && answer.Error == ""; answer.Ops++ {
		before := time.Now()
		if err := r.record(r.traffic(answer.Ops+1), answer); err != nil {
			return err
		}
		answer.Longest = max(answer.Longest, time.Since(before))
	}
	if answer.Failure == nil {
		r.group.Abort("enough") // another rank may wait
		answer.Failure = r.group.Cause()
	}
	return nil
}

// record counts the outcome of an operation.
func (r *rankState) record(err error, answer *report) error {
	var beyond overrun
	var f *coll.Failure
	switch {
	case err == nil:
	case errors.As(err, &beyond):
		answer.Error = err.Error()
	case errors.As(err, &f):
		answer.Failure = f
	default:
		return err
	}
	return nil
}

// overrun reports that an operation has written beyond a buffer.
type overrun string

func (o overrun) Error() string { return string(o) }

// traffic is one operation, by number: each kind of collective with lengths for small and for large slots, and p2p operations,
// short and long.
func (r *rankState) traffic(number int) error {
	size, me := r.group.Size(), r.group.Rank()
	if number == 0 {
		for i := 1; i <= 3*(int(coll.Send)+1); i++ {
			if err := r.traffic(i); err != nil {
				return err
			}
		}
		return nil
	}
	kind, length := coll.Kind(number%(int(coll.Send)+1)), number/(int(coll.Send)+1)%3
	if kind == coll.Send {
		bytes := []int{8, 5000, 200_000}[length]
		out, in := guarded(bytes), guarded(bytes)
		work, f := r.group.Issue(coll.Op{Kind: coll.Send, Root: (me + 1) % size, Type: coll.Uint8, Async: true}, out.list(), nil)
		if f != nil {
			return f
		}
		defer work.Release()
		_, f = r.group.Issue(coll.Op{Kind: coll.Recv, Root: (me + size - 1) % size, Type: coll.Uint8}, nil, in.list())
		for done := false; f == nil && !done; {
			done, f = work.Wait(time.Second)
		}
		return verdict(f, out, in)
	}
	op := coll.Op{Kind: kind, Type: coll.Float32, Root: number % size}
	one := 4 * []int{1, 300, 40_000}[length]
	in, out := guarded(one), guarded(one)
	switch kind {
	case coll.Barrier:
		in, out = nil, nil
	case coll.Broadcast:
		if me != op.Root {
			in = nil
		}
	case coll.AllGather:
		out = guarded(size * one)
	case coll.ReduceScatter:
		in = guarded(size * one)
	case coll.AllToAll:
		in, out = guarded(size*one), guarded(size*one)
	case coll.Gather:
		if out = nil; me == op.Root {
			out = guarded(size * one)
		}
	case coll.Scatter:
		if in = nil; me == op.Root {
			in = guarded(size * one)
		}
	case coll.Reduce:
		if me != op.Root {
			out = nil
		}
	}
	_, f := r.group.Issue(op, in.list(), out.list())
	return verdict(f, in, out)
}

// guard stands before and behind each buffer.
var guard = bytes.Repeat([]byte{0xa5}, 256)

type buffer []byte

func guarded(n int) buffer {
	return append(append(append(buffer{}, guard...), make([]byte, n)...), guard...)
}

func (b buffer) list() [][]byte {
	if b == nil {
		return nil
	}
	return [][]byte{b[len(guard) : len(b)-len(guard)]}
}

func verdict(f *coll.Failure, list ...buffer) error {
	for _, b := range list {
		if b != nil && !(bytes.HasPrefix(b, guard) && bytes.HasSuffix(b, guard)) {
			return overrun(fmt.Sprintf("a buffer of %d bytes was written beyond its end", len(b)-2*len(guard)))
		}
	}
	if f == nil {
		return nil
	}
	return f
}

// scribble writes random words into the arena of this process until stop is called.
func scribble(seed uint64) (stop func(), err error) {
	pages, fd, err := ownPages()
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(seed, 0))
	// Mostly a few words, and such that are not 0: the payload of this test is. Else all ends with the first word that means
	// failure, or goes where nobody looks.
	places, err := wordsInUse(fd, pages)
	if err != nil {
		return nil, err
	}
	random.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	places = places[:min(len(places), 1<<random.IntN(8))]
	anywhere := random.IntN(8) // of so many words one goes anywhere
	var ended atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		var word [8]byte
		for !ended.Load() {
			at := places[random.IntN(len(places))]
			if anywhere > 0 && random.IntN(anywhere) == 0 {
				at = pages[random.IntN(len(pages))] + 8*random.Int64N(int64(os.Getpagesize()/8))
			}
			_, _ = unix.Pread(fd, word[:], at)
			old, value := binary.LittleEndian.Uint64(word[:]), random.Uint64()>>random.IntN(64)
			switch random.IntN(4) {
			case 0:
				value = old ^ 1<<random.IntN(64)
			case 1:
				value = old + random.Uint64N(16) - 8
			case 2:
				value = uint64(pages[random.IntN(len(pages))]) &^ 127
			}
			binary.LittleEndian.PutUint64(word[:], value)
			_, _ = unix.Pwrite(fd, word[:], at)
			if random.IntN(8) == 0 {
				time.Sleep(time.Duration(random.IntN(20)) * time.Microsecond)
			}
		}
	}()
	return func() {
		ended.Store(true)
		<-done
	}, nil
}

// wordsInUse are the places of words that are not 0. The header of the arena is not among them: groups that are made later
// would find it broken, and use a file.
func wordsInUse(fd int, pages []int64) (places []int64, err error) {
	page := make([]byte, os.Getpagesize())
	for _, at := range pages {
		if _, err := unix.Pread(fd, page, at); err != nil {
			return nil, err
		}
		for i := 0; i < len(page) && at > 0; i += 8 {
			if binary.LittleEndian.Uint64(page[i:]) != 0 {
				places = append(places, at+int64(i))
			}
		}
	}
	return places, nil
}

// ownPages are the pages of this process's arena that are in use, and its descriptor.
func ownPages() (pages []int64, fd int, err error) {
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		if to, _ := os.Readlink(name); !strings.HasPrefix(to, "/memfd:sagecomm") {
			continue
		}
		if _, err := fmt.Sscan(filepath.Base(name), &fd); err != nil {
			return nil, 0, err
		}
		for hole := int64(0); ; {
			data, err := unix.Seek(fd, hole, unix.SEEK_DATA)
			if errors.Is(err, unix.ENXIO) {
				return pages, fd, nil
			}
			if err == nil {
				hole, err = unix.Seek(fd, data, unix.SEEK_HOLE)
			}
			if err != nil {
				return nil, 0, err
			}
			for ; data < hole; data += int64(os.Getpagesize()) {
				pages = append(pages, data)
			}
		}
	}
	return nil, 0, errors.New("this process has no arena")
}
