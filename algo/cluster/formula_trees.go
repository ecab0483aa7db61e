package cluster

// tree is a binomial tree of ranks counted from its root on: the children of v are v+1, v+2, v+4, ... below v's lowest
// bit (Chan et al. 2007). Its times follow from those of its subtrees. A subtree has 2^k ranks; for each k, the end of the
// group may cut one subtree off. So there are at most 2 lg P sizes.
type tree struct {
	*closed
	n     func(subtree int) float64 // bytes of a message to or from a subtree of so many ranks
	gamma float64
	known map[int]float64
}

func (f *closed) tree(n func(subtree int) float64, gamma float64) tree {
	return tree{f, n, gamma, map[int]float64{}}
}

// full returns the bytes of the whole buffer, for trees in which each message carries all of it.
func (f *closed) full(int) float64 { return f.n }

// down returns the time from the moment at which the root of a tree has everything until all its ranks have. The child
// with most descendants is served first.
func (t tree) down(size int) float64 {
	if end, ok := t.known[size]; ok || size == 1 {
		return end
	}
	now, end := 0., 0.
	free := map[hop]float64{}
	for d := 1 << (lg(size) - 1); d > 0; d /= 2 {
		h, sub := t.at(d), min(d, size-d)
		now += h.o
		leaves := max(now, free[h])
		free[h] = leaves + t.n(sub)*h.beta
		end = max(end, free[h]+h.alpha+h.o+t.down(sub))
	}
	t.known[size] = end
	return end
}

// up returns the time until the root of a tree has what its ranks have. The child with fewest descendants is taken
// first.
func (t tree) up(size int) float64 {
	if end, ok := t.known[size]; ok || size == 1 {
		return end
	}
	now := 0.
	free := map[hop]float64{}
	for d := 1; d < size; d *= 2 {
		h, sub := t.at(d), min(d, size-d)
		n := t.n(sub)
		free[h] = max(t.up(sub)+h.o+h.alpha, free[h]) + n*h.beta
		now = max(now, free[h]) + h.o + n*t.gamma
	}
	t.known[size] = now
	return now
}

// binomial returns the time of a tree. It refuses groups for which tree does not hold.
func (f *closed) binomial(seconds func() float64) (float64, error) {
	if !f.levels() {
		return refuse("steps of a binomial tree are all inside hosts or all between them only if hosts have a power of two of ranks")
	}
	return seconds(), nil
}

// chain returns the time of chunks along all ranks: the path of the first chunk, and then one chunk after the other at
// the rate of the slowest place (Chan et al. 2007; pipelined: Barnett et al. 1994).
func (f *closed) chain(gamma float64) (float64, error) {
	s := min(f.chunk, f.n)
	slowest := f.in
	if f.H > 1 {
		slowest = f.out
	}
	between := float64(f.H - 1)
	way := (float64(f.P-1)-between)*(f.in.message(s)+s*gamma) + between*(f.out.message(s)+s*gamma)
	messages := chunks(f)
	switch {
	case messages == 1:
		return way, nil
	case messages < fewestChunks:
		return refuse("%d chunks are no pipeline", messages)
	case f.few(fewestAround):
		return refuse("a chain through %d hosts", f.H)
	}
	pass := 0. // time for which a rank is busy with passing a chunk on that it has taken
	if f.P > 2 {
		pass = f.other()
	}
	small := max(s*slowest.beta, slowest.o+s*gamma+pass)
	whole := slowest.message(s) + s*gamma
	t := max(way+float64(messages-1)*small, way-whole+f.queue(messages, small, whole, 0, f.c.Capacity))
	if gamma > 0 && f.P > 2 {
		// A rank keeps its result in one of two cells until the next rank has taken it.
		t = max(t, way-whole+f.queue(messages, small, whole, pass+s*gamma, ringCells))
	}
	return t - (float64(messages)*s-f.n)*(slowest.beta+gamma), nil // the last chunk may be shorter
}
