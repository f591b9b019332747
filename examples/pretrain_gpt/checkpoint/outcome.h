// examples/pretrain_gpt/checkpoint/outcome.h
//
// What a rank's part of a common work came to, as a text that others read: its result, or the error that they share.
#pragma once

#include <functional>
#include <string>

namespace pretrain_gpt {

// "+" and what `work` returns, or "-" and the message of what it throws.
std::string outcome_of(const std::function<std::string()>& work);

// The result. Throws CheckpointError with the message where there is none.
std::string take_outcome(const std::string& outcome);

}  // namespace pretrain_gpt
