// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/machine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <map>
#include <sstream>
#include <utility>

#include "sdk/cli/commands/section.h"
#include "sdk/cli/handles.h"
#include "sdk/cli/text.h"
#include "shard/shard.h"

namespace shardctl {

namespace {

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Returns the first line of a file; "" when it cannot be read.
std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns a line of /proc/meminfo, such as "MemAvailable: 123 kB", in bytes.
uint64_t MemInfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) {
      return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) *
             (line.find(" kB") != std::string::npos ? 1024 : 1);
    }
  }
  return 0;
}

double Seconds(const std::chrono::steady_clock::time_point& begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

std::string Why() { return std::strerror(errno); }

// Looks for the libraries that the optimizer muon tries, in its order: those of
// kernels/cpu/blas.cc.
void LookForBlas(Section* section) {
  std::string tried;
  for (const char* const name :
       {"libopenblas.so.0", "libopenblas.so", "libmkl_rt.so.2", "libmkl_rt.so",
        "libblis.so.4", "libblis.so", "libblis-mt.so", "libarmpl_lp64.so",
        "libflexiblas.so.3", "libcblas.so.3", "libcblas.so", "libblas.so.3",
        "libblas.so"}) {
    if (void* const handle = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {
      section->Info(
          "blas", std::string(name) + ", for the optimizer muon on processors");
      ::dlclose(handle);
      return;
    }
    tried += std::string(tried.empty() ? "" : ", ") + name;
  }
  section->Info(
      "blas",
      "not found; the optimizer muon needs one on processors. Tried: " + tried);
}

}  // namespace

void LookAtLibrary(std::vector<Finding>* findings) {
  Section section("library", findings);
  const std::string built = std::to_string(SHARD_VERSION_MAJOR) + "." +
                            std::to_string(SHARD_VERSION_MINOR) + "." +
                            std::to_string(SHARD_VERSION_PATCH);
  const std::string loaded = shard_version();
  section.Say(loaded == built, "version",
              "libshard " + loaded + ", shardctl " + built,
              "install shardctl and libshard of one version");
  section.Info("abi", "libshard.so." + std::to_string(shard_abi_version()));
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&shard_version), &info) != 0 &&
      info.dli_fname != nullptr) {
    section.Info("file", info.dli_fname);
  }
}

void LookAtCpu(std::vector<Finding>* findings) {
  Section section("cpu", findings);
  std::ifstream file("/proc/cpuinfo");
  std::string model = "unknown";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    model = line.substr(std::min(line.size(), line.find(':') + 2));
    break;
  }
  section.Info("model", model);
  cpu_set_t set;
  const int allowed =
      ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  section.Info("cores", std::to_string(allowed) + " of " +
                            std::to_string(online) +
                            " may be used by this process");
  const std::string quota = FirstLine("/sys/fs/cgroup/cpu.max");
  if (!quota.empty() && quota.rfind("max", 0) != 0) {
    std::istringstream words(quota);
    double most = 0;
    double period = 1;
    words >> most >> period;
    const double cores = most / period;
    section.Say(cores >= allowed, "quota", NumberText(cores) + " cores",
                "the control group allows less than the cores it shows: ranks "
                "will be stopped in turns; start no more ranks than that");
  }
#if defined(__x86_64__)
  __builtin_cpu_init();
  // The sets that Highway, and so libshard, chooses from, best first.
  const char* target = "scalar";
  const bool sse4 =
      __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") &&
      __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
  const bool avx2 =
      sse4 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  if (sse4) target = "SSE4";
  if (avx2) target = "AVX2";
  if (avx3) target = "AVX-512";
  section.Say(avx2, "simd", target,
              "without AVX2 the optimizer runs at the speed of older "
              "machines; in a virtual machine, pass the host's CPU through");
#elif defined(__aarch64__)
  section.Ok("simd", "NEON");
#else
  section.Info("simd", "unknown architecture");
#endif
}

void LookAtMemory(std::vector<Finding>* findings) {
  Section section("memory", findings);
  const uint64_t total = MemInfo("MemTotal");
  const uint64_t available = MemInfo("MemAvailable");
  section.Say(available >= total / 10, "available",
              BytesText(available) + " of " + BytesText(total),
              "end what uses the memory, or run on a larger machine; "
              "`shardctl plan` says what a model needs");
  const std::string limit = FirstLine("/sys/fs/cgroup/memory.max");
  if (!limit.empty() && limit != "max") {
    section.Info(
        "cgroup",
        BytesText(std::strtoull(limit.c_str(), nullptr, 10)) + " at most");
  }
  const std::string huge =
      FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  section.Say(huge.find("[never]") == std::string::npos && !huge.empty(),
              "huge pages", huge.empty() ? "unknown" : huge,
              "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: "
              "large buffers then need fewer page table entries");
  const std::string shared =
      FirstLine("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (!shared.empty()) section.Info("huge pages of shared memory", shared);
}

void LookAtLimits(std::vector<Finding>* findings) {
  Section section("limits", findings);
  const auto say = [&](const char* name, auto resource, rlim_t least,
                       const char* remedy) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0) return;
    const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
    section.Say(unlimited || limit.rlim_cur >= least, name,
                unlimited ? "unlimited" : CountText(limit.rlim_cur), remedy);
  };
  // A rank of shared memory keeps a few descriptors for each other one.
  say("open files", RLIMIT_NOFILE, 1024,
      "ulimit -n 65536: ranks hold descriptors for each other, checkpoints for "
      "their files");
  say("processes", RLIMIT_NPROC, 1024, "ulimit -u 4096");
  say("address space", RLIMIT_AS, uint64_t{1} << 40,
      "ulimit -v unlimited: buffers are mapped before they are used");
  rlimit core{};
  if (::getrlimit(RLIMIT_FSIZE, &core) == 0 && core.rlim_cur != RLIM_INFINITY) {
    section.Warn("file size", BytesText(core.rlim_cur),
                 "ulimit -f unlimited: a checkpoint's files are large");
  }
  const std::string pids = FirstLine("/sys/fs/cgroup/pids.max");
  if (!pids.empty() && pids != "max") {
    const auto most = std::strtoull(pids.c_str(), nullptr, 10);
    section.Say(most >= 512, "pids of the control group", CountText(most),
                "allow more, or start fewer ranks: each has several threads");
  }
}

void LookAtBackends(std::vector<Finding>* findings) {
  Section section("backends", findings);
  {
    shard_comm_options options = SHARD_COMM_OPTIONS_INIT;
    shard_comm* comm = nullptr;
    const Error error(shard_comm_open("local:", &options, &comm));
    shard_comm_free(comm);
    section.Say(
        error == nullptr, "threads",
        error == nullptr ? "local: opens" : shard_error_message(error.get()),
        "allow this process to map memory");
  }
  {
    const Fd memory(static_cast<int>(
        ::syscall(SYS_memfd_create, "shardctl-doctor", 1u /* MFD_CLOEXEC */)));
    const bool grown =
        memory.get() >= 0 && ::ftruncate(memory.get(), 1 << 20) == 0;
    section.Say(grown, "shm: memfd", grown ? "works" : "memfd_create: " + Why(),
                "shm: needs memfd_create: allow it in the container's seccomp "
                "profile");
    const Fd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0u)));
    section.Say(self.get() >= 0, "shm: pidfd",
                self.get() >= 0 ? "works" : "pidfd_open: " + Why(),
                "shm: needs Linux 5.3 or later, and pidfd_open allowed in the "
                "container's seccomp profile");
  }
  const char* const blas = std::getenv("SHARD_BLAS_LIBRARY");
  if (blas != nullptr && blas[0] != '\0') {
    void* const handle = ::dlopen(blas, RTLD_LAZY | RTLD_LOCAL);
    section.Say(handle != nullptr, "blas",
                std::string("SHARD_BLAS_LIBRARY names ") + blas +
                    (handle != nullptr ? "" : ", which does not load"),
                "name a library that exists, or unset SHARD_BLAS_LIBRARY");
    if (handle != nullptr) ::dlclose(handle);
  } else {
    LookForBlas(&section);
  }
}

void LookAtFolder(const std::string& folder, std::vector<Finding>* findings) {
  Section section("folder " + Shown(folder), findings);
  struct statfs system {};
  if (::statfs(folder.c_str(), &system) != 0) {
    section.Warn("file system", Why(), "give a folder that exists");
    return;
  }
  static const std::map<uint32_t, const char*> kNames = {
      {0xef53, "ext4"},        {0x58465342, "xfs"},    {0x9123683e, "btrfs"},
      {0x01021994, "tmpfs"},   {0x6969, "nfs"},        {0x794c7630, "overlay"},
      {0x2fc12fc1, "zfs"},     {0x0bd00bd0, "lustre"}, {0x65735546, "fuse"},
      {0x47504653, "gpfs"},    {0xff534d42, "cifs"},   {0x19830326, "beegfs"},
      {0x01021997, "9p"},      {0xf2f52010, "f2fs"},   {0x00c36400, "ceph"},
      {0x6a656a63, "virtiofs"}};
  const auto type = static_cast<uint32_t>(system.f_type);
  const auto name = kNames.find(type);
  std::stringstream number;
  number << "unknown (0x" << std::hex << type << ")";
  const std::string shown = name != kNames.end() ? name->second : number.str();
  section.Say(shown != "tmpfs", "file system", shown,
              "tmpfs is memory: a checkpoint there is lost with the power; "
              "give a folder on a disk");
  const uint64_t free =
      static_cast<uint64_t>(system.f_bavail) *
      static_cast<uint64_t>(system.f_frsize > 0 ? system.f_frsize
                                                : system.f_bsize);
  section.Say(free >= (uint64_t{1} << 30), "free", BytesText(free),
              "free some space: a checkpoint is written beside those that are "
              "there before any is removed");

  std::string path = folder + "/shardctl-doctor-XXXXXX";
  const Fd file(::mkostemp(path.data(), O_CLOEXEC));
  if (file.get() < 0) {
    section.Warn("writable", Why(), "give a folder that you may write to");
    return;
  }
  section.Ok("writable", "yes");
  const Fd direct(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  const int direct_errno = errno;
  ::unlink(path.c_str());

  constexpr size_t kBytes = size_t{8} << 20;
  void* const data = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return;
  std::memset(data, 0x5a, kBytes);
  if (direct.get() >= 0 &&
      ::pwrite(direct.get(), data, kBytes, 0) == ssize_t{kBytes}) {
    section.Ok("O_DIRECT", "works");
  } else {
    section.Warn("O_DIRECT",
                 std::strerror(direct.get() >= 0 ? errno : direct_errno),
                 "checkpoints go through the page cache here, which is slower "
                 "and takes memory; most file systems on a disk have it");
  }
  const auto begin = std::chrono::steady_clock::now();
  const bool written =
      ::pwrite(file.get(), data, kBytes, 0) == ssize_t{kBytes} &&
      ::fsync(file.get()) == 0;
  const double seconds = Seconds(begin);
  ::munmap(data, kBytes);
  if (!written) {
    section.Warn("fsync", Why(), "check the disk");
    return;
  }
  section.Say(seconds < 0.5, "fsync",
              BytesText(kBytes) + " are durable in " + SecondsText(seconds) +
                  ", " + BytesText(static_cast<uint64_t>(kBytes / seconds)) +
                  "/s",
              "the disk is slow or busy: save in the background, or less "
              "often");
}

}  // namespace shardctl
