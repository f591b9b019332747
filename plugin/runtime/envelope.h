// plugin/runtime/envelope.h
//
// What sender and receiver agree on about a stage boundary: count, dtypes, shapes, which tensors are undefined, which
// need a gradient. Encoded as int64 words for the message that goes ahead of the payload.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

struct TensorSpec {
  bool defined = false;
  bool requires_grad = false;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes;

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

using BoundarySpec = std::vector<TensorSpec>;

BoundarySpec spec_of(const TensorList& tensors);
std::string to_string(const TensorSpec& spec);  // "float32 [4, 128, 64] with gradient", "undefined"
// Whether there is no difference between the agreement and the tensors' spec.
bool fits(const BoundarySpec& agreed, const TensorList& tensors);
// "output 1: agreed float32 [4, 128], given float32 [4, 129]", or nothing where they are equal.
std::optional<std::string> difference(const BoundarySpec& agreed, const BoundarySpec& given);

// Uninitialised tensors for the defined entries, in order; `gradients` takes those that need a gradient alone.
TensorList allocate(const BoundarySpec& spec, at::Device device, bool gradients = false);

// Words: how many follow, the number of tensors, then per tensor {defined, requires_grad, dtype, dimensions, sizes...}.
std::vector<std::int64_t> encode(const BoundarySpec& spec);
// Throws std::runtime_error where the words are not an encoding.
BoundarySpec decode(const std::vector<std::int64_t>& words);

// The first message of an envelope has this many words; an encoding that is longer goes on in a second one.
inline constexpr std::int64_t kEnvelopeWords = 128;

}  // namespace dualpipe
