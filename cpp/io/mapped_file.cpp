#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "core/error.h"

namespace lockstep {

namespace {

/// What the SIGBUS handler may look at: a fixed table of atomics, no locks.
struct GuardedRange {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<bool> lost{false};
};
std::array<GuardedRange, 4096> guarded;
struct sigaction previous_action;
uintptr_t page_size;

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (auto& range : guarded) {
    if (!range.taken.load() || address < range.begin.load() || address >= range.end.load()) continue;
    range.lost.store(true);
    auto* page = reinterpret_cast<void*>(address & ~(page_size - 1));
    if (::mmap(page, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) return;
    break;
  }
  // Not ours: what was there before decides.
  if (previous_action.sa_flags & SA_SIGINFO) {
    if (previous_action.sa_sigaction) return previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    return previous_action.sa_handler(signal);
  }
  ::signal(SIGBUS, SIG_DFL);
  ::raise(SIGBUS);
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, &previous_action);
  });
}

/// -1 if the table is full: then the mapping is unguarded, and only check_unchanged() sees a change.
int guard(const char* data, size_t size) {
  install_handler();
  for (size_t i = 0; i < guarded.size(); ++i) {
    bool free = false;
    if (!guarded[i].taken.compare_exchange_strong(free, true)) continue;
    guarded[i].lost.store(false);
    guarded[i].begin.store(reinterpret_cast<uintptr_t>(data));
    guarded[i].end.store(reinterpret_cast<uintptr_t>(data) + size);
    return static_cast<int>(i);
  }
  return -1;
}

int64_t modified_ns(const struct stat& s) { return int64_t(s.st_mtim.tv_sec) * 1'000'000'000 + s.st_mtim.tv_nsec; }

}  // namespace

std::shared_ptr<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: a pipe must be refused, not waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw LoadError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  struct stat s;
  std::shared_ptr<MappedFile> file(new MappedFile);
  const bool regular = ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
  file->path_ = path;
  if (regular) {
    file->size_ = static_cast<size_t>(s.st_size);
    file->modified_ns_ = modified_ns(s);
    if (file->size_ > 0) {
      void* at = ::mmap(nullptr, file->size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
      file->data_ = at == MAP_FAILED ? nullptr : static_cast<const char*>(at);
    }
  }
  const int error = errno;
  ::close(fd);
  if (!regular) throw LoadError(fmt::format("{}: expected a regular file", path));
  if (file->size_ > 0 && !file->data_)
    throw LoadError(fmt::format("{}: cannot be mapped: {}", path, std::strerror(error)));
  if (file->data_) file->guard_ = guard(file->data_, file->size_);
  return file;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<char*>(data_), size_);
  if (guard_ >= 0) {
    guarded[guard_].begin.store(0);
    guarded[guard_].end.store(0);
    guarded[guard_].taken.store(false);
  }
}

void MappedFile::check_unchanged() const {
  struct stat s;
  const bool same =
      ::stat(path_.c_str(), &s) == 0 && static_cast<size_t>(s.st_size) == size_ && modified_ns(s) == modified_ns_;
  if (!same || (guard_ >= 0 && guarded[guard_].lost.load())) {
    throw LoadError(fmt::format("{}: changed while it was in use; run again on a file that stays as it is", path_));
  }
}

}  // namespace lockstep
