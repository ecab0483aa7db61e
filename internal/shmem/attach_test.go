package shmem

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestEachMethodReachesAnotherProcess(t *testing.T) {
	for _, c := range []struct {
		kind   Kind
		method Method
	}{{Memfd, Proc}, {Memfd, SCM}, {Tmpfs, Proc}, {Tmpfs, SCM}, {Tmpfs, File}} {
		t.Run(string(c.kind)+" by "+string(c.method), func(t *testing.T) {
			o := startOwner(t, ownerConfig{Kind: c.kind, Dir: t.TempDir(), Methods: []Method{c.method}, Fill: 3 << 20})
			before := openDescriptors(t)
			m := attach(t, o.Descriptor, c.method)
			if got := openDescriptors(t); got != before {
				t.Errorf("%d descriptors stay open", got-before)
			}
			if b := m.Bytes(o.Range); b[0] != 0x5a || b[len(b)-1] != 0x5a {
				t.Error("what the owner wrote is not there")
			}
			m.Bytes(o.Range)[0] = 77
			if got := o.firstByte(t); got != "77" {
				t.Errorf("the owner sees %s", got)
			}
			if err := m.Release(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTheFirstMethodThatWorksIsTaken(t *testing.T) {
	o := startOwner(t, ownerConfig{Kind: Memfd, Methods: []Method{SCM}})
	d := o.Descriptor
	d.PIDNamespace++ // as from another container on this machine
	m := attach(t, d, Proc, SCM, File)
	if m.Bytes(o.Range)[0] != 0x5a {
		t.Error("wrong memory")
	}
	m.Release()
}

func TestOneMappingPerArena(t *testing.T) {
	a := newArena(t, Memfd, "")
	own := attach(t, publish(t, a), Proc)
	if own != a.Mapping() {
		t.Error("attaching the own arena maps it again")
	}
	own.Release()

	o := startOwner(t, ownerConfig{Kind: Memfd, Methods: []Method{Proc, SCM}})
	var wg sync.WaitGroup
	got := make([]*Mapping, 8)
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = Attach(t.Context(), o.Descriptor, []Method{[]Method{Proc, SCM}[i%2]}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, m := range got {
		if m == nil || m != got[0] {
			t.Fatalf("call %d gave another mapping", i)
		}
		if m.Bytes(o.Range)[0] != 0x5a {
			t.Fatal("unmapped before the last Release")
		}
		require.NoError(t, m.Release())
	}
	if mapped(o.Descriptor.Nonce) != nil {
		t.Error("still mapped after the last Release")
	}
	defer func() {
		if recover() == nil {
			t.Error("one Release too many goes unnoticed")
		}
	}()
	got[0].Release()
}

func TestAMappingOutlivesItsArenaInTheOwner(t *testing.T) {
	a, err := NewArena(Memfd, testSize, "")
	require.NoError(t, err)
	r := alloc(t, a, 1, 0)
	a.Bytes(r)[0] = 7
	m := attach(t, publish(t, a), Proc)
	require.NoError(t, a.Close())
	if m.Bytes(r)[0] != 7 {
		t.Error("the bytes went with the arena")
	}
	if err := m.Release(); err != nil {
		t.Error(err)
	}
}

// Each descriptor differs from a valid one in one point. Every method must refuse it with the reason and leave no mapping and
// no descriptor behind.
func TestWrongDescriptorsAreRefused(t *testing.T) {
	o := startOwner(t, ownerConfig{Kind: Memfd, Methods: []Method{Proc, SCM}})
	dead := startOwner(t, ownerConfig{Kind: Memfd, Methods: []Method{Proc, SCM}})
	dead.kill()
	file := startOwner(t, ownerConfig{Kind: Tmpfs, Dir: t.TempDir(), Methods: []Method{File}})
	link := t.TempDir() + "/link"
	require.NoError(t, os.Symlink(file.Descriptor.Path, link))
	public := t.TempDir() + "/public"
	require.NoError(t, os.WriteFile(public, nil, 0o644))
	change := func(o *owner, f func(*Descriptor)) Descriptor {
		d := o.Descriptor
		f(&d)
		return d
	}
	before := openDescriptors(t)
	for _, c := range []struct {
		name    string
		d       Descriptor
		methods []Method
		parts   []string
	}{
		{"nonce", change(o, func(d *Descriptor) { d.Nonce[0]++ }), []Method{Proc, SCM}, []string{"proc: it is another arena", "scm: it is another arena"}},
		{"size", change(o, func(d *Descriptor) { d.Size /= 2 }), []Method{Proc, SCM}, []string{"proc: it has 67108864 bytes, expected 33554432", "scm: it has"}},
		{"boot", change(o, func(d *Descriptor) { d.BootID = "x" }), []Method{Proc}, []string{"another system"}},
		{"namespace", change(o, func(d *Descriptor) { d.PIDNamespace = 1 }), []Method{Proc}, []string{"another pid namespace"}},
		{"start time", change(o, func(d *Descriptor) { d.StartTime++ }), []Method{Proc}, []string{"has ended"}},
		{"descriptor", change(o, func(d *Descriptor) { d.FD = 999 }), []Method{Proc}, []string{"/fd/999", "no such file"}},
		{"pipe", change(o, func(d *Descriptor) { d.FD = 0 }), []Method{Proc}, []string{"not a regular file"}},
		{"dead owner", dead.Descriptor, []Method{Proc, SCM, File}, []string{"proc: process", "has ended", "scm: dial", "tmpfs: the arena has no file"}},
		{"token", change(o, func(d *Descriptor) { d.Token[3]++ }), []Method{SCM}, []string{"scm: receive the descriptor: the owner refuses"}},
		{"no socket", change(o, func(d *Descriptor) { d.Socket = "" }), []Method{SCM}, []string{"offers no socket"}},
		{"method", o.Descriptor, []Method{"cma"}, []string{"cma: there is no such method"}},
		{"kind", change(file, func(d *Descriptor) { d.Kind = Memfd; d.Nonce[1]++ }), []Method{Proc}, []string{"proc: it", "sealed"}},
		{"path", change(file, func(d *Descriptor) { d.Path += "x" }), []Method{File}, []string{"no such file"}},
		{"relative path", change(file, func(d *Descriptor) { d.Path = "a" }), []Method{File}, []string{"relative"}},
		{"unlinked", change(file, func(d *Descriptor) { d.Path = "" }), []Method{File}, []string{"no name any more"}},
		{"symbolic link", change(file, func(d *Descriptor) { d.Path = link }), []Method{File}, []string{"symbolic links"}},
		{"public file", change(file, func(d *Descriptor) { d.Path = public }), []Method{File}, []string{"expected a private file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Attach(t.Context(), c.d, c.methods)
			refused(t, err, c.parts...)
			var list *AttachError
			if m != nil || !errors.As(err, &list) || len(list.Reasons) != len(c.methods) {
				t.Errorf("mapping %v, error %#v: expected one reason for each of %v", m, err, c.methods)
			}
			if mapped(c.d.Nonce) != nil {
				t.Error("it stays mapped")
			}
		})
	}
	if got := openDescriptors(t); got != before {
		t.Errorf("%d descriptors before, %d after", before, got)
	}
	attach(t, o.Descriptor, SCM).Release() // the owner still answers
}

// forge makes a file in this process that looks like an arena, except for the bytes that change alters.
func forge(t *testing.T, seals int, change func(header []byte)) Descriptor {
	t.Helper()
	d := Descriptor{Kind: Memfd, Size: 1 << 20, Nonce: Nonce{1}}
	require.NoError(t, d.identity())
	fd, err := unix.MemfdCreate("forged", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	header := make([]byte, headerBytes)
	encodeHeader(header, &d)
	change(header)
	require.NoError(t, unix.Ftruncate(fd, d.Size))
	if _, err := unix.Pwrite(fd, header, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	d.FD = fd
	return d
}

func TestForeignFilesAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		seals  int
		change func([]byte)
		part   string // empty: accepted
	}{
		{"good", wantedSeals, func([]byte) {}, ""},
		{"unsealed", 0, func([]byte) {}, "not sealed"},
		{"may shrink", unix.F_SEAL_GROW, func([]byte) {}, "not sealed"},
		{"no arena", wantedSeals, func(h []byte) { h[0] = 'X' }, "no arena"},
		{"other version", wantedSeals, func(h []byte) { h[8] = 9 }, "version 9, this library speaks 1"},
		{"other size inside", wantedSeals, func(h []byte) { h[48]++ }, "header says 1048577"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Attach(t.Context(), forge(t, c.seals, c.change), []Method{Proc})
			if c.part != "" {
				refused(t, err, c.part)
			} else if err != nil {
				t.Error(err)
			} else {
				m.Release()
			}
		})
	}
}

func TestSizeIsComparedAlsoForWhatIsMapped(t *testing.T) {
	a := newArena(t, Memfd, "")
	d := publish(t, a)
	d.Size *= 2
	_, err := Attach(t.Context(), d, []Method{Proc})
	refused(t, err, "says 134217728 bytes, but the arena has 67108864")
	if a.Mapping().refs != 1 {
		t.Errorf("%d references", a.Mapping().refs)
	}
}

func TestAttachEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("group aborted"))
	o := startOwner(t, ownerConfig{Kind: Memfd})
	_, err := Attach(ctx, o.Descriptor, []Method{Proc})
	refused(t, err, "group aborted")
}

func TestDescriptorsSurviveTheStore(t *testing.T) {
	a := newArena(t, Tmpfs, t.TempDir())
	d := publish(t, a, Proc, SCM, File)
	data, err := json.Marshal(d)
	require.NoError(t, err)
	var got Descriptor
	if err := json.Unmarshal(data, &got); err != nil || got != d || got.Check() != nil {
		t.Errorf("%+v became %+v, %v, %v", d, got, err, got.Check())
	}
	for _, change := range []func(*Descriptor){
		func(d *Descriptor) { *d = Descriptor{} },
		func(d *Descriptor) { d.PID = -d.PID },
		func(d *Descriptor) { d.FD = -1 },
		func(d *Descriptor) { d.Nonce = Nonce{} },
		func(d *Descriptor) { d.Size = 1 },
		func(d *Descriptor) { d.Kind = "x" },
	} {
		bad := d
		change(&bad)
		refused(t, bad.Check(), "not a descriptor")
	}
}

func TestMethodOrderIsKeptInTheError(t *testing.T) {
	_, err := Attach(t.Context(), Descriptor{PID: 1, Nonce: Nonce{9}, Size: 4096, Kind: Memfd}, []Method{File, SCM, Proc})
	var list *AttachError
	if !errors.As(err, &list) {
		t.Fatal(err)
	}
	var order []Method
	for _, r := range list.Reasons {
		order = append(order, r.Method)
	}
	if !slices.Equal(order, []Method{File, SCM, Proc}) {
		t.Errorf("%v", order)
	}
}
