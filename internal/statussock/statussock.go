// Package statussock answers programs that ask a running process for its status. It listens on an abstract Unix socket, which
// has no file, ends with the process, and is listed in /proc/net/unix. A client that connects as the same user, or as root,
// gets one JSON document and the end of the stream. The client sends no request. The package does not interpret the document.
//
// Any goroutine may call it. It owns one goroutine that accepts and one for each client. Start reading at [Serve].
package statussock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Prefix begins the name of every such socket; user id, process id and a running number follow.
const Prefix = "sagecomm-status-"

const (
	answerTimeout = 5 * time.Second // for a client to read
	clientsAtOnce = 8
)

// Server answers clients until it is closed.
type Server struct {
	listener *net.UnixListener
	answer   func() []byte
	ended    sync.WaitGroup // the loop that accepts
}

// Serve starts a server. It calls answer for each client, on a goroutine of its own, to get the document.
func Serve(answer func() []byte) (*Server, error) {
	name := fmt.Sprintf("@%s%d-%d", Prefix, os.Geteuid(), os.Getpid())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	// A process of another pid namespace may have the same pid and thus the same name, so Serve tries several.
	for i := 1; errors.Is(err, unix.EADDRINUSE) && i < 100; i++ {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("%s-%d", name, i), Net: "unix"})
	}
	if err != nil {
		return nil, err
	}
	s := &Server{listener: l, answer: answer}
	s.ended.Go(s.accept)
	return s, nil
}

// Close ends the server. Clients whose answer has begun still get it. Close shuts the socket down before it closes it, because
// a process that was forked from this one keeps the socket open but does not answer.
func (s *Server) Close() {
	if raw, err := s.listener.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	_ = s.listener.Close()
	s.ended.Wait()
}

func (s *Server) accept() {
	slots := make(chan struct{}, clientsAtOnce)
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors or no memory at the moment: the client waits in the backlog
			time.Sleep(10 * time.Millisecond)
			continue
		}
		select {
		case slots <- struct{}{}:
		default: // too many clients that do not read: this one has to retry
			_ = conn.Close()
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer conn.Close()
			if allowed(conn) {
				_ = conn.SetDeadline(time.Now().Add(answerTimeout))
				_, _ = conn.Write(s.answer()) // a client that does not read gets no answer
			}
		}()
	}
}

// allowed reports whether the client runs as the same user or as root.
func allowed(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || failed != nil {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == os.Geteuid()
}
