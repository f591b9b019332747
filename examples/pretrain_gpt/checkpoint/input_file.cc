#include "examples/pretrain_gpt/checkpoint/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/sha256.h"

namespace pretrain_gpt {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

template <typename Error>
[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error(path.string(), "must be a readable file, got: " + what);
}

[[noreturn]] void refuse_damaged(const std::filesystem::path& path, const std::string& what) {
  refuse<DamagedCheckpoint>(path, what);
}

[[noreturn]] void refuse_unread(const std::filesystem::path& path, int error) {
  refuse<CheckpointError>(path, std::generic_category().message(error));
}

[[noreturn]] void refuse_unopened(const std::filesystem::path& path, int error) {
  if (error == ENOENT || error == ELOOP) {
    refuse_damaged(path, error == ELOOP ? "a symbolic link" : std::generic_category().message(error));
  }
  refuse_unread(path, error);
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) {
    refuse_unopened(path, errno);
  }
  struct stat status {};
  const int error = ::fstat(descriptor_, &status) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    if (error != 0) {
      refuse_unread(path, error);
    }
    refuse_damaged(path, "no plain file");
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::uint64_t place, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor_, into.data(), into.size(), static_cast<off_t>(place));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      refuse_unread(path_, errno);
    }
    if (got == 0) {
      refuse_damaged(path_, fmt::format("its end at byte {}", place));
    }
    place += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t most_bytes) {
  const InputFile file(path);
  if (file.size() > most_bytes) {
    refuse_damaged(path, fmt::format("{} bytes, more than {}", file.size(), most_bytes));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string sha256_of_file(const InputFile& file) {
  Sha256 hash;
  std::vector<std::byte> piece(std::min<std::uint64_t>(kPieceBytes, file.size()));
  for (std::uint64_t place = 0; place < file.size();) {
    const std::span part(piece.data(), std::min<std::uint64_t>(piece.size(), file.size() - place));
    file.read(place, part);
    hash.add(part);
    place += part.size();
  }
  return hash.finish();
}

}  // namespace pretrain_gpt
