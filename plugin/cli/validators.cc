#include "plugin/cli/validators.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>

namespace dualpipe::cli {
namespace {

namespace fs = std::filesystem;

bool is_number_of_at_least_0(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return !text.empty() && end == text.c_str() + text.size() && std::isfinite(value) && value >= 0;
}

// Pipes are files too.
bool is_file(const std::string& path) {
  std::error_code none;
  return fs::exists(path, none) && !fs::is_directory(path, none);
}

CLI::Validator validator(const std::string& wanted, const std::string& example, const std::string& shown,
                         std::function<bool(const std::string&)> holds) {
  return CLI::Validator(
      [=](std::string& given) {
        return holds(given) ? std::string() : fmt::format("must be {}, got {}; for example {}", wanted, given, example);
      },
      shown);
}

}  // namespace

CLI::Validator number_of_at_least_0(const std::string& example) {
  return validator("a number of at least 0", example, "NUMBER", is_number_of_at_least_0);
}

CLI::Validator file_that_is_there(const std::string& example) {
  return validator("a file that is there", example, "FILE", is_file);
}

}  // namespace dualpipe::cli
