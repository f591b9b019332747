// examples/pretrain_gpt/failures/failure.h
//
// What ended a run, as its ranks tell each other: the first that fails writes one into the shared store, and all leave
// with that one's message.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/failures/exit_code.h"
#include "examples/pretrain_gpt/failures/process_identity.h"

namespace pretrain_gpt {

struct Failure {
  std::optional<int> rank;  // That failed first; nothing where no rank did (the store of a launcher is gone).
  ExitCode code = ExitCode::kException;
  std::string place;    // "step 12, 2B3 (stage 2, micro-batch 3)"; may be empty.
  std::string message;  // Why.
  // Processes that do not answer and cannot leave by themselves.
  std::vector<ProcessIdentity> stopped = {};

  friend bool operator==(const Failure&, const Failure&) = default;
};

std::string to_text(const Failure& failure);
Failure failure_from_text(const std::string& text);

// "rank 2 failed in step 12, 2B3 (stage 2, micro-batch 3): no such expert". On the rank itself, at a place that has no
// name, the message alone. `own`: what this rank would have said itself, added where that says more.
std::string describe(const Failure& failure, int here, const std::string& own = "");

// The code that rank `here` leaves with.
ExitCode exit_code_for(const Failure& failure, int here);

// "2B3 (stage 2, micro-batch 3)"; a text that is no action of the schedule stays as it is.
std::string explain_action(const std::string& action);

}  // namespace pretrain_gpt
