#include "examples/pretrain_gpt/line_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {

LineFile::LineFile(const std::filesystem::path& path, const std::vector<std::string>& lines)
    : path_(path), stream_(path) {
  for (const std::string& line : lines) {
    stream_ << line << '\n';
  }
  stream_.flush();
  check_written();
}

void LineFile::append(const std::string& line) {
  errno = 0;
  stream_ << line << std::endl;
  check_written();
}

void LineFile::check_written() const {
  if (!stream_) {
    throw UserError(path_.string(),
                    fmt::format("must be a file that can be written, got: {}; free some space, or choose another "
                                "folder, for example output_dir: output",
                                std::generic_category().message(errno)));
  }
}

}  // namespace pretrain_gpt
