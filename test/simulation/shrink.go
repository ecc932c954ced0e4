package simulation

// Shrink looks for a smaller history of v's seed that still breaks a promise: it
// leaves out halves, quarters, and so on, of the requests, faults and acts, as
// long as that helps. It returns what can be left out and the last violation.
func (r *Runner) Shrink(v *BrokenError, opt Options) (Mask, *BrokenError) {
	mask := Mask{map[int]bool{}, map[int]bool{}, map[int]bool{}}
	opt.Mask, opt.Trace = mask, nil
	for again := true; again; {
		again = false
		for _, part := range []struct {
			set map[int]bool
			n   int
		}{{mask.Faults, 16}, {mask.Acts, 8}, {mask.Requests, opt.Requests * 2}} {
			for size := part.n / 2; size >= 1; size /= 2 {
				for from := 0; from < part.n; from += size {
					var added []int
					for i := from; i < min(from+size, part.n); i++ {
						if !part.set[i] {
							part.set[i] = true
							added = append(added, i)
						}
					}
					if len(added) == 0 {
						continue
					}
					if smaller := r.Run(v.Seed, opt, NewCoverage()); smaller != nil {
						v, again = smaller, true
						continue
					}
					for _, i := range added {
						delete(part.set, i)
					}
				}
			}
		}
	}
	return mask, v
}
