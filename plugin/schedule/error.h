// plugin/schedule/error.h
//
// The caller's mistakes. Every message says origin, what was wanted, what was given and a value that would work:
//   [dualpipev] num_microbatches must be at least 2 x ranks = 8, got 6
// A broken invariant of our own is a check(), which stays on in release builds and throws std::logic_error.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dualpipe {

class ScheduleError : public std::invalid_argument {
 public:
  // what() is "[origin] rule".
  ScheduleError(std::string_view origin, std::string_view rule);
};

// Throws std::logic_error("broken invariant: <what>") if `holds` is false.
void check(bool holds, std::string_view what);

// The candidate with the least edit distance to `name`, or "" if none is near (distance <= 1/2 of the length).
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace dualpipe
