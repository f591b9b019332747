// tests/runtime/counted.h
//
// Tensors that a graph saves, counted where they are freed.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <memory>

namespace dualpipe {

// A copy of the values; `alive` is how many of a rank's there are.
inline at::Tensor counted(const at::Tensor& values, const std::shared_ptr<std::atomic<int>>& alive) {
  auto* copy = new at::Tensor(values.detach().contiguous().clone());
  ++*alive;
  return at::from_blob(
      copy->data_ptr(), copy->sizes(),
      [copy, alive](void*) {
        --*alive;
        delete copy;
      },
      copy->options());
}

}  // namespace dualpipe
