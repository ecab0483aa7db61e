package shmem

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sagecomm/internal/procwatch"
)

// AttachError lists why each method failed.
type AttachError struct {
	PID     int // owner of the arena
	Reasons []Reason
}

// Reason is why one method failed.
type Reason struct {
	Method Method
	Err    error
}

func (e *AttachError) Error() string {
	parts := make([]string, len(e.Reasons))
	for i, r := range e.Reasons {
		parts[i] = fmt.Sprintf("%s: %v", r.Method, r.Err)
	}
	return fmt.Sprintf("shmem: cannot map the memory of process %d: %s", e.PID, strings.Join(parts, "; "))
}

// Unwrap returns the reasons, for errors.Is and errors.As.
func (e *AttachError) Unwrap() []error {
	errs := make([]error, len(e.Reasons))
	for i, r := range e.Reasons {
		errs[i] = r.Err
	}
	return errs
}

// Attach maps the arena that d describes by the first method that works. The error is an [*AttachError] with the reason why each
// method failed. If this process has mapped the arena already, Attach returns that mapping. The caller releases the mapping; no
// descriptor stays open.
func Attach(ctx context.Context, d Descriptor, methods []Method) (*Mapping, error) {
	fail := &AttachError{PID: d.PID}
	if m := mapped(d.Nonce); m != nil {
		if m.Size() == d.Size {
			return m, nil
		}
		err := fmt.Errorf("the descriptor says %d bytes, but the arena has %d", d.Size, m.Size())
		for _, method := range methods {
			fail.Reasons = append(fail.Reasons, Reason{method, err})
		}
		return nil, errors.Join(fail, m.Release())
	}
	for _, method := range methods {
		m, err := attachBy(ctx, &d, method)
		if err == nil {
			return m, nil
		}
		fail.Reasons = append(fail.Reasons, Reason{method, err})
	}
	return nil, advise(fail)
}

func attachBy(ctx context.Context, d *Descriptor, method Method) (*Mapping, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	var fd int
	var err error
	switch method {
	case Proc:
		fd, err = openProc(d)
	case SCM:
		fd, err = receive(ctx, d)
	case File:
		fd, err = openFile(d)
	default:
		err = errors.New("there is no such method")
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := inspect(fd, d); err != nil {
		return nil, err
	}
	return mapFile(fd, d.Size, d.Nonce, method)
}

// A wrong descriptor may name any file, so opening must neither wait nor have effects.
const openFlags = unix.O_RDWR | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY

// openProc opens the owner's descriptor through /proc.
func openProc(d *Descriptor) (int, error) {
	boot, err := procwatch.BootID()
	if err != nil {
		return -1, err
	}
	if boot != d.BootID {
		return -1, fmt.Errorf("it runs on another system: boot id %s, here %s", d.BootID, boot)
	}
	namespace, err := procwatch.PIDNamespace()
	if err != nil {
		return -1, err
	}
	if namespace != d.PIDNamespace {
		return -1, fmt.Errorf("it is in another pid namespace: %d, here %d (start the containers with a common one)", d.PIDNamespace, namespace)
	}
	if procwatch.Gone(d.PID, d.StartTime) {
		return -1, fmt.Errorf("process %d has ended", d.PID)
	}
	name := fmt.Sprintf("/proc/%d/fd/%d", d.PID, d.FD)
	fd, err := unix.Open(name, openFlags, 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w (it runs as another user, or the system does not let processes look into each other)", err)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	return fd, nil
}

// openFile opens the file of a Tmpfs arena.
func openFile(d *Descriptor) (int, error) {
	switch {
	case d.Kind != Tmpfs:
		return -1, errors.New("the arena has no file")
	case d.Path == "":
		return -1, errors.New("the arena's file has no name any more: its first peers have attached")
	case !filepath.IsAbs(d.Path):
		return -1, fmt.Errorf("the path %q is relative", d.Path)
	}
	fd, err := unix.Open(d.Path, openFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", d.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != unix.Geteuid() || st.Mode&0o077 != 0 {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: user %d, mode %o, error %v: expected a private file of user %d", d.Path, st.Uid, st.Mode, err, unix.Geteuid())
	}
	return fd, nil
}

// inspect checks, before the file is mapped, that an open file is the arena that d describes and that all of it can be touched.
func inspect(fd int, d *Descriptor) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("it is not a regular file (mode %o)", st.Mode)
	}
	if st.Size != d.Size {
		return fmt.Errorf("it has %d bytes, expected %d", st.Size, d.Size)
	}
	if d.Kind == Memfd {
		seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
		if err != nil {
			return fmt.Errorf("it cannot be sealed, expected a sealed memfd: %w", err)
		}
		if seals&wantedSeals != wantedSeals {
			return fmt.Errorf("its size is not sealed (seals %#x): its owner could cut it under this process", seals)
		}
	}
	var header [headerBytes]byte
	if n, err := unix.Pread(fd, header[:], 0); n != len(header) {
		return fmt.Errorf("read its header: %d bytes, %v", n, err)
	}
	return checkHeader(header[:], d)
}
