package modelcheck

// This file has the marks of section 12 of the protocol: scr_group_mark and read_mark. They differ from records (scenarios.go)
// in that they have one word beside the number, whose own order takes the place of the fences.

func (p *plan) mark(field string) uint8 { return p.word("mark, %s", field) }

// writeMarks writes three marks into one place.
func writeMarks(b *builder) {
	seq, hash := b.sc.mark("seq"), b.sc.mark("hash")
	numbered, hashed := release, release
	switch b.off {
	case MarkSeqRelaxed:
		numbered = relaxed
	case MarkHashRelaxed:
		hashed = relaxed
	}
	for n := uint8(1); n <= 3; n++ {
		if b.off != MarkNotInvalidated {
			b.store(seq, 0, relaxed)
		}
		b.store(hash, n, hashed)
		b.store(seq, n, numbered)
	}
}

// readMarks looks for mark 1, then for mark 2.
func readMarks(b *builder) {
	seq, hash := b.sc.mark("seq"), b.sc.mark("hash")
	numbered, hashed := acquire, acquire
	switch b.off {
	case MarkSeqNotAcquired:
		numbered = relaxed
	case MarkHashNotAcquired:
		hashed = relaxed
	}
	for n := uint8(1); n <= 2; n++ {
		unknown := b.label()
		b.load(seq, numbered, equals, n, unknown)
		b.load(hash, hashed, note, n, 0)
		if b.off != MarkNoSecondLook {
			b.load(seq, relaxed, equals, n, unknown)
		}
		b.emit(instr{op: checkNoted}, "take the hash for that of call %d", n)
		b.place(unknown)
		b.emit(instr{op: forget}, "forget it")
	}
}
