// examples/pretrain_gpt/error.h
//
// The user's mistakes. Every message says where, what was wanted, what was given and a value that works:
//   [gpt.yaml:7] num_layers must be an integer from 1 to 65536, got '8x'; for example 8
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pretrain_gpt {

class UserError : public std::invalid_argument {
 public:
  // what() is "[origin] rule".
  UserError(std::string_view origin, std::string_view rule);
};

// The candidate with the least edit distance to `name`; "" if none is nearer than half of the length.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// "; did you mean 'x'?" or "" if there is no near name.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace pretrain_gpt
