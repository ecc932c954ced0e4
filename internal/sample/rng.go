package sample

// Uniform returns the random number in [0, 1) of one draw: a function of the
// request's seed, the choice index and the position that the token will have
// in its sequence (prompt included). It has 53 random bits.
//
// The three words pass through SplitMix64's finaliser one after the other, so
// that neighbouring seeds, choices and positions are unrelated.
func Uniform(seed uint64, choice, position int) float64 {
	h := mix(seed + 0x9e3779b97f4a7c15)
	h = mix(h ^ (uint64(choice)+1)*0xd1b54a32d192ed03)
	h = mix(h ^ (uint64(position)+1)*0x8cb92ba72f3d8dd7)
	return float64(h>>11) * (1.0 / (1 << 53))
}

// mix is the finaliser of SplitMix64, a bijection of 64-bit words.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// Derive returns the n-th seed of a source, for requests that bring none.
func Derive(source, n uint64) uint64 {
	return mix(mix(source+0x9e3779b97f4a7c15) ^ (n+1)*0xd1b54a32d192ed03)
}
