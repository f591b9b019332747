// examples/pretrain_gpt/tensor_memory.h
//
// Bytes that this process holds in tensors on the CPU, counted as they are allocated and freed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace pretrain_gpt {

// Of all threads. What was allocated before counting began does not count.
class TensorMemory {
 public:
  std::int64_t in_use() const { return in_use_; }
  std::int64_t peak() const { return peak_; }  // Since begin_peak().
  void begin_peak() { peak_ = in_use_.load(); }

  void add(std::int64_t bytes);
  void remove(std::int64_t bytes) { in_use_ -= bytes; }

 private:
  std::atomic<std::int64_t> in_use_{0}, peak_{0};
};

// Counts for the rest of the process, by an allocator in the place of LibTorch's; once, by a program.
std::shared_ptr<TensorMemory> count_tensor_memory();

}  // namespace pretrain_gpt
