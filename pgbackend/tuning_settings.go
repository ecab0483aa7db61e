package pgbackend

import (
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"syscall"

	"sagecomm/algo"
	"sagecomm/internal/env"
	"sagecomm/internal/topo"
)

// tuningSettings holds what users have set about the choice of algorithms. All ranks of a group must have the same:
// they compare [tuningSettings.fingerprint] when the group is made.
type tuningSettings struct {
	tune     algo.Tune
	text     string // value of SAGECOMM_TUNE
	file     *algo.File
	fileName string
	fileHash uint64
	machine  string // the name of this machine in a tuning file; empty without a file
	probe    bool
}

// readTuningSettings reads and parses what the environment, or the options of a group, set.
func readTuningSettings(s *env.Settings) (w tuningSettings, err error) {
	w.text, w.fileName, w.probe = env.Tune.Get(s), env.TuneFile.Get(s), env.Probe.Get(s)
	if w.tune, err = algo.ParseTune(w.text); err != nil || w.fileName == "" {
		return w, err
	}
	text, err := readTuning(w.fileName)
	if err != nil {
		return w, fmt.Errorf("sagecomm: %s: %w", env.TuneFile.Name(), err)
	}
	if w.file, err = algo.ParseFile(w.fileName, text); err != nil {
		return w, fmt.Errorf("sagecomm: %s: %w", env.TuneFile.Name(), err)
	}
	h := fnv.New64a()
	_, _ = h.Write(text)
	w.fileHash, w.machine = h.Sum64(), Machine()
	return w, nil
}

// forShape returns what is set for groups of a shape whose rank 0 is on a machine of that name.
func (w tuningSettings) forShape(machine string, shape algo.Shape) (algo.Tune, error) {
	if w.file == nil {
		return w.tune, nil
	}
	file, err := w.file.For(w.fileName, machine, shape)
	return w.tune.Over(file), err
}

// longestTuning bounds the bytes of a tuning file: entries for all machines of a data centre take less.
const longestTuning = 16 << 20

// readTuning reads a tuning file. It refuses anything but a regular file: a pipe or a device could block the rank, and
// with it all ranks that wait for it.
func readTuning(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK: opening a pipe returns at once
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // closing a file that was only read loses nothing
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", name)
	case info.Size() > longestTuning:
		return nil, fmt.Errorf("%s has %d bytes, expected at most %d", name, info.Size(), longestTuning)
	}
	return io.ReadAll(io.LimitReader(f, longestTuning))
}

// Machine returns the name of this machine in a tuning file: its processor model and the number of its CPUs.
func Machine() string {
	host := topo.Read("/")
	return fmt.Sprintf("%s, %d cpus", host.CPUModel, len(host.Online))
}

// fingerprint returns a hash that is equal for equal settings in libraries that predict from the same parameters.
func (w tuningSettings) fingerprint() uint64 {
	h := fnv.New64a()
	fmt.Fprintln(h, w.text, w.fileHash, w.probe, algo.Geometry(), algo.DefaultParams())
	return h.Sum64()
}
