#include "examples/pretrain_gpt/data/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw UserError(path.string(),
                  fmt::format("must be a readable file, got: {}; make one with `pretrain_gpt prepare-data`", reason));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    refuse(path, std::strerror(errno));
  }
  std::error_code error;
  const std::size_t size = std::filesystem::file_size(path, error);
  void* memory = nullptr;
  if (!error && size > 0) {
    memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  const int reason = error ? error.value() : errno;
  ::close(descriptor);
  if (error || memory == MAP_FAILED) {
    refuse(path, std::strerror(reason));
  }
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace pretrain_gpt
