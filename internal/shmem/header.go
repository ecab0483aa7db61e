package shmem

import (
	"encoding/binary"
	"fmt"
)

// The header is the first page of an arena. The owner writes it once, before the descriptor leaves the process. Its numbers
// are little endian. A change of the layout changes formatVersion.
//
//	 0  8  magic
//	 8  4  format version
//	12  4  zero
//	16 16  nonce
//	32  8  pid of the owner
//	40  8  its start time
//	48  8  logical size
const (
	magic         = "SAGESHM\x00"
	formatVersion = 1
	headerBytes   = 56
)

func encodeHeader(page []byte, d *Descriptor) {
	copy(page, magic)
	binary.LittleEndian.PutUint32(page[8:], formatVersion)
	copy(page[16:], d.Nonce[:])
	binary.LittleEndian.PutUint64(page[32:], uint64(d.PID))
	binary.LittleEndian.PutUint64(page[40:], d.StartTime)
	binary.LittleEndian.PutUint64(page[48:], uint64(d.Size))
}

// checkHeader compares the header of a file with the descriptor of the arena.
func checkHeader(page []byte, d *Descriptor) error {
	if string(page[:8]) != magic {
		return fmt.Errorf("it is no arena: it begins with %q", page[:8])
	}
	if v := binary.LittleEndian.Uint32(page[8:]); v != formatVersion {
		return fmt.Errorf("its format is version %d, this library speaks %d: use one version of sagecomm on all ranks", v, formatVersion)
	}
	if n := Nonce(page[16:32]); n != d.Nonce {
		return fmt.Errorf("it is another arena: nonce %v, expected %v", n, d.Nonce)
	}
	if size := binary.LittleEndian.Uint64(page[48:]); size != uint64(d.Size) {
		return fmt.Errorf("its header says %d bytes, expected %d", size, d.Size)
	}
	return nil
}
