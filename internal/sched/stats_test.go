package sched

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The JSON of Stats is a part of /server_info: names are kept.
func TestStatsAsJSON(t *testing.T) {
	s := Stats{Running: 1, Waiting: 2, Loading: 3, Parked: 4, Blocks: 5, Free: 6, Indexed: 7, Held: 8, Leased: 9, Totals: Totals{
		Finished: Finishes{Stop: 10, Length: 11, Aborted: 12, LoadFailed: 13}, Preemptions: 14, FailedLoads: 15,
		Prompt: 16, Local: 17, Loaded: 18, Recomputed: 19, Computed: 20, Redone: 21, Output: 22,
	}}
	got, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"running":1,"waiting":2,"loading":3,"parked":4,"blocks":5,"free":6,"indexed":7,"held":8,"leased":9,` +
		`"finished":{"stop":10,"length":11,"abort":12,"error":13},"preemptions":14,"failed_loads":15,` +
		`"prompt_tokens":16,"local_tokens":17,"loaded_tokens":18,"recomputed_tokens":19,"computed_tokens":20,"redone_tokens":21,"output_tokens":22}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Error(d)
	}
}
