//go:build !release

package runner

/*
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

// scr_test_open_in_child forks and reports whether a descriptor is open in the child; -1: there was no child.
static int scr_test_open_in_child(int fd) {
  pid_t child = fork();
  if (child == 0) _exit(fcntl(fd, F_GETFD) >= 0);
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}
*/
import "C"

// openInChild forks and reports whether a descriptor is open in the child.
func openInChild(fd uintptr) (open, forked bool) {
	n := C.scr_test_open_in_child(C.int(fd))
	return n == 1, n >= 0
}
