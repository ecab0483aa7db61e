package pgbackend

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"sagecomm/internal/env"
	"sagecomm/internal/observe"
)

// This file reads the secret of a job.

// Lengths of a secret of a job, without white space at its end.
const (
	leastJobSecret = 16
	mostJobSecret  = 4096
)

// hasJobSecret reports whether a secret of the job is set.
func hasJobSecret(settings *env.Settings) bool {
	return env.SecretFile.Get(settings) != "" || env.Secret.Get(settings) != ""
}

// jobSecret returns the secret of the job that protects the group, nil without one. That of a group that met at a unique
// id is the one with which it met: the file may be gone by now.
func (g *Group) jobSecret() ([]byte, error) {
	if g.birth != nil {
		return g.birth.job, nil
	}
	return jobSecret(g.settings)
}

// hasJobSecret reports whether jobSecret returns one, or why it cannot be read.
func (g *Group) hasJobSecret() bool {
	if g.birth != nil {
		return g.birth.job != nil
	}
	return hasJobSecret(g.settings)
}

// jobSecret returns the secret of SAGECOMM_SECRET_FILE or SAGECOMM_SECRET, nil without the setting.
func jobSecret(settings *env.Settings) ([]byte, error) {
	path, text, where := env.SecretFile.Get(settings), []byte(env.Secret.Get(settings)), "SAGECOMM_SECRET:"
	switch {
	case !hasJobSecret(settings):
		return nil, nil
	case path != "" && len(text) > 0:
		return nil, errors.New("sagecomm: SAGECOMM_SECRET_FILE and SAGECOMM_SECRET are both set: set one of them")
	case path != "":
		var err error
		if text, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("sagecomm: SAGECOMM_SECRET_FILE: %w", err)
		}
		warnIfOpen("SAGECOMM_SECRET_FILE", path)
		where = "SAGECOMM_SECRET_FILE: " + path
	}
	text = bytes.TrimRight(text, " \t\r\n")
	if len(text) < leastJobSecret || len(text) > mostJobSecret {
		return nil, fmt.Errorf("sagecomm: %s holds a secret of %d bytes: expected %d to %d", where, len(text), leastJobSecret, mostJobSecret)
	}
	return text, nil
}

// warnOfFile warns. Tests replace it.
var warnOfFile = func(text string) { observe.Warn("%s", text) }

// warnIfOpen warns where a file with a secret is open to all users of the host.
func warnIfOpen(setting, path string) {
	const others = 0o007
	if info, err := os.Stat(path); err == nil && info.Mode()&others != 0 {
		warnOfFile(fmt.Sprintf("%s: every user of this host may open %s (mode %04o): chmod o= takes that away", setting, path, info.Mode().Perm()))
	}
}
