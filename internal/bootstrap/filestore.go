package bootstrap

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// FileStore is a [Store] in a directory, for processes of one host without torch. Each key is a file. Every run needs
// a directory of its own, and whoever made it removes it.
type FileStore struct{ dir string }

// NewFileStore returns a store in a directory, which it makes if it does not exist.
func NewFileStore(dir string) (*FileStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("sagecomm: make the store's directory: %w", err)
	}
	return &FileStore{dir}, nil
}

// path returns the file of a key. The file name is readable unless that is too long for a file system.
func (s *FileStore) path(key string) string {
	name := "k-" + url.PathEscape(key)
	if len(name) > 200 {
		sum := sha256.Sum256([]byte(key))
		name = "h-" + hex.EncodeToString(sum[:])
	}
	return filepath.Join(s.dir, name)
}

// Set writes a value atomically: readers see all of it or nothing.
func (s *FileStore) Set(key string, value []byte) error {
	name, err := s.write(value)
	if err != nil {
		return err
	}
	if err = os.Rename(name, s.path(key)); err != nil {
		os.Remove(name)
	}
	return err
}

// write writes a value into a temporary file, which it returns.
func (s *FileStore) write(value []byte) (name string, err error) {
	f, err := os.CreateTemp(s.dir, "t-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(value)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
	}
	return f.Name(), err
}

// Get looks for the key repeatedly, at growing intervals.
func (s *FileStore) Get(key string, timeout time.Duration) ([]byte, error) {
	deadline := time.Now().Add(timeout)
	for pause := 500 * time.Microsecond; ; pause = min(pause*2, 20*time.Millisecond) {
		value, err := os.ReadFile(s.path(key))
		if !errors.Is(err, fs.ErrNotExist) {
			return value, err
		}
		left := time.Until(deadline)
		if left <= 0 {
			if _, err := os.Stat(s.dir); err != nil {
				return nil, fmt.Errorf("the store's directory has gone: %w", err)
			}
			return nil, fmt.Errorf("%s: %w", key, ErrTimeout)
		}
		time.Sleep(min(pause, left))
	}
}
