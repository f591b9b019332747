// plugin/runtime/tensor_form.h
//
// What is known of a tensor before there is one: what phases say that they take and give.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/tensor_list.h"

namespace dualpipe {

// A form of which nothing is known fits every tensor. Undefined tensors fit every form.
struct TensorForm {
  std::optional<at::ScalarType> dtype = {};
  std::optional<std::vector<std::optional<std::int64_t>>> sizes = {};  // Nothing: nor how many dimensions.
};

using TensorForms = std::vector<TensorForm>;

// Whether the same tensors can be of both forms: as many, and what both know is equal.
bool agree(const TensorForms& left, const TensorForms& right);

TensorForms forms_of(const TensorList& tensors);

// "float32[4, ?, 64], int64[...], ?[8], ?"; "nothing" for an empty list.
std::string to_string(const TensorForms& forms);

}  // namespace dualpipe
