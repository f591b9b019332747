#include "examples/pretrain_gpt/failures/last_words.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "examples/pretrain_gpt/environment.h"

namespace pretrain_gpt {
namespace {

// The file that torchrun reads the cause from.
void write_error_file(const std::string& message, ExitCode code) {
  if (const auto file = process_variable("TORCHELASTIC_ERROR_FILE")) {
    const std::string now = std::to_string(std::time(nullptr));
    const nlohmann::json extra = {{"py_callstack", message}, {"timestamp", now}};
    const nlohmann::json content = {
        {"message", {{"message", message}, {"errorCode", static_cast<int>(code)}, {"extraInfo", extra}}}};
    std::ofstream(*file) << content.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

}  // namespace

void exit_with_error(int rank, const std::string& message, ExitCode code) {
  std::cout.flush();
  std::fputs(fmt::format("[rank {}] error: {}\n", rank, message).c_str(), stderr);
  std::fflush(nullptr);
  write_error_file(message, code);
  ::_exit(static_cast<int>(code));
}

}  // namespace pretrain_gpt
