package shmem

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sagecomm/internal/procwatch"
)

// wantedSeals keep a peer from shortening the file, because access to a mapping beyond its end raises SIGBUS.
const wantedSeals = unix.F_SEAL_GROW | unix.F_SEAL_SHRINK

func createMemfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("sagecomm", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("sagecomm", flags)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	return fd, nil
}

// Files of arenas are called sagecomm-<pid namespace>-<pid>-<start time>-<random>, so that the file of a killed process can be told
// from that of a living one.
const filePattern = "sagecomm-%d-%d-%d-"

// createFile creates the file of a Tmpfs arena. It also removes files whose owners were killed before they could remove them.
func createFile(dir string, d *Descriptor) (fd int, path string, err error) {
	sweep(dir, d.PIDNamespace)
	var random [8]byte
	rand.Read(random[:])
	name := fmt.Sprintf(filePattern, d.PIDNamespace, d.PID, d.StartTime) + hex.EncodeToString(random[:])
	path = filepath.Join(dir, name)
	fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, "", fmt.Errorf("%s: %w (SAGECOMM_SHM_DIR names another directory)", path, err)
	}
	return fd, path, nil
}

// sweep removes files whose owner has certainly ended. It leaves files of other pid namespaces, because their pids mean nothing
// here. It ignores errors, because the files of other users cannot be removed.
func sweep(dir string, namespace uint64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		var ns, start uint64
		var pid int
		if n, _ := fmt.Sscanf(e.Name(), filePattern, &ns, &pid, &start); n == 3 && ns == namespace && pid > 0 &&
			strings.Count(e.Name(), "-") == strings.Count(filePattern, "-") && procwatch.Gone(pid, start) {
			unix.Unlink(filepath.Join(dir, e.Name()))
		}
	}
}

// reserveStep bounds one fallocate, because a signal makes the kernel undo the whole call, and the Go runtime sends many signals.
const reserveStep = 16 << 20

// reserve takes pages from the system; afterwards access to the range cannot fail. On an error it may have taken some.
func (a *Arena) reserve(r Range) error {
	if err := processRoom.take(r.Len, time.Now()); err != nil {
		return fmt.Errorf("%w: free memory, use fewer or smaller groups, or lower the algorithms' chunk sizes", err)
	}
	for off := r.Off; off < r.End(); {
		n := min(r.End()-off, reserveStep)
		switch err := unix.Fallocate(a.fd, 0, off, n); {
		case err == nil:
			off += n
		case errors.Is(err, unix.EINTR):
		default:
			return a.explain(err)
		}
	}
	return nil
}

// explain adds the meaning of an error of reserve, and the remedy.
func (a *Arena) explain(err error) error {
	where := "the system has no memory left for it, or a memory control group does not allow more: free memory or raise the limit"
	if a.desc.Kind == Tmpfs {
		where = "the file system of SAGECOMM_SHM_DIR is full: enlarge it (docker run --shm-size) or name another directory; it is not used where memfd_create is allowed and SAGECOMM_SHM_ATTACH begins with proc"
		if errors.Is(err, unix.EOPNOTSUPP) {
			where = "the file system of SAGECOMM_SHM_DIR cannot reserve space, or give it back: name a directory on a memory file system"
		}
	}
	return fmt.Errorf("%w: %s", err, where)
}

// punch returns the pages of a range to the system. The range reads as zeros afterwards.
func (a *Arena) punch(r Range) error {
	for {
		err := unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, r.Off, r.Len)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("return pages to the system: %w", a.explain(err))
		}
		return nil
	}
}
