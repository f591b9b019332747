#include "plugin/runtime/envelope.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "plugin/runtime/dtype_name.h"

namespace dualpipe {
namespace {

std::int64_t next_word(const std::vector<std::int64_t>& words, std::size_t& position) {
  if (position >= words.size()) throw std::runtime_error("an envelope ends too early");
  return words[position++];
}

}  // namespace

BoundarySpec spec_of(const TensorList& tensors) {
  BoundarySpec spec;
  spec.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      spec.push_back({true, tensor.requires_grad(), tensor.scalar_type(), tensor.sizes().vec()});
    } else {
      spec.emplace_back();
    }
  }
  return spec;
}

std::string to_string(const TensorSpec& spec) {
  if (!spec.defined) return "undefined";
  return fmt::format("{} [{}]{}", dtype_name(spec.dtype), fmt::join(spec.sizes, ", "),
                     spec.requires_grad ? " with gradient" : "");
}

bool fits(const BoundarySpec& agreed, const TensorList& tensors) {
  return std::equal(agreed.begin(), agreed.end(), tensors.begin(), tensors.end(),
                    [](const TensorSpec& spec, const at::Tensor& tensor) {
                      if (!tensor.defined() || !spec.defined) return tensor.defined() == spec.defined;
                      return spec.requires_grad == tensor.requires_grad() && spec.dtype == tensor.scalar_type() &&
                             tensor.sizes() == spec.sizes;
                    });
}

std::optional<std::string> difference(const BoundarySpec& agreed, const BoundarySpec& given) {
  if (agreed.size() != given.size()) {
    return fmt::format("agreed {} tensors, given {}", agreed.size(), given.size());
  }
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    if (agreed[i] == given[i]) continue;
    return fmt::format("output {}: agreed {}, given {}", i, to_string(agreed[i]), to_string(given[i]));
  }
  return std::nullopt;
}

TensorList allocate(const BoundarySpec& spec, at::Device device, bool gradients) {
  TensorList tensors;
  for (const TensorSpec& entry : spec) {
    if (!entry.defined || (gradients && !entry.requires_grad)) continue;
    tensors.push_back(at::empty(entry.sizes, at::TensorOptions().dtype(entry.dtype).device(device)));
  }
  return tensors;
}

std::vector<std::int64_t> encode(const BoundarySpec& spec) {
  std::vector<std::int64_t> words{0, static_cast<std::int64_t>(spec.size())};
  for (const TensorSpec& entry : spec) {
    words.push_back(entry.defined);
    words.push_back(entry.requires_grad);
    words.push_back(static_cast<std::int64_t>(entry.dtype));
    words.push_back(static_cast<std::int64_t>(entry.sizes.size()));
    words.insert(words.end(), entry.sizes.begin(), entry.sizes.end());
  }
  words[0] = static_cast<std::int64_t>(words.size()) - 1;
  return words;
}

BoundarySpec decode(const std::vector<std::int64_t>& words) {
  std::size_t position = 1;
  const std::int64_t count = next_word(words, position);
  if (count < 0 || count > static_cast<std::int64_t>(words.size())) {
    throw std::runtime_error(fmt::format("an envelope of {} words names {} tensors", words.size(), count));
  }
  BoundarySpec spec(count);
  for (TensorSpec& entry : spec) {
    entry.defined = next_word(words, position) != 0;
    entry.requires_grad = next_word(words, position) != 0;
    entry.dtype = static_cast<at::ScalarType>(next_word(words, position));
    for (std::int64_t dimensions = next_word(words, position); dimensions > 0; --dimensions) {
      entry.sizes.push_back(next_word(words, position));
    }
  }
  return spec;
}

}  // namespace dualpipe
