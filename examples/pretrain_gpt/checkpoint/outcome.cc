#include "examples/pretrain_gpt/checkpoint/outcome.h"

#include <exception>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"

namespace pretrain_gpt {
namespace {

// "[origin] rule", as UserError made it.
CheckpointError error_of(const std::string& message) {
  const std::size_t end = message.find("] ");
  return message.starts_with('[') && end != std::string::npos
             ? CheckpointError(message.substr(1, end - 1), message.substr(end + 2))
             : CheckpointError("checkpoint", message);
}

}  // namespace

std::string outcome_of(const std::function<std::string()>& work) {
  try {
    return "+" + work();
  } catch (const std::exception& error) {
    return std::string("-") + error.what();
  }
}

std::string take_outcome(const std::string& outcome) {
  if (!outcome.starts_with('+')) {
    throw error_of(outcome.substr(1));
  }
  return outcome.substr(1);
}

}  // namespace pretrain_gpt
