#include "examples/pretrain_gpt/failures/exit_code.h"

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"

namespace pretrain_gpt {

const char* name_of(ExitCode code) {
  switch (code) {
    case ExitCode::kOk:
      return "ok";
    case ExitCode::kConfiguration:
      return "configuration";
    case ExitCode::kStart:
      return "start";
    case ExitCode::kPeerLost:
      return "peer lost";
    case ExitCode::kException:
      return "exception";
    case ExitCode::kTimeout:
      return "timeout";
    case ExitCode::kNotFinite:
      return "not finite";
    case ExitCode::kCheckpoint:
      return "checkpoint";
    case ExitCode::kPreempted:
      return "pre-empted";
  }
  return "exception";
}

ExitCode exit_code_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const RunError*>(&error)) {
    return known->code();
  }
  if (dynamic_cast<const CheckpointError*>(&error) != nullptr) {
    return ExitCode::kCheckpoint;
  }
  return dynamic_cast<const UserError*>(&error) != nullptr ? ExitCode::kConfiguration : ExitCode::kException;
}

}  // namespace pretrain_gpt
