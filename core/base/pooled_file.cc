// SPDX-License-Identifier: Apache-2.0

#include "core/base/pooled_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/strings.h"

namespace shard {

namespace {

// The pool's number of descriptors: a share of the process's limit, between
// these bounds.
constexpr rlim_t kShare = 4;
constexpr rlim_t kFewest = 2;  // One file past the page cache.
constexpr rlim_t kMost = 8192;
// The longest that a use may take: a use is a read or a write of some MiB.
constexpr std::chrono::seconds kLongestUse{30};

int Capacity() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFewest;
  return static_cast<int>(
      std::clamp<rlim_t>(limit.rlim_cur / kShare, kFewest, kMost));
}

bool IsSame(const struct stat& a, const struct stat& b, bool unchanged) {
  if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) return false;
  return !unchanged ||
         (a.st_size == b.st_size && a.st_mtim.tv_sec == b.st_mtim.tv_sec &&
          a.st_mtim.tv_nsec == b.st_mtim.tv_nsec);
}

}  // namespace

// The pool of all pooled files of a process.
class FilePool;

struct PooledFile::Entry {
  enum class State {
    kClosed,
    kOpen,
    kChanging,  // A thread opens or closes it, outside the pool's lock.
  };

  // Stored, because a destructor must not be the first to create the pool.
  FilePool* pool = nullptr;

  // The arguments for opening it again. `in` is null for a path.
  const Directory* in = nullptr;
  FileEnv* env = nullptr;
  std::string name;
  std::string path;
  File::Mode mode = File::Mode::kRead;
  File::Cache cache = File::Cache::kBuffered;
  std::optional<struct stat> identity;  // None: it was never opened.

  // Guarded by the pool's lock, except `file` while kChanging or used, and
  // `sync_error` while kChanging.
  State state = State::kClosed;
  int users = 0;
  std::optional<File> file;
  Status sync_error;
  // A list node that is moved into the pool's list while the file is idle, so
  // that this takes no memory.
  std::list<Entry*> node{this};
  const std::list<Entry*>::iterator place = node.begin();

  // True when written since the last sync.
  std::atomic<bool> written{false};

  int descriptors() const { return cache == File::Cache::kDirect ? 2 : 1; }
  Status OpenFile();
  void CloseFile();
};

// Opens the file for the first time; later checks that it is the same file.
Status PooledFile::Entry::OpenFile() {
  StatusOr<File> opened = in != nullptr ? File::Open(*in, name, mode, cache)
                                        : File::Open(env, name, mode, cache);
  if (!opened.ok()) {
    if (!identity || opened.status().code() != StatusCode::kNotFound) {
      return opened.status();
    }
    return NotFound(opened.status().message(),
                    "; it was deleted while it was in use and not open, for "
                    "the limit of open files (ulimit -n) is low");
  }
  struct stat found;
  int result = env->Stat(opened->fd(), &found);
  while (result == -EINTR) result = env->Stat(opened->fd(), &found);
  if (result != 0) {
    return ErrnoStatus(StrCat("looking at '", path, "'"), -result);
  }
  if (identity && !IsSame(*identity, found, mode == File::Mode::kRead)) {
    return FailedPrecondition("'", path,
                              "' was replaced or changed while it was in use");
  }
  identity = found;
  file.emplace(*std::move(opened));
  // The file exists now.
  if (mode == File::Mode::kCreate) mode = File::Mode::kWrite;
  return Status();
}

void PooledFile::Entry::CloseFile() {
  Status status;
  if (written.exchange(false)) status = file->Sync();
  const Status closed = file->Close();
  if (status.ok() && mode != File::Mode::kRead) status = closed;
  if (sync_error.ok()) sync_error = status;
}

class FilePool {
 public:
  using Entry = PooledFile::Entry;
  using State = Entry::State;

  // Returns the pool of this process. A child of fork has a pool of its own,
  // because a thread of its parent may have held the lock.
  static FilePool& Get() {
    // Leaked on purpose: no static destructor may run in the host's exit.
    static std::atomic<FilePool*> current{nullptr};
    FilePool* pool = current;
    if (pool == nullptr || !pool->IsOurs()) {
      auto made = std::make_unique<FilePool>();
      if (current.compare_exchange_strong(pool, made.get())) {
        pool = made.release();
      }
    }
    return *pool;
  }

  FilePool()
      : out_of_memory_(ResourceExhausted("out of memory while a file was "
                                         "closed; what was written to it may "
                                         "be lost")) {}

  // Returns false in a child of the process that made the pool: files that are
  // open there stay open until the child ends.
  bool IsOurs() const { return ::getpid() == owner_; }
  Status CheckOurs(const Entry* entry) const {
    if (IsOurs()) return Status();
    return FailedPrecondition("'", entry->path,
                              "' was opened by the parent of this process; "
                              "open it again after fork");
  }

  // Opens the file if it is not, and keeps it open until Release.
  Status Acquire(Entry* entry) {
    SHARD_RETURN_IF_ERROR(CheckOurs(entry));
    // Files with two descriptors are opened one at a time, until they count as
    // used: otherwise two files with one descriptor each could leave none for
    // each other.
    std::unique_lock alone(opening_, std::defer_lock);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entry->state != State::kChanging; });
    if (entry->state == State::kClosed) {
      entry->state = State::kChanging;
      open_ += entry->descriptors();
      while (open_ > Capacity() && !idle_.empty()) CloseFirst(&lock);
      lock.unlock();
      Status status;
      const auto opened = [&](bool is_open) {
        lock.lock();
        entry->state = is_open ? State::kOpen : State::kClosed;
        if (!is_open) open_ -= entry->descriptors();
        changed_.notify_all();
      };
      try {
        if (entry->descriptors() > 1) alone.lock();
        status = entry->OpenFile();
      } catch (...) {  // Out of memory.
        opened(false);
        throw;
      }
      opened(status.ok());
      SHARD_RETURN_IF_ERROR(status);
    } else if (entry->users == 0) {
      entry->node.splice(entry->node.end(), idle_, entry->place);
    }
    if (entry->users++ == 0) ++used_;
    return Status();
  }

  void Release(Entry* entry) noexcept {
    const std::lock_guard lock(mutex_);
    if (--entry->users > 0) return;
    --used_;
    idle_.splice(idle_.end(), entry->node, entry->place);
    changed_.notify_all();
  }

  // Closes the file if it is open, without a sync. REQUIRES: no thread uses it.
  void Close(Entry* entry) noexcept {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entry->state != State::kChanging; });
    entry->written = false;
    if (entry->state == State::kOpen) CloseIdle(entry, &lock);
  }

  // Returns the first error of syncing the file, `status` included.
  Status AddError(Entry* entry, const Status& status) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entry->state != State::kChanging; });
    if (entry->sync_error.ok()) entry->sync_error = status;
    return entry->sync_error;
  }

  bool CloseOne() {
    std::unique_lock lock(mutex_);
    if (idle_.empty() && used_ + closing_ > 0) {
      changed_.wait_for(lock, kLongestUse,
                        [&] { return !idle_.empty() || closed_; });
    }
    if (!idle_.empty()) CloseFirst(&lock);
    return std::exchange(closed_, false);
  }

 private:
  void CloseFirst(std::unique_lock<std::mutex>* lock) {
    CloseIdle(idle_.front(), lock);
  }

  // Releases the lock while it closes.
  void CloseIdle(Entry* entry, std::unique_lock<std::mutex>* lock) {
    entry->node.splice(entry->node.end(), idle_, entry->place);
    entry->state = State::kChanging;
    ++closing_;
    lock->unlock();
    try {
      entry->CloseFile();
    } catch (...) {
      entry->sync_error = out_of_memory_;
    }
    entry->file.reset();
    lock->lock();
    entry->state = State::kClosed;
    open_ -= entry->descriptors();
    --closing_;
    closed_ = true;
    changed_.notify_all();
  }

  const pid_t owner_ = ::getpid();
  const Status out_of_memory_;
  std::mutex opening_;  // Before mutex_.
  std::mutex mutex_;
  std::condition_variable changed_;
  // Open and not used, the one that was unused longest first.
  std::list<Entry*> idle_;
  int open_ = 0;  // Descriptors.
  int used_ = 0;  // Files.
  int closing_ = 0;
  bool closed_ = false;  // True when a file was closed since the last CloseOne.
};

namespace {

// Calls `call` with the open file.
template <typename Entry, typename Call>
auto Use(Entry* entry, const Call& call) -> decltype(call(*entry->file)) {
  SHARD_RETURN_IF_ERROR(entry->pool->Acquire(entry));
  const auto release = [](Entry* used) { used->pool->Release(used); };
  const std::unique_ptr<Entry, decltype(release)> used(entry, release);
  return call(*entry->file);
}

}  // namespace

bool ClosePooledFile() { return FilePool::Get().CloseOne(); }

StatusOr<PooledFile> PooledFile::Adopt(std::unique_ptr<Entry> entry) {
  entry->pool = &FilePool::Get();
  SHARD_RETURN_IF_ERROR(Use(entry.get(), [](File&) { return Status(); }));
  return PooledFile(std::move(entry));
}

StatusOr<PooledFile> PooledFile::Open(const Directory& in,
                                      const std::string& name, File::Mode mode,
                                      File::Cache cache) {
  auto entry = std::make_unique<Entry>();
  entry->in = &in;
  entry->env = in.env();
  entry->name = name;
  entry->path = in.PathOf(name);
  entry->mode = mode;
  entry->cache = cache;
  return Adopt(std::move(entry));
}

StatusOr<PooledFile> PooledFile::Open(FileEnv* env, const std::string& path,
                                      File::Mode mode, File::Cache cache) {
  auto entry = std::make_unique<Entry>();
  entry->env = env;
  entry->name = path;
  entry->path = path;
  entry->mode = mode;
  entry->cache = cache;
  return Adopt(std::move(entry));
}

PooledFile::PooledFile(std::unique_ptr<Entry> entry)
    : entry_(std::move(entry)) {}

PooledFile::PooledFile(PooledFile&& other) noexcept = default;

PooledFile& PooledFile::operator=(PooledFile&& other) noexcept {
  if (this != &other) {
    Drop();
    entry_ = std::move(other.entry_);
  }
  return *this;
}

PooledFile::~PooledFile() { Drop(); }

void PooledFile::Drop() noexcept {
  if (entry_ == nullptr) return;
  if (entry_->pool->IsOurs()) {
    entry_->pool->Close(entry_.get());
  } else {
    // A thread of the parent may have been using the entry.
    (void)entry_.release();
  }
}

const std::string& PooledFile::path() const { return entry_->path; }

Status PooledFile::ReadExactly(uint64_t offset, std::span<std::byte> to) const {
  return Use(entry_.get(),
             [&](const File& file) { return file.ReadExactly(offset, to); });
}

Status PooledFile::WriteExactly(uint64_t offset,
                                std::span<const std::byte> from) const {
  return Use(entry_.get(), [&](const File& file) {
    entry_->written = true;
    return file.WriteExactly(offset, from);
  });
}

Status PooledFile::Allocate(uint64_t bytes) const {
  return Use(entry_.get(), [&](const File& file) {
    entry_->written = true;
    return file.Allocate(bytes);
  });
}

StatusOr<uint64_t> PooledFile::Size() const {
  return Use(entry_.get(), [](const File& file) { return file.Size(); });
}

Status PooledFile::Sync() {
  FilePool& pool = *entry_->pool;
  SHARD_RETURN_IF_ERROR(pool.CheckOurs(entry_.get()));
  const Status before = pool.AddError(entry_.get(), Status());
  // The pool syncs a file before it closes it, so then there is nothing to
  // sync.
  if (!before.ok() || !entry_->written) return before;
  const Status status = Use(entry_.get(), [&](File& file) {
    entry_->written = false;
    return file.Sync();
  });
  return pool.AddError(entry_.get(), status);
}

Status PooledFile::Close() {
  FilePool& pool = *entry_->pool;
  SHARD_RETURN_IF_ERROR(pool.CheckOurs(entry_.get()));
  pool.Close(entry_.get());
  return pool.AddError(entry_.get(), Status());
}

}  // namespace shard
