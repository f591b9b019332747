#include "examples/pretrain_gpt/checkpoint/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"

namespace pretrain_gpt {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& cause) {
  throw CheckpointError(path.string(), "must be written, got: " + cause +
                                           "; free some space, or choose another folder, for example save: "
                                           "output/checkpoints");
}

[[noreturn]] void refuse(const std::filesystem::path& path) { refuse(path, std::generic_category().message(errno)); }

}  // namespace

DurableFile::DurableFile(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666)) {
  check(descriptor_ >= 0);
}

DurableFile::~DurableFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void DurableFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    check(written >= 0);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

// A disk may report only here that there was no room.
void DurableFile::finish() {
  check(::fsync(descriptor_) == 0);
  check(::close(std::exchange(descriptor_, -1)) == 0);
}

void DurableFile::check(bool holds) const {
  if (!holds) {
    refuse(path_);
  }
}

void write_durably(const std::filesystem::path& path, const std::string& text) {
  DurableFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    refuse(folder);
  }
  const int result = ::fsync(descriptor), cause = errno;
  ::close(descriptor);
  if (result != 0 && cause != EINVAL) {  // EINVAL: a file system that does not do this for folders.
    refuse(folder, std::generic_category().message(cause));
  }
}

std::vector<std::filesystem::path> make_folders(const std::filesystem::path& folder, std::error_code& error) {
  namespace fs = std::filesystem;
  std::vector<fs::path> changed;
  fs::path missing = fs::absolute(folder).lexically_normal();
  if (!missing.has_filename()) {
    missing = missing.parent_path();  // "a/b/"
  }
  for (std::error_code none; missing.has_relative_path() && !fs::exists(missing, none);
       missing = missing.parent_path()) {
    changed.insert(changed.begin(), missing.parent_path());
  }
  fs::create_directories(folder, error);
  return error ? std::vector<fs::path>() : changed;
}

void make_folders_durably(const std::filesystem::path& folder, std::error_code& error) {
  for (const std::filesystem::path& changed : make_folders(folder, error)) {
    sync_folder(changed);
  }
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::filesystem::exists(std::filesystem::symlink_status(to))) {
    refuse(to, "something of this name is there");
  }
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) {
    refuse(to, error.message());
  }
  sync_folder(to.parent_path());
}

}  // namespace pretrain_gpt
