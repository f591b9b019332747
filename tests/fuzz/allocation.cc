#include "tests/fuzz/allocation.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> held = 0;
std::atomic<std::size_t> peak = 0;

void* take(std::size_t bytes, const std::nothrow_t&) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) return nullptr;
  const std::size_t now = held += malloc_usable_size(memory);
  for (std::size_t most = peak; now > most && !peak.compare_exchange_weak(most, now);) {
  }
  return memory;
}

void* take(std::size_t bytes) {
  void* memory = take(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void give(void* memory) {
  if (memory != nullptr) held -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return take(bytes); }
void* operator new[](std::size_t bytes) { return take(bytes); }
// Sanitizers have ones of their own, which do not go by way of those above.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return take(bytes, std::nothrow); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return take(bytes, std::nothrow); }
void operator delete(void* memory) noexcept { give(memory); }
void operator delete[](void* memory) noexcept { give(memory); }
void operator delete(void* memory, std::size_t) noexcept { give(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { give(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { give(memory); }

namespace dualpipe::fuzz {

PeakAllocation::PeakAllocation() : before_(held) { peak = before_; }

std::size_t PeakAllocation::bytes() const { return peak - before_; }

}  // namespace dualpipe::fuzz
