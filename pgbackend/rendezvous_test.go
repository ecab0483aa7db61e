package pgbackend

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"sagecomm/internal/bootstrap"
)

// A rank that gives up leaves no file and no arena behind, whichever step its peer did not reach.
func TestGivingUpLeavesNoFile(t *testing.T) {
	for _, reached := range []string{"nothing", "memory"} {
		t.Run(reached, func(t *testing.T) {
			dir, store := t.TempDir(), bootstrap.NewMemStore()
			of := func(rank int, s bootstrap.Store) error {
				_, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: 200 * time.Millisecond, Store: s,
					Options: options{"shm_attach": "tmpfs", "shm_dir": dir}})
				return err
			}
			done := make(chan struct{})
			if reached == "memory" {
				go func() {
					defer close(done)
					_ = of(1, lateStore{store}) // fails as well
				}()
			} else {
				close(done)
			}
			var late *bootstrap.TimeoutError
			if err := of(0, store); !errors.As(err, &late) {
				t.Error(err)
			}
			<-done
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// lateStore loses what a rank says after it has mapped the memory of the others.
type lateStore struct{ bootstrap.Store }

func (s lateStore) Set(key string, value []byte) error {
	if strings.Contains(key, "attached") {
		return nil
	}
	return s.Store.Set(key, value)
}

func (s lateStore) Get(key string, timeout time.Duration) ([]byte, error) {
	if strings.Contains(key, "attached") {
		timeout = time.Millisecond
		key = "none"
	}
	return s.Store.Get(key, timeout)
}

// A rank that has not come in time does not come to the next attempt either: the reason is the first one.
func TestTimeoutIsNoReasonToFallBack(t *testing.T) {
	mem := bootstrap.NewMemStore()
	done := make(chan error, 1)
	create := func(rank int, store bootstrap.Store) error {
		_, err := Get().Create(Config{Rank: rank, Size: 2, Name: t.Name(), Timeout: 300 * time.Millisecond, Store: store})
		return err
	}
	go func() { done <- create(1, lateStore{mem}) }()
	err := create(0, mem)
	var late *bootstrap.TimeoutError
	if !errors.As(err, &late) || late.Prefix != "sagecomm/memfd/attached" || late.Waited < 200*time.Millisecond {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("rank 1 joined")
	}
	if _, err := mem.Get("sagecomm/tmpfs/0", time.Millisecond); err == nil {
		t.Error("rank 0 tried again")
	}
}
