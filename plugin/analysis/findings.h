// plugin/analysis/findings.h
//
// Collects violations up to a limit.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plugin/analysis/validate.h"

namespace dualpipe::analysis {

class Findings {
 public:
  explicit Findings(std::size_t limit) : limit_(limit) {}

  void add(Violation::Rule rule, int rank, int column, std::string message) {
    if (!full()) {
      violations_.push_back({rule, rank, column, std::move(message)});
    }
  }
  bool full() const { return violations_.size() >= limit_; }
  bool empty() const { return violations_.empty(); }
  std::vector<Violation> take() { return std::move(violations_); }

 private:
  std::size_t limit_;
  std::vector<Violation> violations_;
};

}  // namespace dualpipe::analysis
