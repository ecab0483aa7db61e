package kernels

import (
	"bytes"
	"testing"
)

func TestCopy(t *testing.T) {
	r := seeded(t)
	eachVariant(t, func(t *testing.T) {
		sizes := []int{1000, 4095, 4096, 4097, 4200, 4096 + 255, 65536, 100003}
		for n := range 600 {
			sizes = append(sizes, n)
		}
		for _, n := range sizes {
			for range 4 { // alignments
				content := make([]byte, n)
				r.Read(content)
				for _, stream := range []bool{false, true} {
					src, dst := newGuarded(r, content, n), newGuarded(r, nil, n)
					testCopy(dst.b, src.b, stream)
					if !bytes.Equal(dst.b, content) {
						t.Fatalf("%d bytes, streaming %v: wrong from byte %d on", n, stream, differ(dst.b, content))
					}
					if !bytes.Equal(src.b, content) || !src.intact(n) || !dst.intact(n) {
						t.Fatalf("%d bytes, streaming %v: other memory was written", n, stream)
					}
				}
			}
		}
	})
}
