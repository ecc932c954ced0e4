package main

import (
	"net"
	"testing"

	"github.com/spf13/cobra"

	"tandem/internal/connector"
)

// H097: nothing that is started without flags can be reached from another host.
func TestDefaultAddressesAreLoopback(t *testing.T) {
	for _, c := range []struct {
		cmd  *cobra.Command
		flag string
	}{{serveCommand(), "host"}, {serveCommand(), "peer-listen"}, {routeCommand(), "host"}, {upCommand(), "host"}} {
		f := c.cmd.Flags().Lookup(c.flag)
		if f == nil {
			t.Fatalf("%s has no --%s", c.cmd.Name(), c.flag)
		}
		host := f.DefValue
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			t.Errorf("%s --%s is %q", c.cmd.Name(), c.flag, f.DefValue)
		}
	}
}

// H112: the digest that the router compares changes with every factor, and with
// nothing else.
func TestFingerprintOfServerInfo(t *testing.T) {
	a := sum("model", "1", "layers", "2")
	for _, other := range []string{sum("model", "2", "layers", "2"), sum("model", "1", "layers", "3"), sum("model", "1"), sum("mode", "l1", "layers", "2")} {
		if other == a {
			t.Error("two fingerprints have one digest")
		}
	}
	if sum("model", "1", "layers", "2") != a {
		t.Error("one fingerprint has two digests")
	}
}

func sum(pairs ...string) string {
	var fs []connector.Factor
	for i := 0; i+1 < len(pairs); i += 2 {
		fs = append(fs, connector.Factor{Name: pairs[i], Value: pairs[i+1]})
	}
	s, _ := fingerprint(fs)
	return s
}
