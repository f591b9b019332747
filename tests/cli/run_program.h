// tests/cli/run_program.h
//
// Runs the `dualpipe` program as a user does.
#pragma once

#include <string>

#include "tests/support/temporary_folder.h"

namespace dualpipe {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Through the shell, so arguments are quoted as there. `before` comes ahead of the program: variables, for one.
Outcome run_dualpipe(const std::string& arguments, const std::string& before = "");

}  // namespace dualpipe
