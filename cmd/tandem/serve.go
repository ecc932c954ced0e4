package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tandem/internal/bystander"
)

// serveOptions are the flags of `tandem serve`, named as in `vllm serve` where
// that has them.
type serveOptions struct {
	host        string
	port        int
	names       []string
	apiKey      string
	level       string
	grace       time.Duration
	stall       time.Duration
	quiet       bool
	maxLen      int
	maxSeqs     int
	maxBatched  int
	blockSize   int
	blocks      int
	memory      byteSize
	kvType      string
	prefix      bool
	noPrefix    bool
	policy      string
	seed        uint64
	tp          int
	threads     int
	kernels     string
	f32         bool
	sim         bool
	simDelay    time.Duration
	transfer    string
	ownPolicy   bool
	peerListen  string
	advertise   string
	socketDir   string
	tokenFile   string
	announceFD  int
	supervised  bool
	noConnector bool
	chaos       bool
	token       []byte
	logs        *bystander.Logs
}

func (o *serveOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.host, "host", "127.0.0.1", "address to listen on; 0.0.0.0 is every one of this host")
	f.IntVar(&o.port, "port", 8000, "port to listen on, up to 65535; 0 for a free one")
	f.StringArrayVar(&o.names, "served-model-name", nil, "name of the model in the API; may be given several times (default: the file's name)")
	f.StringVar(&o.apiKey, "api-key", os.Getenv("TANDEM_API_KEY"), "key that clients must send as a bearer token; empty: none is asked for (environment: TANDEM_API_KEY)")
	f.StringVar(&o.level, "log-level", "info", "debug, info, warn or error")
	f.DurationVar(&o.grace, "drain-timeout", 30*time.Second, "longest time to finish running requests and leases after SIGTERM; what still runs then ends with an error")
	f.DurationVar(&o.stall, "stall-timeout", time.Minute, "longest engine step, at least 1ms; while one takes longer, /health is red and requests end with an error")
	f.BoolVar(&o.quiet, "disable-log-requests", false, "no log line per request")
	f.IntVar(&o.maxLen, "max-model-len", 0, "longest sequence in tokens, prompt and output, up to the model's context length, which 0 stands for")
	f.IntVar(&o.maxSeqs, "max-num-seqs", 64, "requests that run at once, at least 1; others wait")
	f.IntVar(&o.maxBatched, "max-num-batched-tokens", 512, "tokens of one step, at least 1: of prompts in chunks, and one of each request that decodes")
	f.IntVar(&o.blockSize, "block-size", 16, "tokens of a KV block: 16, 32 or 64")
	f.Var(&o.memory, "kv-cache-memory", "memory of the KV cache, such as 512MiB or 2GiB, from one block up to 1024TiB; --sim has 65536 tokens in place of it")
	f.IntVar(&o.blocks, "num-gpu-blocks-override", 0, "KV blocks, in place of --kv-cache-memory; 0 leaves it to that")
	f.StringVar(&o.kvType, "kv-cache-dtype", "auto", "auto (f16), f16 or f32")
	f.BoolVar(&o.noPrefix, "no-enable-prefix-caching", false, "compute every prompt whole, as --enable-prefix-caching=false")
	f.BoolVar(&o.prefix, "enable-prefix-caching", true, "reuse the KV of shared prefixes")
	f.StringVar(&o.policy, "scheduling-policy", "fcfs", "fcfs or priority")
	f.Uint64Var(&o.seed, "seed", 0, "source of the seeds of requests that bring none; 0 is random")
	f.IntVar(&o.tp, "tensor-parallel-size", 1, "ranks of the engine: 1, 2 or 4")
	f.IntVar(&o.threads, "threads", 0, "threads that compute; 0 takes the cores that this process may use by its CPU set and control group")
	f.StringVar(&o.kernels, "kernels", "auto", "auto, avx512, avx2 or portable; auto takes the first of them that the processor has, and the results are the same bits")
	f.BoolVar(&o.f32, "f32", false, "exact mode for tests: f32 weights, activations and KV")
	f.BoolVar(&o.chaos, "enable-chaos", false, "let tandem chaos break what runs between this engine and others; not where others rely on it")
	f.BoolVar(&o.sim, "sim", false, "no model: synthetic tokens that depend on every KV byte")
	f.DurationVar(&o.simDelay, "sim-token-time", 0, "with --sim: time that each computed token takes, 0 for none")
	f.StringVar(&o.transfer, "kv-transfer-config", "", "connector as JSON or @FILE, as in vLLM; single keys as --kv-transfer-config.KEY VALUE; empty: the engine exchanges no KV")
	f.BoolVar(&o.ownPolicy, "allow-request-policy", false, "let a request choose by the header X-KV-Load-Failure-Policy (fail or recompute) what happens when its KV load fails")
	f.StringVar(&o.peerListen, "peer-listen", "127.0.0.1:0", "host:port for other engines; port 0 takes a free one")
	f.StringVar(&o.advertise, "peer-advertise", "", "host:port that other engines dial, needed where --peer-listen has no single address (default: where --peer-listen was bound)")
	f.StringVar(&o.socketDir, "peer-socket-dir", "", "folder for the peer socket, by which engines on this host share memory (default: one of this user's under $TMPDIR)")
	f.StringVar(&o.tokenFile, "cluster-token-file", "", "file with the cluster token, 32 to 4096 bytes, the same for all engines that exchange KV; needed with --kv-transfer-config")
	f.IntVar(&o.announceFD, "announce-fd", 0, "descriptor to write the URL to")
	f.BoolVar(&o.supervised, "supervised", false, "end with standard input")
}

func serveCommand() *cobra.Command {
	o := serveOptions{memory: 1 << 30}
	var dotted map[string]string
	cmd := &cobra.Command{
		Use:   "serve [MODEL]",
		Short: "Run one engine and its OpenAI-compatible server",
		Long:  "Run one engine and its OpenAI-compatible server on a GGUF file. Without MODEL the default model is used, and fetched when it is missing.",
		// The dotted keys of --kv-transfer-config are no flags that can be
		// defined, so flags are parsed here.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if args, dotted, err = dottedArgs(args); err != nil {
				return err
			}
			if err := cmd.Flags().Parse(args); err != nil {
				if errors.Is(err, pflag.ErrHelp) {
					return cmd.Help()
				}
				return fmt.Errorf("serve: %w; see tandem serve --help", err)
			}
			args = cmd.Flags().Args()
			if help, err := cmd.Flags().GetBool("help"); err == nil && help {
				return cmd.Help()
			}
			if len(args) > 1 {
				return fmt.Errorf("serve: want one MODEL, got %s", strings.Join(args, " "))
			}
			ctx := cmd.Context()
			if o.supervised {
				var cancel func()
				ctx, cancel = supervise(ctx, cmd.InOrStdin())
				defer cancel()
			}
			log, logs, err := newLogger(cmd.ErrOrStderr(), o.level)
			if err != nil {
				return err
			}
			defer logs.Close()
			o.logs = logs
			transfer, err := parseTransfer(o.transfer, dotted)
			o.noConnector = errors.Is(err, errNoTransfer)
			if err != nil && !o.noConnector {
				return err
			}
			if err := o.check(args); err != nil {
				return err
			}
			return serve(ctx, &o, args, transfer, log, cmd.ErrOrStderr())
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolP("help", "h", false, "help for serve")
	hide(cmd, "announce-fd", "supervised")
	return cmd
}

// check refuses values that no part below would explain as well.
func (o *serveOptions) check(args []string) error {
	switch {
	case o.policy != "fcfs" && o.policy != "priority":
		return fmt.Errorf("--scheduling-policy %q: want fcfs or priority", o.policy)
	case o.kvType != "auto" && o.kvType != "f16" && o.kvType != "f32":
		return fmt.Errorf("--kv-cache-dtype %q: want auto, f16 or f32", o.kvType)
	case o.blockSize != 16 && o.blockSize != 32 && o.blockSize != 64:
		return fmt.Errorf("--block-size %d: want 16, 32 or 64", o.blockSize)
	case o.tp != 1 && o.tp != 2 && o.tp != 4:
		return fmt.Errorf("--tensor-parallel-size %d: want 1, 2 or 4", o.tp)
	case o.threads > maxThreads:
		return fmt.Errorf("--threads %d: want at most %d", o.threads, maxThreads)
	case slices.Contains(o.names, ""):
		return errors.New("--served-model-name: want a name")
	case o.sim && len(args) > 0:
		return fmt.Errorf("serve: --sim runs without a model, but %s is given", args[0])
	case o.noConnector && o.ownPolicy:
		return errors.New("--allow-request-policy has no use without --kv-transfer-config")
	case o.noConnector && o.tokenFile != "":
		return errors.New("--cluster-token-file has no use without --kv-transfer-config")
	case !o.noConnector && o.tokenFile == "":
		return errors.New("--kv-transfer-config needs --cluster-token-file: engines exchange KV only with those that hold the same token")
	}
	if err := cmp.Or(
		least("--max-model-len", o.maxLen, 0), least("--max-num-seqs", o.maxSeqs, 1), least("--max-num-batched-tokens", o.maxBatched, 1),
		least("--num-gpu-blocks-override", o.blocks, 0), least("--threads", o.threads, 0), least("--sim-token-time", o.simDelay, 0),
		least("--drain-timeout", o.grace, 0), least("--stall-timeout", o.stall, shortest),
	); err != nil {
		return err
	}
	if o.noConnector {
		return nil
	}
	host, _, err := net.SplitHostPort(o.peerListen)
	if err != nil {
		return fmt.Errorf("--peer-listen %s: want HOST:PORT, such as 0.0.0.0:5600", o.peerListen)
	}
	if o.advertise == "" {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			return fmt.Errorf("--peer-listen %s names every address of this host: say with --peer-advertise which one others dial", o.peerListen)
		}
	}
	if _, _, err := net.SplitHostPort(o.advertise); o.advertise != "" && err != nil {
		return fmt.Errorf("--peer-advertise %s: want HOST:PORT, as other engines dial it", o.advertise)
	}
	o.token, err = readToken(o.tokenFile)
	return err
}

// maxThreads bounds --threads: members of a team wait for each other by spinning,
// so that more of them than cores only get in each other's way.
const maxThreads = 1024

// serve builds the parts of an engine from the ground up, runs them, and ends
// them from the top down.
func serve(ctx context.Context, o *serveOptions, args []string, transfer transferConfig, log *slog.Logger, progress io.Writer) error {
	threads := o.threads
	if threads == 0 {
		threads = cpuBudget()
	}
	// Two more than compute, so that a connection need not wait for a kernel.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), threads+2))
	// The address is bound first: a taken port is known before a model is loaded.
	ln, err := listen(ctx, o.host, o.port)
	if err != nil {
		return err
	}
	if err := announce(o.announceFD, ln); err != nil {
		return err
	}
	m, err := openModel(ctx, o, args, threads, log, progress)
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	s, err := assemble(o, m, transfer, log)
	if err != nil {
		return errors.Join(err, m.close(), ln.Close())
	}
	return errors.Join(s.run(ctx, ln), m.close())
}
