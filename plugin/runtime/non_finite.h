// plugin/runtime/non_finite.h
//
// Where NaN or infinity came from in a step: what entered and left stages is looked at as it passes, and of all that is
// not finite the first is named. First is by the flow of values, not by time: the lowest micro-batch, in it forward
// before backward, and along the flow.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

// In the order in which values cross a stage.
enum class Crossing : std::uint8_t { kInput, kOutput, kLoss, kOutputGradient, kInputGradient };

struct NonFinite {
  int rank = 0;  // As in failure records.
  int stage = 0;
  std::optional<int> micro_batch;  // Nothing where it is the sum over all of them.
  std::string tensor;              // "input 0", "output 1", "the loss", "the gradient of h.0.mlp.w1", ...

  std::string to_string() const;  // "rank 2, stage 2, micro-batch 3: output 0"
  friend bool operator==(const NonFinite&, const NonFinite&) = default;
};

// Orders what several ranks saw first. Stages of a backward are met from the last one down.
struct NonFiniteSighting {
  NonFinite what;
  Crossing crossing = Crossing::kInput;

  bool is_before(const NonFiniteSighting& other) const;
};

class FiniteWatch {
 public:
  void begin_step() { seen_.clear(); }
  // Floating tensors; others and undefined ones are passed by. Starts no synchronization with a device.
  void look(int stage, int micro_batch, Crossing crossing, const TensorList& tensors);
  // The first of the step; `rank` is put into it. Waits for the device.
  std::optional<NonFiniteSighting> first(int rank) const;

 private:
  struct Seen {
    int stage;
    int micro_batch;
    Crossing crossing;
    std::size_t index;
    at::Tensor least, greatest;  // Scalars; NaN where a NaN is in the tensor.
  };
  std::vector<Seen> seen_;
};

// Whether it has elements of a floating or complex dtype.
bool can_be_bad(const at::Tensor& tensor);

// The smallest and the largest value as scalars, NaN where one is in the tensor; of a complex one of its parts. Starts
// no synchronization with a device; are_finite() waits for it.
std::tuple<at::Tensor, at::Tensor> extremes(const at::Tensor& tensor);
bool are_finite(const at::Tensor& least, const at::Tensor& greatest);

// Smallest and largest value are finite: of no elements, or of another than a floating dtype, true.
bool is_finite(const at::Tensor& tensor);

// For an exchange between ranks.
std::string encode(const std::optional<NonFiniteSighting>& sighting);
std::optional<NonFiniteSighting> decode_sighting(const std::string& text);

}  // namespace dualpipe
