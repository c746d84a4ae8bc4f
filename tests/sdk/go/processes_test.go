// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"libshard/shard"
)

// runAgain runs the test again in a process that has these variables too, and
// expects that it exits with 0.
func runAgain(t *testing.T, variables ...string) {
	t.Helper()
	again := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$")
	again.Env = append(os.Environ(), variables...)
	if output, err := again.CombinedOutput(); err != nil {
		t.Errorf("with %q: %v: %s", variables, err, output)
	}
}

// hasGPU returns whether this process has the fake of NVIDIA's driver, which
// complains at the process's end where work had no order or something is not freed,
// and faults where the program uses the GPU's memory. It runs the test again in a
// process that has it where this one has not.
func hasGPU(t *testing.T) bool {
	t.Helper()
	const strict = "SHARD_FAKE_CUDA_STRICT"
	if os.Getenv(strict) != "" {
		return true
	}
	if os.Getenv("SHARD_USES_FILE") == "" {
		t.Skip("there is no fake of the driver: not run by tests/sdk/uses")
	}
	fake := must(filepath.Abs("tests/fake_cuda"))
	runAgain(t, strict+"=1", "SHARD_FAKE_CUDA_GUARD=1",
		"LD_LIBRARY_PATH="+fake+":"+os.Getenv("LD_LIBRARY_PATH"))
	return false
}

func TestTheVersionIsThatOfTheHeader(t *testing.T) {
	expectEqual(t, shard.ABIVersion(), 0)
	expectEqual(t, len(strings.Split(shard.Version(), ".")), 3)
}

// TestALibraryThatIsOlderOrOfAnotherABIIsAnError runs this test again in processes
// whose library says that it is: the recorder of tests/sdk/uses does, where the
// tests run with it.
func TestALibraryThatIsOlderOrOfAnotherABIIsAnError(t *testing.T) {
	const expected, fits = "SHARD_TEST_EXPECTED", "fits"
	if words := os.Getenv(expected); words != "" {
		_, err := shard.ModelCreate("")
		if words == fits {
			if err != nil {
				t.Error(err)
			}
			return
		}
		expectError(t, err, shard.FailedPrecondition, strings.Split(words, "|")...)
		_, err = shard.CommOpen("local:", nil)
		expectError(t, err, shard.FailedPrecondition)
		return
	}
	if os.Getenv("SHARD_USES_FILE") == "" {
		t.Skip("the library is not the recorder of tests/sdk/uses")
	}
	for _, other := range []struct{ version, abi, words string }{
		{"0.99.1", "0", fits},
		{"0.0.9", "0", "0.0.9 is older|0.2.0 or newer"},
		// The last number of the header is 0.
		{"0.2.-1", "0", "0.2.-1 is older"},
		{"9.0.0", "7", "9.0.0 has ABI 7|ABI 0"},
		{"nightly", "0", "'nightly'"},
	} {
		runAgain(t, "SHARD_USES_VERSION="+other.version, "SHARD_USES_ABI_VERSION="+other.abi,
			expected+"="+other.words)
	}
}

func TestAProcessMayExitWithEverythingOpen(t *testing.T) {
	const root = "SHARD_TEST_ROOT"
	if os.Getenv(root) == "" {
		runAgain(t, root+"="+t.TempDir())
		return
	}
	onRanks(t, 2, "&direct=0", func(r *rank) {
		engine := r.engineFor(shard.PlanOptions{Stage: 2})
		save := must(shard.CheckpointSaveAsync(r.ctx, engine, os.Getenv(root), &shard.SaveOptions{
			Progress: func(done, total uint64) error { return nil },
		}))
		if r.comm.Rank() == 0 {
			r.trainStep(engine)
			os.Exit(0)
		}
		for {
			r.trainStep(engine)
			must(save.Done())
		}
	})
}
