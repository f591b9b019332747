// examples/pretrain_gpt/failures/last_words.h
//
// How a process that has failed says so and ends.
#pragma once

#include <string>

#include "examples/pretrain_gpt/failures/exit_code.h"

namespace pretrain_gpt {

// Prints "[rank r] error: message", hands it to torchrun where that asks for it, and ends the process with the code,
// without running destructors.
[[noreturn]] void exit_with_error(int rank, const std::string& message, ExitCode code);

}  // namespace pretrain_gpt
