// examples/pretrain_gpt/failures/last_words.h
//
// How a process says what it ends by, and ends: in time, even where nobody reads its output or a disk does not answer.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "examples/pretrain_gpt/failures/exit_code.h"

namespace pretrain_gpt {

// Prints "[rank r] error: message" ("error: message" of a process that does not know its rank), hands it to torchrun
// where that asks for it, calls `write_log`, and ends the process with the code, without running destructors. All of
// that within a second or so: what is not done by then is left. From any thread, whatever the others hold.
[[noreturn]] void exit_with_error(std::optional<int> rank, const std::string& message, ExitCode code,
                                  const std::function<void()>& write_log = {});

// Ends the process with kOk, without running destructors, once what was printed is out or nobody has read for a while.
[[noreturn]] void exit_done();

}  // namespace pretrain_gpt
