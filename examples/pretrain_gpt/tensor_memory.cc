#include "examples/pretrain_gpt/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <new>
#include <utility>

namespace pretrain_gpt {
namespace {

// Stands before what is allocated, since a deleter gets that pointer alone. As long as c10's alignment.
struct alignas(64) Header {
  TensorMemory* memory;
  std::int64_t bytes;
};

void free_block(void* data) {
  if (data != nullptr) {
    Header* const header = static_cast<Header*>(data) - 1;
    header->memory->remove(header->bytes);
    c10::free_cpu(header);
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(std::shared_ptr<TensorMemory> memory) : memory_(std::move(memory)) {}

  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      const auto size = static_cast<std::int64_t>(bytes);
      data = new (c10::alloc_cpu(sizeof(Header) + bytes)) Header{memory_.get(), size} + 1;
      memory_->add(size);
    }
    return {data, data, &free_block, at::Device(at::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  std::shared_ptr<TensorMemory> memory_;
};

}  // namespace

void TensorMemory::add(std::int64_t bytes) {
  const std::int64_t now = in_use_ += bytes;
  std::int64_t peak = peak_;
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
}

std::shared_ptr<TensorMemory> count_tensor_memory() {
  auto memory = std::make_shared<TensorMemory>();
  // LibTorch keeps the pointer to the end of the process, and blocks refer to what it counts in.
  c10::SetCPUAllocator(new CountingAllocator(memory));
  return memory;
}

}  // namespace pretrain_gpt
