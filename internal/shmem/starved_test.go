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

const starvedVariable = "SHMEM_TEST_STARVED" // its value is the number of descriptors that the child has left

// starvedMain is the main function of a child process with few descriptors left. It makes its first arena and prints the
// outcome.
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
	for _, fd := range kept { // frees descriptors for the coverage file that the process may write at its end
		unix.Close(fd)
	}
	os.Exit(0)
}

// The first arena of a process with few descriptors is made or is an error. Without makePoller, Go's runtime would end a
// process that has one or two descriptors left.
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
