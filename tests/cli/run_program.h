// tests/cli/run_program.h
//
// Runs the `dualpipe` program as a user does.
#pragma once

#include <string>

namespace dualpipe {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Through the shell, so arguments are quoted as there. `before` comes ahead of the program: variables, for one.
Outcome run_dualpipe(const std::string& arguments, const std::string& before = "");

// A folder that is removed at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

std::string read_text(const std::string& path);

}  // namespace dualpipe
