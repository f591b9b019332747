// The entry of libFuzzer: the target that DUALPIPE_FUZZ_TARGET names, which CMake sets per program.
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dualpipe::fuzz::DUALPIPE_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
