#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The part of gpu_check that trains a model, for tools/gpu_check:

    model.py [--device cuda:0] [--elements N]

Runs samples/gpt, which lies beside this file, on the GPU and on the processor,
and compares what they compute: the loss and the gradients of one pass, the loss
of every step of a training, and the parameters at its end.

Prints a JSON object per line, as the other parts do (report.h). Returns 0 when
all checks hold, and 1 when one does not, or when the part could not be run,
which the last line then says."""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(__file__).resolve().parent / "gpu_check_train_gpt"
# Relative. Sums in other orders cost 1e-7 per step, which training amplifies.
MOST_APART = 1e-3
# The processor needs 10 seconds for these steps with one thread. The model has
# more bytes to predict than 300 steps can learn by heart, so no loss is near 0.
LONG = {"layers": 2, "width": 64, "heads": 4, "context": 64, "batch": 8,
        "steps": 300, "val-every": 100}
# A fake of the driver has the time for few.
SHORT = {"layers": 2, "width": 16, "heads": 2, "context": 8, "batch": 4,
         "steps": 20, "warm-up": 5, "val-every": 10}
FULL_ELEMENTS = 1 << 30
WORDS = ("shard ", "rank ", "gradient ", "step ", "the ", "reduce", "and ",
         "of ", "tensor ", "a unit ", "buffers ", "gathers ", "sum", "norm, ",
         "moment. ", "\n")


SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class NoCublas(Exception):
    """The sample cannot multiply matrices on this machine's GPU."""


def tell(check, **result):
    print(json.dumps({"part": "model", "check": check, **result}), flush=True)


def tell_check(check, wrong):
    """Tells whether a check holds: where `wrong` is ""."""
    tell(check, **({"ok": False, "why": wrong} if wrong else {"ok": True}))
    return not wrong


def write_text(path, words):
    """Writes words in pseudo-random order, from a congruence."""
    state = 1
    with path.open("w", encoding="utf-8") as text:
        for _ in range(words):
            state = (state * 1664525 + 1013904223) % (1 << 32)
            text.write(WORDS[state >> 28])


def let_signals_in():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def run(*arguments):
    """Runs the sample, and returns its exit code, its output and its errors."""
    # A signal must not come between the start of the process and its name here.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    with subprocess.Popen(
            [PROGRAM, *arguments], text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=let_signals_in) as process:
        try:
            let_signals_in()
            out, error = process.communicate()
        except BaseException:
            process.kill()
            raise
    error = error.strip()
    if "no cuBLAS: " in error:
        raise NoCublas(error.splitlines()[-1])
    return process.returncode, out, error[-500:]


class Training:
    """A training that has ended: its losses, and the parameters it exported."""

    def __init__(self, folder, name, options, *arguments):
        log = folder / f"{name}.log"
        exported = folder / f"{name}.safetensors"
        given = [f"--{key}={value}" for key, value in options.items()]
        # One rank, whatever the environment says of ranks.
        code, _, error = run(
            *given, "--rank-threads=1", "--sample=0", "--timeout=30",
            f"--text={folder / 'text'}", f"--log={log}",
            f"--save={folder / name}", f"--export={exported}", *arguments)
        if code != 0:
            raise RuntimeError(f"train_gpt {' '.join(arguments)}: exit code "
                               f"{code}: {error}")
        self.lines = [json.loads(line)
                      for line in log.read_text("utf-8").splitlines()]
        self.params = exported.read_bytes()

    def losses(self):
        """Returns (step, name, loss) of every logged line."""
        return [(line["step"], name, line[name]) for line in self.lines
                for name in ("loss", "validation_loss") if name in line]

    def milliseconds(self):
        """Returns the mean time of a step, with its share of validations."""
        return 1e3 * self.lines[-1]["seconds"] / self.lines[-1]["step"]


def compare_pass(device):
    """Compares one forward and backward pass."""
    code, out, error = run("--check", "--device", device)
    wrong = [line for line in out.splitlines() if line.endswith("WRONG")]
    why = "; ".join(wrong) or error or f"exit code {code}"
    return tell_check("loss and gradients of a pass", why if code else "")


def compare_losses(gpu, processor):
    """Compares the losses of two trainings, line by line."""
    pairs = list(zip(gpu.losses(), processor.losses()))
    most = 0.0
    wrong = ""
    for (*at, loss), (*expected_at, expected) in pairs:
        if at != expected_at:
            wrong = wrong or f"{at} is logged, and {expected_at} on the processor"
        elif loss is None or expected is None:
            wrong = wrong or f"{at} is no number"
        else:
            apart = abs(loss - expected) / abs(expected)
            most = max(most, apart)
            if apart > MOST_APART:
                wrong = wrong or f"{at} is {loss}, and {expected} on the processor"
    if len(gpu.lines) != len(processor.lines):
        wrong = wrong or (f"{len(gpu.lines)} lines are logged, and "
                          f"{len(processor.lines)} on the processor")
    tell("largest difference of two losses", value=most * 1e6,
         unit="millionths")
    return tell_check(f"{len(pairs)} losses within {MOST_APART:g}", wrong)


def compare_params(check, training, expected):
    """Compares all bits of the parameters after the last step."""
    return tell_check(check, "" if training.params == expected.params else
                      "the exported parameters differ")


def learns(training):
    """Checks that the curves are those of a model that learns, and not a line
    that any device would have."""
    first = training.losses()[0][-1]
    last = training.losses()[-1][-1]
    return tell_check("the model learns", "" if last < 0.95 * first else
                      f"the loss begins at {first} and ends at {last}")


def check_model(device, options, folder):
    """Makes all checks. Returns whether they hold."""
    write_text(folder / "text", 60 * options["steps"])
    holds = [compare_pass(device)]
    gpu = Training(folder, "gpu", options, "--device", device)
    processor = Training(folder, "processor", options)
    tell("step on the GPU", value=gpu.milliseconds(), unit="ms")
    tell("step on the processor", value=processor.milliseconds(), unit="ms")
    holds.append(learns(processor))
    holds.append(compare_losses(gpu, processor))
    offloaded = Training(folder, "offloaded", options, "--device",
                         f"{device}?offload=states")
    holds.append(compare_params("offloaded states, the same parameters",
                                offloaded, gpu))
    captured = Training(folder, "captured", options, "--device", device,
                        "--capture")
    holds.append(compare_params("a captured step, the same parameters",
                                captured, gpu))
    return all(holds)


def end_on_signals():
    """Makes a signal that ends the program an exception, so that its folder is
    removed and its training ended."""
    def end(number, _):
        for ignored in SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in SIGNALS:
        # nohup's stays.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--elements", type=int, default=FULL_ELEMENTS)
    given = parser.parse_args()
    end_on_signals()
    options = LONG if given.elements >= FULL_ELEMENTS else SHORT
    try:
        with tempfile.TemporaryDirectory() as folder:
            holds = check_model(given.device, options, pathlib.Path(folder))
    except NoCublas as error:
        tell("model", text=f"not run: {error}")
        return 0
    except (OSError, RuntimeError, ValueError) as error:
        holds = tell_check("the part runs", str(error) or repr(error))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
