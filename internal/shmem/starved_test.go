package shmem

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const starvedVariable = "SHMEM_TEST_STARVED" // how many descriptors the child has left

// starvedMain is a process that has a few descriptors left when it makes its first arena. It says what came of it.
func starvedMain(left string) {
	n, err := strconv.Atoi(left)
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 32, Max: 32})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var taken []int
	for {
		fd, err := unix.Dup(2)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	kept := taken[:len(taken)-n]
	for _, fd := range taken[len(taken)-n:] {
		unix.Close(fd)
	}
	a, err := NewArena(Memfd, testSize, "")
	if err == nil {
		_, err = a.Publish([]Method{SCM})
	}
	fmt.Println("ended with", err)
	for _, fd := range kept { // where coverage is measured a file is written now
		unix.Close(fd)
	}
	os.Exit(0)
}

// Without the look at what is there the Go runtime ends the process, with one or two descriptors left.
func TestFirstArenaWithFewDescriptors(t *testing.T) {
	made := 0
	for left := range 9 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), starvedVariable+"="+strconv.Itoa(left))
		output, err := cmd.CombinedOutput()
		said := string(output)
		switch {
		case err != nil:
			t.Errorf("%d left: %v\n%s", left, err, said)
		case strings.HasPrefix(said, "ended with <nil>"):
			made++
		case !strings.Contains(said, "too many open files") || !strings.Contains(said, "(ulimit -n)"):
			t.Errorf("%d left: %s", left, said)
		}
	}
	if made == 0 || made == 9 {
		t.Errorf("%d of 9 processes made an arena", made)
	}
}
