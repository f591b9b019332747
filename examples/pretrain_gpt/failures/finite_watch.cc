#include "examples/pretrain_gpt/failures/finite_watch.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace pretrain_gpt {
namespace {

std::string describe(Crossing crossing, const std::string& name) {
  switch (crossing) {
    case Crossing::kInput:
      return "the input";
    case Crossing::kOutput:
      return "the output";
    case Crossing::kLoss:
      return "the loss";
    case Crossing::kOutputGradient:
      return "the gradient of the output";
    case Crossing::kInputGradient:
      return "the gradient of the input";
    case Crossing::kGradients:
      return "the gradient of " + name;
  }
  return name;
}

}  // namespace

std::string Sighting::describe() const {
  const std::string which = micro_batch ? fmt::format("micro-batch {}", *micro_batch) : "the sum of all micro-batches";
  return fmt::format("rank {}, stage {}, {}: {}", rank, stage, which, pretrain_gpt::describe(crossing, name));
}

bool Sighting::is_before(const Sighting& other) const {
  const auto key = [](const Sighting& sighting) {
    const bool is_backward = sighting.crossing >= Crossing::kOutputGradient;
    return std::tuple(!sighting.micro_batch, sighting.micro_batch.value_or(0), is_backward,
                      is_backward ? -sighting.stage : sighting.stage, sighting.crossing, sighting.rank);
  };
  return key(*this) < key(other);
}

std::string to_text(const std::optional<Sighting>& sighting) {
  if (!sighting) {
    return "";
  }
  return nlohmann::json({sighting->micro_batch.value_or(-1), static_cast<int>(sighting->crossing), sighting->stage,
                         sighting->rank, sighting->name})
      .dump();
}

std::optional<Sighting> sighting_from_text(const std::string& text) {
  if (text.empty()) {
    return std::nullopt;
  }
  const nlohmann::json json = nlohmann::json::parse(text);
  Sighting sighting{{}, static_cast<Crossing>(json.at(1).get<int>()), json.at(2), json.at(3), json.at(4)};
  if (const std::int64_t micro_batch = json.at(0); micro_batch >= 0) {
    sighting.micro_batch = micro_batch;
  }
  return sighting;
}

bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0 || !tensor.is_floating_point()) {
    return true;
  }
  const auto [least, greatest] = at::aminmax(tensor.detach());  // NaN where one is in it.
  return std::isfinite(least.item<double>()) && std::isfinite(greatest.item<double>());
}

void FiniteWatch::look(std::int64_t micro_batch, Crossing crossing, const at::Tensor& tensor) {
  if (!is_finite(tensor)) {
    seen_.push_back({micro_batch, crossing, stage_, rank_, ""});
  }
}

std::optional<Sighting> FiniteWatch::first() const {
  const auto first =
      std::min_element(seen_.begin(), seen_.end(), [](const Sighting& a, const Sighting& b) { return a.is_before(b); });
  return first == seen_.end() ? std::nullopt : std::optional(*first);
}

}  // namespace pretrain_gpt
