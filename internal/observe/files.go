package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile writes a file atomically: readers see the old or the new content. It writes a temporary file and renames it;
// errors name the final file. Tests replace it with another function.
var replaceFile = func(path string, data []byte) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // the rename would replace a link
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s cannot be written: it is no regular file", path) // a rename would replace a device or a fifo
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return cannotWrite(path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // best effort: the caller gets the first error
		return cannotWrite(path, err)
	}
	return nil
}

// cannotWrite returns an error that names the final file instead of the temporary one.
func cannotWrite(path string, err error) error {
	var of *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &of):
		err = of.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return fmt.Errorf("%s cannot be written: %w", path, err)
}
