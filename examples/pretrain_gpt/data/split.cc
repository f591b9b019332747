#include "examples/pretrain_gpt/data/split.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// Empty where the text is not a list of numbers.
std::vector<double> parse_weights(std::string_view text) {
  std::vector<double> weights;
  while (true) {
    const std::string_view item = trimmed(text.substr(0, text.find(',')));
    double weight = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), weight);
    if (error != std::errc{} || end != item.data() + item.size() || !std::isfinite(weight) || weight < 0) {
      return {};
    }
    weights.push_back(weight);
    if (text.find(',') == std::string_view::npos) {
      return weights;
    }
    text.remove_prefix(text.find(',') + 1);
  }
}

}  // namespace

std::int64_t Split::training_samples(std::int64_t samples) const {
  return static_cast<std::int64_t>(std::llround(training * static_cast<double>(samples)));
}

std::int64_t Split::validation_samples(std::int64_t samples) const {
  const auto end = static_cast<std::int64_t>(std::llround((training + validation) * static_cast<double>(samples)));
  return end - training_samples(samples);
}

Split parse_split(const std::string& text, const std::string& origin) {
  std::vector<double> weights = parse_weights(text);
  if (weights.empty() || weights.size() > 3 || weights[0] == 0) {
    throw UserError(origin,
                    fmt::format("split must be one to three numbers of at least 0, the first above 0, got '{}'; "
                                "for example 99,1",
                                text));
  }
  weights.resize(3, 0);
  const double sum = weights[0] + weights[1] + weights[2];
  return {weights[0] / sum, weights[1] / sum};
}

}  // namespace pretrain_gpt
