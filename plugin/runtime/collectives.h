// plugin/runtime/collectives.h
//
// What all ranks of a group do together: called by all of them in the same order. Blocking; not for the hot path.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace dualpipe {

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual void all_reduce_sum(at::Tensor& tensor) = 0;                        // In place; equal bits everywhere.
  virtual std::vector<std::string> all_gather(const std::string& bytes) = 0;  // By rank.

  // Wakes every wait of this rank, now and later, with an error. Thread-safe. Does not unwind what is under way.
  virtual void abort(const std::string& why) = 0;

  // The device of tensors that do not have one of their own.
  virtual at::Device device() const = 0;
};

}  // namespace dualpipe
