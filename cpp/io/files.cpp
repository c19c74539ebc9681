#include "io/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/sha256.h"
#include "io/mapped_file.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw LoadError(fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

std::string unfinished_prefix(const fs::path& target) {
  return fmt::format(".{}.unfinished-", target.filename().string());
}

/// <prefix><process>-<number>, and nothing else: what a user may have called so is not ours.
bool is_unfinished(const std::string& name, const std::string& prefix) {
  if (name.rfind(prefix, 0) != 0) return false;
  const auto rest = name.substr(prefix.size());
  const auto dash = rest.find('-');
  return dash > 0 && dash + 1 < rest.size() && rest.find_first_not_of("0123456789-") == std::string::npos &&
         rest.find('-', dash + 1) == std::string::npos;
}

/// A lock on the folder itself, which its owner's end gives back; -1 if somebody holds it.
int lock_folder(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return -1;
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  ::close(file);
  return -1;
}

void write_all(int file, const std::string& path, const char* at, size_t size) {
  while (size > 0) {
    const auto n = ::write(file, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot be written");
    at += n, size -= static_cast<size_t>(n);
  }
}

/// N where `path` leads to /proc/self/fd/N: what it links to there may be a file that others write to.
std::optional<int> descriptor_of(fs::path path) {
  std::error_code ec;
  for (int i = 0; i < 40; ++i) {  // links, as the system allows
    const auto folder = fs::canonical(fs::absolute(path).parent_path(), ec);
    const auto name = path.filename().string();
    if (!ec && !name.empty() && name.find_first_not_of("0123456789") == std::string::npos && name.size() < 9 &&
        folder == fs::canonical("/proc/self/fd", ec)) {
      return std::stoi(name);
    }
    const auto to = fs::read_symlink(path, ec);
    if (ec) return std::nullopt;
    path = folder / to;
  }
  return std::nullopt;
}

}  // namespace

NewFile::NewFile(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0) fail(path, "cannot be made");
}

NewFile::~NewFile() {
  if (file_ >= 0) ::close(file_);
}

void NewFile::write(const void* data, size_t size) {
  write_all(file_, path_, static_cast<const char*>(data), size);
  written_ += size;
}

void NewFile::finish() {
  if (::fsync(file_) != 0) fail(path_, "cannot be written");
  const int closed = ::close(file_);
  file_ = -1;
  if (closed != 0) fail(path_, "cannot be written");
}

void write_text_whole(const std::string& path, std::string_view text) {
  std::error_code ec;
  const bool there = fs::exists(path, ec);
  const auto descriptor = descriptor_of(path);
  if (descriptor ||
      (there && !fs::is_regular_file(path, ec))) {  // open already, a pipe or a device: written to as it is
    const int file = descriptor ? ::fcntl(*descriptor, F_DUPFD_CLOEXEC, 0) : ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) fail(path, "cannot be written");
    try {
      write_all(file, path, text.data(), text.size());
    } catch (...) {
      ::close(file);
      throw;
    }
    ::close(file);
    return;
  }
  const fs::path at = there ? fs::canonical(path, ec) : fs::path(path);  // a link is followed
  const auto beside = (at.parent_path() / fmt::format(".{}.{}", at.filename().string(), ::getpid())).string();
  try {
    NewFile file(beside);
    file.write(text);
    file.finish();
    if (::rename(beside.c_str(), at.c_str()) != 0) fail(path, "cannot be written");
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
}

void sync_folder(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) fail(folder, "cannot be opened");
  const bool synced = ::fsync(file) == 0 || errno == EINVAL;  // some file systems have no such thing
  const int error = errno;
  ::close(file);
  errno = error;
  if (!synced) fail(folder, "cannot be synced");
}

FileDigest digest_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  Sha256 sha;
  sha.update(file->data(), file->size());
  file->check_unchanged();
  return {file->size(), sha.hex()};
}

StagedFolder::StagedFolder(const std::string& target) : target_(target) {
  const fs::path at(target_);
  const auto parent = at.parent_path();
  const auto prefix = unfinished_prefix(at);
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(parent, ec)) {
    if (!is_unfinished(entry.path().filename().string(), prefix) || entry.is_symlink(ec) || !entry.is_directory(ec)) {
      continue;
    }
    const int lock = lock_folder(entry.path().string());
    if (lock < 0) throw LoadError(fmt::format("{}: another process writes it just now; wait for it", target_));
    fs::remove_all(entry.path(), ec);
    ::close(lock);
    if (ec) {
      throw LoadError(fmt::format("{}: left by an interrupted export, and cannot be removed: {}", entry.path().string(),
                                  ec.message()));
    }
    ++removed_;
  }
  if (ec) throw LoadError(fmt::format("{}: cannot be read: {}", parent.string(), ec.message()));
  for (int i = 0; path_.empty(); ++i) {
    auto wanted = (parent / fmt::format("{}{}-{}", prefix, ::getpid(), i)).string();
    if (::mkdir(wanted.c_str(), 0777) == 0) {
      path_ = std::move(wanted);
    } else if (errno != EEXIST) {
      fail(wanted, "cannot be made");
    }
  }
  lock_ = lock_folder(path_);
  if (lock_ < 0) {
    path_.clear();  // somebody else has taken it
    throw LoadError(fmt::format("{}: another process writes it just now; wait for it", target_));
  }
}

void StagedFolder::remove() {
  std::error_code ec;
  if (!path_.empty()) fs::remove_all(path_, ec);
  path_.clear();
  if (lock_ >= 0) ::close(lock_);
  lock_ = -1;
}

void StagedFolder::become_target() {
  sync_folder(path_);
  if (::rename(path_.c_str(), target_.c_str()) != 0) fail(target_, "cannot be made");
  path_.clear();
  sync_folder(fs::path(target_).parent_path().string());
}

}  // namespace lockstep
