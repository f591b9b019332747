// examples/pretrain_gpt/agreement.h
//
// All ranks of a run must have been told the same.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pretrain_gpt {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

// One text that from_text() takes apart again; keys and values may hold anything.
std::string to_text(const KeyValues& pairs);
KeyValues from_text(const std::string& text);

// Where the ranks were told the same and see something else: what `load` holds, and what to do about it.
inline constexpr const char* kCheckpointSeen = "the checkpoint in load";
inline constexpr const char* kShareLoad = "load must be a folder that all ranks share and nobody else saves into";

// Of the values that ranks hold the first two, "7 on rank 0 and 9 on ranks 1, 2"; nothing where all hold the same.
std::optional<std::string> difference(const std::vector<std::string>& by_rank);

// Throws UserError, the same on every rank, naming the first key that differs with both values and their ranks.
void check_agreement(const std::vector<KeyValues>& by_rank);

}  // namespace pretrain_gpt
