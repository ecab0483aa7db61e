package shmem

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"sagecomm/internal/procwatch"
)

// Kind is the kind of file that an arena consists of.
type Kind string

// The kinds.
const (
	Memfd Kind = "memfd" // no name, sealed against resizing
	Tmpfs Kind = "tmpfs" // a file in a directory, with a name until Unlink
)

// Method is a way to reach the memory of another process.
type Method string

// The methods, in the usual order.
const (
	// Proc opens /proc/<pid>/fd/<n>: needs the same pid namespace and the right to look into the process.
	Proc Method = "proc"
	// SCM asks the owner for the descriptor over an abstract unix socket: needs the same network namespace and user.
	SCM Method = "scm"
	// File opens the file of a Tmpfs arena: needs the same directory and user.
	File Method = "tmpfs"
)

// Nonce is a random number that identifies an arena.
type Nonce [16]byte

func (n Nonce) String() string { return hex.EncodeToString(n[:]) }

// MarshalText writes the nonce in hexadecimal digits.
func (n Nonce) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (n *Nonce) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(n) {
		return fmt.Errorf("%q is not 32 hexadecimal digits", text)
	}
	_, err := hex.Decode(n[:], text)
	return err
}

// Descriptor holds everything that a peer needs to map an arena, including the token of the socket server: a process of the same
// user that can read the store can map the arena.
type Descriptor struct {
	BootID       string `json:"boot_id"`
	PIDNamespace uint64 `json:"pid_namespace"`
	PID          int    `json:"pid"`
	StartTime    uint64 `json:"start_time"` // clock ticks since boot
	FD           int    `json:"fd"`         // file descriptor in the owner
	Nonce        Nonce  `json:"nonce"`
	Size         int64  `json:"size"` // bytes, logical
	Kind         Kind   `json:"kind"`
	Path         string `json:"path,omitempty"`   // Tmpfs, before Unlink
	Socket       string `json:"socket,omitempty"` // abstract name without its leading zero byte
	Token        Nonce  `json:"token"`            // token that a client sends on Socket
}

// Check returns an error if no arena of this library can have this descriptor.
func (d *Descriptor) Check() error {
	if d.PID <= 0 || d.FD < 0 || d.Nonce == (Nonce{}) || d.Size < int64(os.Getpagesize()) || d.Kind != Memfd && d.Kind != Tmpfs {
		return fmt.Errorf("shmem: not a descriptor of an arena: pid %d, descriptor %d, nonce %v, %d bytes, kind %.20q", d.PID, d.FD, d.Nonce, d.Size, d.Kind)
	}
	return nil
}

// identity sets the fields that identify this process.
func (d *Descriptor) identity() (err error) {
	d.PID = os.Getpid()
	if d.BootID, err = procwatch.BootID(); err == nil {
		d.PIDNamespace, err = procwatch.PIDNamespace()
	}
	if err == nil {
		d.StartTime, err = procwatch.StartTime(d.PID)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (/proc has to be mounted, that of this pid namespace)", err)
	}
	if err != nil {
		return fmt.Errorf("find out which process this is: %w", err)
	}
	return nil
}
