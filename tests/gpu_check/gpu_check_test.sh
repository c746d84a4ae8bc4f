#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs tools/gpu_check on a fake of CUDA's driver, and with programs that fail.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# The folder that another machine gets. It is small, and says so if it is not.
folder="$TEST_TMPDIR/folder"
python3 -B - "$folder" <<'END' || fail "the folder"
import importlib.machinery, pathlib, re, sys
check = importlib.machinery.SourceFileLoader(
    "gpu_check", "tools/gpu_check").load_module()
files = {name: pathlib.Path(path) for name, path in check.FILES.items()}
folder = pathlib.Path(sys.argv[1])
root = pathlib.Path(".")
check.assemble(folder, files, root)
check.MOST_BYTES = 1 << 20
try:
    check.assemble(folder, files, root)
except SystemExit as error:
    assert f"at most {1 << 20}" in str(error), error
else:
    raise AssertionError("1 MiB is enough")

# The parts of a run are done within 10 minutes, each part is in one run, and
# the times are those that people read.
for run in check.RUNS.values():
    assert sum(check.PARTS[part] for part in run) <= 590, run
assert sorted(sum(check.RUNS.values(), ())) == sorted(check.PARTS), check.RUNS
for text in (check.__doc__, pathlib.Path("docs/gpu.md").read_text()):
    told = re.findall(r"^(?:    |\| `)(\w+)(?: +|` \| )(\d+)(?: s  | \| )", text, re.M)
    assert {part: int(seconds) for part, seconds in told} == check.PARTS, told
END
# No BLAS of the machine is needed: gpu_check_train_gpt has one of its own.
for program in "$folder"/gpu_check_*; do
  case "$program" in
    *.py) continue ;;
  esac
  readelf -d "$program" | grep NEEDED | grep -i blas &&
    fail "$program needs a BLAS"
done
# The fake that has the kernels of samples/gpt, too.
export LD_LIBRARY_PATH="$PWD/tests/samples/gpt/fake_cuda:$PWD/tests/fake_cuda"
LD_LIBRARY_PATH+=":$PWD/tests/fake_nccl"
export SHARD_FAKE_CUDA_STRICT=1 SHARD_FAKE_NCCL_STRICT=1

# check ARGUMENT...: runs all parts, or those of the arguments. The parts' own limits
# are those of a GPU; a fake on a busy processor may take longer.
check() {
  "$folder/gpu_check" --json "$TEST_TMPDIR/result.json" --elements 100000 \
    --limit 240 "$@" >"$TEST_TMPDIR/out" 2>&1
}

check || fail "$(<"$TEST_TMPDIR/out")"
cp "$TEST_TMPDIR/out" "$TEST_TMPDIR/checks_out"
for part in load bits staged bandwidth overhead nccl graphs muon offload model torch \
  sanitizer; do
  grep -qE "^$part +passed" "$TEST_TMPDIR/out" || fail "$(<"$TEST_TMPDIR/out")"
done
# Every optimizer that GPUs have in five combinations of dtypes, and more.
grep -qE "^bits +passed +16[0-9] of 16[0-9] checks" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
grep -qE "^nccl +passed +20 of 20 checks" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
grep -qE "^graphs +passed +7 of 7 checks" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
grep -qE "^offload +passed +14 of 14 checks" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
# The sample's pass, that its losses fall, the losses, offloaded states, and a
# captured step.
grep -qE "^model +passed +5 of 5 checks" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
# Muon's three precisions are as near to the CPU's and to double as they are to be,
# two of them not nearer, and bf16 is as near as torch's.
grep -qE "^muon +passed +9 of 9 checks" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
python3 - "$TEST_TMPDIR/result.json" <<'END' || fail "the JSON"
import json, pathlib, re, sys
found = json.load(open(sys.argv[1]))
assert found["device"].startswith("Fake GPU"), found["device"]
parts = found["parts"]
assert list(parts) == ["load", "bits", "staged", "bandwidth", "overhead",
                       "nccl", "graphs", "muon", "offload", "model", "torch",
                       "sanitizer"], parts
assert all(not part["wrong"] and part["results"] for part in parts.values())
assert any(result["check"] == "copy" and result["value"] > 0
           for result in parts["bandwidth"]["results"])
# Muon's updates are as near to the CPU's as people read.
told = re.search(r"Frobenius norms:\s+([\d.]+),\s+([\d.]+)\s+and\s+([\d.]+)\.",
                 pathlib.Path("docs/gpu.md").read_text()).groups()
within = re.findall(r"is within ([\d.]+) of the CPU's update", " ".join(
    result["check"] for result in parts["muon"]["results"]))
assert [float(bound) for bound in told] == [float(bound) for bound in within], (
    told, within)
# A fake has one thread for all its streams, so it may hide nothing, but the
# numbers are there.
hidden = {result["check"]: result["value"]
          for result in parts["offload"]["results"]
          if result.get("unit") == "of the step"}
assert list(hidden) == [form + ", hidden by the pass" for form in (
    "adamw f32", "adamw bf16 with masters")], hidden
END

# Speeds are checked on the devices that have targets, and torch's beside them.
cat >"$folder/gpu_check_part" <<'END'
#!/bin/sh
echo '{"part": "bandwidth", "check": "adamw f32, 1 tensor", "value": 10, "unit": "ms"}'
echo '{"part": "bandwidth", "check": "a target", "ok": true}'
muon="muon medium, 12 blocks of GPT-2"
echo '{"part": "bandwidth", "check": "'"$muon"'", "value": 4, "unit": "ms"}'
END
mkdir "$TEST_TMPDIR/torch"
cat >"$TEST_TMPDIR/torch/torch.py" <<'END'
import json
print(json.dumps({"check": "torch fused adamw f32, 1 tensor", "value": 9,
                  "unit": "ms"}))
print(json.dumps({"check": "torch muon medium, 12 blocks of GPT-2", "value": 6,
                  "unit": "ms"}))
raise ImportError("is a fake")
END
PYTHONPATH="$TEST_TMPDIR/torch" check --part bandwidth --part torch &&
  fail "torch is faster"
grep -q "FAILED adamw f32, 1 tensor is 1.0 times as fast as torch's: 0.900 times" \
  "$TEST_TMPDIR/out" || fail "$(<"$TEST_TMPDIR/out")"
grep -qE "torch over muon medium, 12 blocks of GPT-2 +1.500 x" \
  "$TEST_TMPDIR/out" || fail "$(<"$TEST_TMPDIR/out")"
cp tests/gpu_check/gpu_check_part "$folder"

# A model that is trained otherwise on the GPU is found, whatever differs.
cat >"$folder/gpu_check_train_gpt" <<'END'
#!/bin/sh
# In place of samples/gpt. $wrong says what differs.
loss=4 params=same
for argument; do
  case "$argument" in
    --check)
      [ "$wrong" != pass ] || { echo "loss 1e-3 WRONG"; exit 1; }
      exit 0 ;;
    --log=*) log="${argument#--log=}" ;;
    --export=*) export="${argument#--export=}" ;;
    --capture) [ "$wrong" != capture ] || params=others ;;
    cuda:0) [ "$wrong" != losses ] || loss=4.005 ;;
    cuda:0?offload=states) [ "$wrong" != params ] || params=others ;;
  esac
done
echo '{"step":1,"loss":5,"seconds":0.1}' >"$log"
echo '{"step":1,"validation_loss":'"$loss"',"seconds":0.2}' >>"$log"
echo "$params" >"$export"
END
for wrong in "" pass losses params capture; do
  export wrong
  check --part model && [[ -n "$wrong" ]] && fail "model: $wrong"
  case "$wrong" in
    "") line="^model +passed +5 of 5" ;;
    pass) line="FAILED loss and gradients of a pass: loss 1e-3 WRONG" ;;
    losses) line="FAILED 2 losses within 0.001: .*4.005, and 4 on" ;;
    params) line="FAILED offloaded states, the same parameters: " ;;
    capture) line="FAILED a captured step, the same parameters: " ;;
  esac
  grep -qE "$line" "$TEST_TMPDIR/out" || fail "$wrong: $(<"$TEST_TMPDIR/out")"
done

# A model that is ended while it trains leaves neither files nor its training:
# by itself, and as a part that is not done in time or whose gpu_check is ended.
cat >"$folder/gpu_check_train_gpt" <<'END'
#!/bin/sh
echo $$ >"$TRAINING"
exec sleep 1000
END
python3 -B - "$folder" "$TEST_TMPDIR" <<'END' || fail "a model that is ended"
import os, pathlib, shutil, signal, subprocess, sys, time
folder, root = map(pathlib.Path, sys.argv[1:])
temporary = root / "temporary"
training = root / "training"

def await_that(condition, what):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)

def trains():
    return training.exists() and training.read_text().endswith("\n")

def is_alive(pid):
    try:
        # A process that nobody waits for has ended, too.
        return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False

def end(command, number=None):
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    training.unlink(missing_ok=True)
    environment = {**os.environ, "TMPDIR": temporary, "TRAINING": training}
    program = subprocess.Popen(command, env=environment,
                               stdout=subprocess.DEVNULL)
    if number:
        await_that(trains, "the training's begin")
        assert list(temporary.rglob("text")), "the model has no folder"
        program.send_signal(number)
    code = program.wait(timeout=60)
    assert code == (128 + number if number else 1), code
    assert not list(temporary.iterdir()), list(temporary.rglob("*"))
    if trains():
        pid = int(training.read_text())
        await_that(lambda: not is_alive(pid), "the training's end")

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    end([sys.executable, folder / "gpu_check_model.py"], number)
check = [folder / "gpu_check", "--part", "model", "--json", root / "json"]
end(check, signal.SIGTERM)
end([*check, "--limit", "2"])
END
cp -f tests/gpu_check/gpu_check_train_gpt "$folder"

# Muon and the model are left out where there is no cuBLAS: here are files that do
# not load.
mkdir "$TEST_TMPDIR/driver"
cp tests/samples/gpt/fake_cuda/libcuda.so.1 "$TEST_TMPDIR/driver"
for library in libcublas libcublasLt; do
  for major in 12 13; do
    head -c 4096 /dev/zero >"$TEST_TMPDIR/driver/$library.so.$major"
  done
done
LD_LIBRARY_PATH="$TEST_TMPDIR/driver" check --part muon --part model ||
  fail "$(<"$TEST_TMPDIR/out")"
grep -q "model: not run: .*no cuBLAS: .*libcublas.so.12" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
grep -q "muon: not run: .*libcublasLt.so.12: " "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"

# A step in one kernel needs several GPUs; a later NCCL tells addresses.
for line in "a step in one kernel: not run: .* several ranks" \
  "windows: not run: NCCL 2.28.9 "; do
  grep -q "$line" "$TEST_TMPDIR/checks_out" ||
    fail "$line: $(<"$TEST_TMPDIR/checks_out")"
done
(export SHARD_FAKE_NCCL_VERSION=23102 && check --part nccl) ||
  fail "$(<"$TEST_TMPDIR/out")"
grep -qE "^nccl +passed +21 of 21 checks" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
fault=ncclGetPeerDevicePointer:1:3
(export SHARD_FAKE_NCCL_VERSION=23102 SHARD_FAKE_NCCL_FAIL="$fault" &&
  check --part nccl) && fail "$fault"
grep -q "FAILED the address that a window tells: .*${fault%%:*}: " \
  "$TEST_TMPDIR/out" || fail "$(<"$TEST_TMPDIR/out")"

# An error of NCCL is found, and a machine without NCCL has the reason.
for fault in ncclBroadcast:2:2 ncclCommSplit:1:3 ncclMemAlloc:1:1; do
  (export SHARD_FAKE_NCCL_FAIL="$fault" && check --part nccl) && fail "$fault"
  grep -q "FAILED .*${fault%%:*}\( on rank 0\)\?: " "$TEST_TMPDIR/out" ||
    fail "$fault: $(<"$TEST_TMPDIR/out")"
done
# An interface that is not there is named.
(export NCCL_SOCKET_IFNAME=no_such && check --part nccl) &&
  fail "there is no interface no_such"
grep -q "FAILED libshard's own check: .*ncclGetUniqueId: .*(NCCL_SOCKET_IFNAME=no_such)" \
  "$TEST_TMPDIR/out" || fail "$(<"$TEST_TMPDIR/out")"
mkdir "$TEST_TMPDIR/no_nccl"
head -c 4096 /dev/zero >"$TEST_TMPDIR/no_nccl/libnccl.so.2"
LD_LIBRARY_PATH="$TEST_TMPDIR/no_nccl:$LD_LIBRARY_PATH" check --part nccl ||
  fail "$(<"$TEST_TMPDIR/out")"
grep -q "nccl: not run: .*libnccl.so.2" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"

# NCCL and cuBLAS are found where Python's nvidia packages have them.
mkdir -p "$TEST_TMPDIR/packages/nvidia/nccl/lib" \
  "$TEST_TMPDIR/packages/nvidia/cu13/lib" "$TEST_TMPDIR/driver_alone"
cp tests/fake_cuda/libcuda.so.1 "$TEST_TMPDIR/driver_alone"
cp tests/fake_nccl/libnccl.so.2 \
  "$TEST_TMPDIR/packages/nvidia/nccl/lib"
cp tests/fake_cuda/libcublasLt.so.13 "$TEST_TMPDIR/packages/nvidia/cu13/lib"
PYTHONPATH="$TEST_TMPDIR/packages" LD_LIBRARY_PATH="$TEST_TMPDIR/driver_alone" \
  check --part load || fail "$(<"$TEST_TMPDIR/out")"
for line in "nccl: libnccl.so.2 2.28.9" "cublas: libcublasLt.so.13 13.8"; do
  grep -q "$line" "$TEST_TMPDIR/out" || fail "$line: $(<"$TEST_TMPDIR/out")"
done

# Of a device that is not there the error says so, whatever the part.
check --part load --part model --device cuda:7 && fail "there is no cuda:7"
[[ $(grep -c "FAILED the part runs: .*cuda:7" "$TEST_TMPDIR/out") == 2 ]] ||
  fail "$(<"$TEST_TMPDIR/out")"

# Without a driver a part fails, and says why.
if ! ldconfig -p | grep -q 'libcuda[.]so[.]1'; then
  LD_LIBRARY_PATH="" check --part load && fail "no driver, and no error"
  grep -q "no CUDA driver" "$TEST_TMPDIR/out" || fail "$(<"$TEST_TMPDIR/out")"
fi

# A part that hangs or dies is ended, and the others run.
cat >"$folder/gpu_check_part" <<'END'
#!/bin/sh
case "$1" in
  load) echo '{"part": "load", "check": "begins", "ok": true}'; sleep 1000 ;;
  bits) kill -SEGV $$ ;;
  staged) echo '{"part": "staged", "check": "works", "ok": true}' ;;
  overhead) echo "no room" >&2; exit 1 ;;
  # compute-sanitizer, with the program behind it.
  --tool) echo "invalid read" >&2; exit 9 ;;
esac
END
check --limit 2 --part load --part bits --part staged --part overhead &&
  fail "a part hangs"
for line in "^load +FAILED +1 of 1" "not done within 2" "^bits +FAILED" SIGSEGV \
  "^staged +passed +1 of 1" "^overhead +FAILED" "exit code 1: no room"; do
  grep -qE "$line" "$TEST_TMPDIR/out" || fail "$line: $(<"$TEST_TMPDIR/out")"
done
cp "$folder/gpu_check_part" "$folder/compute-sanitizer"
PATH="$folder:$PATH" check --part sanitizer && fail "the sanitizer finds an error"
grep -q "exit code 9: invalid read" "$TEST_TMPDIR/out" ||
  fail "$(<"$TEST_TMPDIR/out")"
