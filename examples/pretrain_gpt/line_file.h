// examples/pretrain_gpt/line_file.h
//
// A text file that grows line by line, each on its way to the disk when append() returns. A line that cannot be written
// is never lost in silence: UserError says which file and why.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace pretrain_gpt {

class LineFile {
 public:
  // Starts the file anew, with these lines.
  explicit LineFile(const std::filesystem::path& path, const std::vector<std::string>& lines = {});

  void append(const std::string& line);

  const std::filesystem::path& path() const { return path_; }

 private:
  void check_written() const;

  std::filesystem::path path_;
  std::ofstream stream_;
};

}  // namespace pretrain_gpt
