#include "plugin/runtime/tensor_form.h"

#include <fmt/format.h>

#include <algorithm>

#include "plugin/runtime/dtype_name.h"

namespace dualpipe {
namespace {

template <typename Value>
bool agree(const std::optional<Value>& left, const std::optional<Value>& right) {
  return !left || !right || *left == *right;
}

bool agree(const TensorForm& left, const TensorForm& right) {
  if (!agree(left.dtype, right.dtype)) return false;
  if (!left.sizes || !right.sizes) return true;
  return std::equal(left.sizes->begin(), left.sizes->end(), right.sizes->begin(), right.sizes->end(),
                    [](const auto& a, const auto& b) { return agree(a, b); });
}

TensorForm form_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.scalar_type(), std::vector<std::optional<std::int64_t>>(tensor.sizes().begin(), tensor.sizes().end())};
}

std::string to_string(const TensorForm& form) {
  std::string text = form.dtype ? dtype_name(*form.dtype) : "?";
  if (!form.sizes) return form.dtype ? text + "[...]" : text;
  const char* separator = "[";
  for (const std::optional<std::int64_t>& size : *form.sizes) {
    text += separator + (size ? std::to_string(*size) : "?");
    separator = ", ";
  }
  return text + (form.sizes->empty() ? "[]" : "]");
}

}  // namespace

bool agree(const TensorForms& left, const TensorForms& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const TensorForm& a, const TensorForm& b) { return agree(a, b); });
}

TensorForms forms_of(const TensorList& tensors) {
  TensorForms forms;
  for (const at::Tensor& tensor : tensors) forms.push_back(form_of(tensor));
  return forms;
}

std::string to_string(const TensorForms& forms) {
  if (forms.empty()) return "nothing";
  std::string text;
  for (const TensorForm& form : forms) text += (text.empty() ? "" : ", ") + to_string(form);
  return text;
}

}  // namespace dualpipe
