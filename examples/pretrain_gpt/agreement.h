// examples/pretrain_gpt/agreement.h
//
// All ranks of a run must have been told the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace pretrain_gpt {

using KeyValues = std::vector<std::pair<std::string, std::string>>;

// One text that from_text() takes apart again; keys and values may hold anything.
std::string to_text(const KeyValues& pairs);
KeyValues from_text(const std::string& text);

// Throws UserError, the same on every rank, naming the first key that differs with both values and their ranks.
void check_agreement(const std::vector<KeyValues>& by_rank);

}  // namespace pretrain_gpt
