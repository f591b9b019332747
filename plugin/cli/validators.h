// plugin/cli/validators.h
//
// Checks of options, whose messages say what is wanted, what was given and a value that works. CLI11's own print the
// largest double with all of its 309 digits.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace dualpipe::cli {

CLI::Validator number_of_at_least_0(const std::string& example);  // Finite.
CLI::Validator file_that_is_there(const std::string& example);

}  // namespace dualpipe::cli
