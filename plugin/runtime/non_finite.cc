#include "plugin/runtime/non_finite.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <tuple>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

bool is_backward(Crossing crossing) { return crossing >= Crossing::kOutputGradient; }

std::string name_of(Crossing crossing, std::size_t index) {
  switch (crossing) {
    case Crossing::kInput:
      return fmt::format("input {}", index);
    case Crossing::kOutput:
      return fmt::format("output {}", index);
    case Crossing::kLoss:
      return "the loss";
    case Crossing::kOutputGradient:
      return fmt::format("the gradient of output {}", index);
    case Crossing::kInputGradient:
      return fmt::format("the gradient of input {}", index);
  }
  return "";
}

}  // namespace

bool can_be_bad(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 && (tensor.is_floating_point() || tensor.is_complex());
}

std::tuple<at::Tensor, at::Tensor> extremes(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach();
  return at::aminmax(values.is_complex() ? at::view_as_real(values.resolve_conj()) : values);
}

bool are_finite(const at::Tensor& least, const at::Tensor& greatest) {
  return std::isfinite(least.item<double>()) && std::isfinite(greatest.item<double>());
}

std::string NonFinite::to_string() const {
  const std::string which = micro_batch ? fmt::format("micro-batch {}", *micro_batch) : "the sum of all micro-batches";
  return fmt::format("rank {}, stage {}, {}: {}", rank, stage, which, tensor);
}

bool NonFiniteSighting::is_before(const NonFiniteSighting& other) const {
  const auto key = [](const NonFiniteSighting& sighting) {
    const bool backward = is_backward(sighting.crossing);
    const int stage = backward ? -sighting.what.stage : sighting.what.stage;
    return std::tuple(!sighting.what.micro_batch, sighting.what.micro_batch.value_or(0), backward, stage,
                      sighting.crossing, sighting.what.rank);
  };
  return key(*this) < key(other);
}

void FiniteWatch::look(int stage, int micro_batch, Crossing crossing, const TensorList& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!can_be_bad(tensors[i])) continue;
    auto [least, greatest] = extremes(tensors[i]);
    seen_.push_back({stage, micro_batch, crossing, i, std::move(least), std::move(greatest)});
  }
}

std::optional<NonFiniteSighting> FiniteWatch::first(int rank) const {
  std::optional<NonFiniteSighting> first;
  for (const Seen& seen : seen_) {
    if (are_finite(seen.least, seen.greatest)) continue;
    const NonFiniteSighting sighting{{rank, seen.stage, seen.micro_batch, name_of(seen.crossing, seen.index)},
                                     seen.crossing};
    if (!first || sighting.is_before(*first)) first = sighting;
  }
  return first;
}

bool is_finite(const at::Tensor& tensor) {
  if (!can_be_bad(tensor)) return true;
  const auto [least, greatest] = extremes(tensor);
  return are_finite(least, greatest);
}

std::string encode(const std::optional<NonFiniteSighting>& sighting) {
  if (!sighting) return "";
  const NonFinite& what = sighting->what;
  return fmt::format("{} {} {} {} {}", what.rank, what.stage, what.micro_batch ? 1 + *what.micro_batch : 0,
                     static_cast<int>(sighting->crossing), what.tensor);
}

std::optional<NonFiniteSighting> decode_sighting(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::istringstream stream(text);
  NonFiniteSighting sighting;
  int next_micro_batch = 0;
  int crossing = 0;
  stream >> sighting.what.rank >> sighting.what.stage >> next_micro_batch >> crossing;
  check(static_cast<bool>(stream), "ranks tell of what is not finite in one form");
  if (next_micro_batch > 0) sighting.what.micro_batch = next_micro_batch - 1;
  sighting.crossing = static_cast<Crossing>(crossing);
  stream.ignore(1);
  std::getline(stream, sighting.what.tensor);
  return sighting;
}

}  // namespace dualpipe
