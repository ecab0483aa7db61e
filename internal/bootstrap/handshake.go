package bootstrap

import (
	"crypto/sha256"
	"errors"
	"net"
	"time"

	"sagecomm/internal/handshake"
)

// Limits of frames after the handshake.
const (
	maxKey   = 1 << 10
	maxValue = 1 << 20
	maxFrame = maxValue + 64<<10 // a get of many keys is the longest request
)

// storeProtocol is the handshake of a connection to a [Server].
var storeProtocol = handshake.Protocol{Magic: "sagestr1", Label: "sagecomm store", Limit: maxFrame}

type session = handshake.Session

// errRefused is the client's error where the server did not accept its proof, or proved nothing itself.
var errRefused = errors.New("the store of the unique id does not accept the secret of this rank: the id is of an earlier run or its group is complete, or the secret of SAGECOMM_SECRET_FILE or SAGECOMM_SECRET is not the same on all ranks")

// greet is the client's side.
func greet(c net.Conn, space [spaceBytes]byte, key [sha256.Size]byte, deadline time.Time) (*session, error) {
	s, err := storeProtocol.Greet(c, space, key, deadline)
	if errors.Is(err, handshake.ErrRefused) {
		return nil, errRefused
	}
	return s, err
}
