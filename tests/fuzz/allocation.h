// tests/fuzz/allocation.h
//
// How much memory a piece of code holds at most. Linking allocation.cc replaces operator new and delete of the program.
#pragma once

#include <cstddef>

namespace dualpipe::fuzz {

class PeakAllocation {
 public:
  PeakAllocation();
  // Bytes above what was held when this was made, at the worst moment since. Of this thread's program: one at a time.
  std::size_t bytes() const;

 private:
  std::size_t before_;
};

}  // namespace dualpipe::fuzz
