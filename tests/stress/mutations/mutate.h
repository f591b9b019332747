// tests/stress/mutations/mutate.h
//
// Rows changed at random, by a seed: cells swapped, dropped, repeated, retargeted, moved to another rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "plugin/schedule/schedule.h"

namespace dualpipe::stress {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::size_t below(std::size_t bound);  // From 0; bound is at least 1. The same on every machine.

  // One change; nothing where a row is empty.
  void change(std::vector<Row>& rows, int stages, int num_microbatches);

 private:
  void swap_cells(Row& row);
  void retarget(Action& action, int stages, int num_microbatches);
  void move_to_other(std::vector<Row>& rows, std::size_t from);

  std::mt19937_64 random_;
};

}  // namespace dualpipe::stress
