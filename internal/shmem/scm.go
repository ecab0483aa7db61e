package shmem

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The socket server of an arena gives its descriptor to processes of the same user that present the token. One request:
//
//	client -> server: 16 bytes, the token
//	server -> client: 1 byte and, as SCM_RIGHTS, one descriptor; or the end of the stream
const (
	requestTimeout = 2 * time.Second  // for the request of a client that was accepted
	answerTimeout  = 10 * time.Second // for the answer of a server, if the context has no deadline
	clientsAtOnce  = 16
)

// server answers requests on an abstract socket, which has no file and ends with the process.
type server struct {
	name     string
	listener *net.UnixListener
	fd       int
	token    Nonce
	running  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.UnixConn]struct{} // nil once stopped
}

func serve(fd int, token Nonce) (*server, error) {
	var random Nonce
	rand.Read(random[:])
	s := &server{name: "sagecomm-" + random.String(), fd: fd, token: token, conns: make(map[*net.UnixConn]struct{})}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + s.name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	s.listener = l
	s.running.Go(s.accept)
	return s, nil
}

// stop ends the server. It returns when the server no longer uses the descriptor.
func (s *server) stop() {
	s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.running.Wait()
}

func (s *server) accept() {
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
		s.mu.Lock()
		stopped := s.conns == nil
		if !stopped {
			s.conns[conn] = struct{}{}
		}
		s.mu.Unlock()
		if stopped {
			conn.Close()
			return
		}
		slots <- struct{}{}
		s.running.Go(func() {
			s.answer(conn)
			conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
			<-slots
		})
	}
}

// answer serves one client. A client without the right to the memory gets no answer.
func (s *server) answer(conn *net.UnixConn) {
	if checkUser(conn) != nil {
		return
	}
	conn.SetDeadline(time.Now().Add(requestTimeout))
	var got Nonce
	if _, err := io.ReadFull(conn, got[:]); err != nil || subtle.ConstantTimeCompare(got[:], s.token[:]) != 1 {
		return
	}
	conn.WriteMsgUnix([]byte{1}, unix.UnixRights(s.fd), nil)
}

// receive asks the owner of an arena for its file descriptor.
func receive(ctx context.Context, d *Descriptor) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := dial(ctx, d)
	if err != nil {
		return -1, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(d.Token[:]); err != nil {
		return -1, receiveFailed(ctx, "ask for the descriptor", err)
	}
	var data [1]byte
	oob := make([]byte, unix.CmsgSpace(4)) // little room: the kernel drops descriptors that do not fit
	n, oobn, _, _, err := conn.ReadMsgUnix(data[:], oob)
	if err != nil {
		return -1, receiveFailed(ctx, "receive the descriptor", err)
	}
	fds, err := descriptors(oob[:oobn])
	if n != 1 || len(fds) != 1 || err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return -1, fmt.Errorf("the owner gave no descriptor: it does not accept the token (%d bytes, %d descriptors, error %v)", n, len(fds), err)
	}
	return fds[0], nil
}

// dial connects to the socket of an arena's owner.
func dial(ctx context.Context, d *Descriptor) (*net.UnixConn, error) {
	if d.Socket == "" {
		return nil, errors.New("the owner offers no socket")
	}
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", "@"+d.Socket)
	if err != nil {
		return nil, fmt.Errorf("%w (the owner has ended, or is in another network namespace)", err)
	}
	conn := c.(*net.UnixConn)
	if err := checkUser(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// OwnerFD returns a pidfd of the process that owns an arena, from the socket that the process serves. It works across pid
// namespaces, where the pid means nothing. It needs Linux 6.5 or later.
func OwnerFD(ctx context.Context, d Descriptor) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := dial(ctx, &d)
	if err != nil {
		return -1, err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	pidfd, optErr := -1, error(nil)
	if err := raw.Control(func(fd uintptr) {
		pidfd, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return -1, err
	}
	if optErr != nil {
		return -1, fmt.Errorf("ask the socket for its process (Linux 6.5): %w", optErr)
	}
	return pidfd, nil
}

// receiveFailed returns the error of the context, if there is one, in place of the expired deadline that it caused.
func receiveFailed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the owner refuses: wrong token or it is closing")
	}
	return fmt.Errorf("%s: %w", what, err)
}

// descriptors returns the file descriptors in control messages.
func descriptors(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	var fds []int
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, got...)
	}
	return fds, err
}

// checkUser returns an error unless the process at the other end has the same user.
func checkUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return fmt.Errorf("ask for the peer's user: %w", credErr)
	}
	if int(cred.Uid) != unix.Geteuid() {
		return fmt.Errorf("process %d runs as user %d, this one as %d: start all ranks as one user", cred.Pid, cred.Uid, unix.Geteuid())
	}
	return nil
}
