// examples/pretrain_gpt/data/split.h
//
// Megatron's `split`: relative sizes of the parts of a data set, "99,1" for training and validation.
#pragma once

#include <cstdint>
#include <string>

namespace pretrain_gpt {

struct Split {
  double training = 1;  // Fractions of the whole.
  double validation = 0;

  // How many of `samples` samples, counted from the start, are for training; the rest of both parts follows.
  std::int64_t training_samples(std::int64_t samples) const;
  std::int64_t validation_samples(std::int64_t samples) const;
};

// One to three numbers of at least 0, the first above 0; a third (test) part is left unused. Throws UserError.
Split parse_split(const std::string& text, const std::string& origin);

}  // namespace pretrain_gpt
