# SPDX-License-Identifier: Apache-2.0
"""Test programs that run again on other devices, and tests that do not.

What a program leaves out on a device, and why, is in the folder devices, a file for
each family of devices: those of a host (guarded, async), CUDA's (fake_cuda, offloaded),
NCCL's (fake_nccl, fake_nccl_ring) and those of several hosts (tcp, tcp_chain,
namespaces). on_device.sh and create_engine.h say what the devices are.
"""

load(
    "//tests/core/engine:devices/cuda.bzl",
    "FAKE_CUDA",
    "FAKE_CUDA_LONG",
    "OFFLOADED",
    "OFFLOADED_LONG",
)
load(
    "//tests/core/engine:devices/host.bzl",
    "ASYNC",
    "ASYNC_LONG",
    "GUARDED",
    "GUARDED_LONG",
)
load(
    "//tests/core/engine:devices/nccl.bzl",
    "FAKE_NCCL",
    "FAKE_NCCL_LONG",
    "FAKE_NCCL_RING",
    "FAKE_NCCL_RING_LONG",
    "left_out_of_nccl",
)
load(
    "//tests/core/engine:devices/tcp.bzl",
    "NAMESPACES",
    "TCP",
    "TCP_CHAIN",
    "TCP_CHAIN_LONG",
    "TCP_LONG",
    "TCP_SANITIZED",
)
load("//tools/bazel:long_forms.bzl", "long_forms")

# Other programs with an engine run without the guard device, and but for those of
# FAKE_NCCL on no fake of NCCL, which has programs of its own for what differs there
# (core/engine:nccl_...):
#
#   core/engine:memory_test, many_tensors_test, state_memory_test
#       measure processes, to which staging memory would count
#   core/engine:muon_test
#       has ranks that are processes, and Muon is in step_tests and steps_tests
#   core/engine:random_models_test
#       takes the paths of steps_tests, with models that vary
#   core/engine:update_test
#       has kernels, and no engine
#   fault:...
#       lets processes and files fail; checkpoints_tests saves and loads the same
#       tensors. On fake_nccl files fail, too, and ranks are killed in saves and
#       loads; core/engine:nccl_kill_test kills them in steps
#   fault:out_of_memory_test
#       and two_faults_test in it let the process run out of memory, where the fakes
#       of the driver and of NCCL, whose allocations are the process's, would end it
#   api:..., sdk:..., samples:...
#       see the C interface alone, which does not open the guard device

_FAKE_DRIVER = ["//tests/fake_cuda:libcublasLt.so.13", "//tests/fake_cuda:libcuda.so.1"]

# By device, the libraries that the loader is to find.
_LIBRARIES = {
    "fake_cuda": _FAKE_DRIVER,
    "fake_nccl": _FAKE_DRIVER + ["//tests/fake_nccl:libnccl.so.2"],
    "fake_nccl_ring": _FAKE_DRIVER + ["//tests/fake_nccl:libnccl.so.2"],
    "namespaces": ["//sdk/network:shard-network"],
    "offloaded": _FAKE_DRIVER,
    "tcp": ["//sdk/network:shard-network"],
    "tcp_chain": ["//sdk/network:shard-network"],
}

def left_out(reasons, only_long = []):
    """Returns the `env` of a test that on_device.sh runs without some of its tests.

    Args:
      reasons: by pattern of tests (as in --gtest_filter), why they are left out.
        on_device.sh prints it.
      only_long: patterns of those that run in the long form alone.
    """
    env = {}
    if reasons:
        env["SHARD_TEST_LEFT_OUT"] = "\n".join([
            "%s: %s" % (tests, why)
            for tests, why in reasons.items()
        ])
    if only_long:
        env["SHARD_TEST_ONLY_LONG"] = "\n".join([
            "%s: runs in the long form" % tests
            for tests in only_long
        ])
    return env

def _rerun(device, left_out_of, tags, only_long = {}, longtsan = {}):
    for label, reasons in left_out_of.items():
        package, program = label[2:].split(":")
        if package != native.package_name():
            continue
        native.sh_test(
            name = device + "_" + program,
            # Copies, or the fake's thread, take as much again as the ranks.
            size = "large",
            srcs = ["//tests/core/engine:on_device.sh"],
            args = [
                device,
                "$(location :%s)" % program,
            ],
            data = [":" + program] + _LIBRARIES.get(device, []),
            env = dict(
                long_forms(longtsan = longtsan.get(label, {})),
                **left_out(reasons, only_long.get(label, []))
            ),
            tags = tags,
        )

def on_other_devices():
    """Defines DEVICE_NAME for each program NAME of the package.

    The program runs with SHARD_TEST_DEVICE in its environment: see create_engine.h.
    The guard device runs under no sanitizer: these see the same work in the program
    itself, and copies from and to a device in the tests of core/device. cpu-async
    runs under the thread sanitizer alone, which is the one that tells whether an
    edge is there when nothing happens to go wrong: in the normal run the steps, in
    the long form all.
    """
    _rerun("guarded", GUARDED, ["nosan"], GUARDED_LONG)
    for label, reasons in ASYNC.items():
        # The steps enqueue on all streams; the others use some of these.
        long = [] if label == "//tests/core/engine:steps_tests" else ["longtsan"]
        _rerun(
            "async",
            {label: reasons},
            ["tsanonly"] + long,
            longtsan = ASYNC_LONG,
        )
    _rerun("fake_cuda", FAKE_CUDA, ["nosan"], FAKE_CUDA_LONG)
    _rerun("offloaded", OFFLOADED, ["nosan"], OFFLOADED_LONG)
    _rerun(
        "fake_nccl",
        {label: left_out_of_nccl(label) for label in FAKE_NCCL},
        ["nosan"],
        FAKE_NCCL_LONG,
    )
    _rerun("fake_nccl_ring", FAKE_NCCL_RING, ["nosan"], FAKE_NCCL_RING_LONG)
    for label, reasons in TCP.items():
        tags = ["longasan"] if label == TCP_SANITIZED else ["nosan"]
        _rerun("tcp", {label: reasons}, tags, TCP_LONG)
    _rerun(
        "tcp_chain",
        {label: TCP[label] for label in TCP_CHAIN},
        ["nosan"],
        TCP_CHAIN_LONG,
    )
    _rerun("namespaces", NAMESPACES, ["nosan"], TCP_LONG)
