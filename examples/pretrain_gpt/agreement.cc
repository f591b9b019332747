#include "examples/pretrain_gpt/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

std::string shown(const std::string& value) { return value.empty() ? "no value" : value; }

struct Held {
  std::string value;
  std::vector<int> ranks;
};

// Each value with its ranks, the value of rank 0 first.
using Opinions = std::vector<Held>;

Opinions opinions(const std::vector<std::string>& values) {
  Opinions all;
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    const auto same =
        std::find_if(all.begin(), all.end(), [&](const Held& held) { return held.value == values[rank]; });
    Held& held = same == all.end() ? all.emplace_back(Held{values[rank], {}}) : *same;
    held.ranks.push_back(static_cast<int>(rank));
  }
  return all;
}

std::string shown(const Held& held) {
  constexpr std::size_t kMostRanks = 8;
  const auto end = held.ranks.begin() + static_cast<std::ptrdiff_t>(std::min(held.ranks.size(), kMostRanks));
  return fmt::format("{} on {} {}{}", shown(held.value), held.ranks.size() == 1 ? "rank" : "ranks",
                     fmt::join(held.ranks.begin(), end, ", "), held.ranks.size() > kMostRanks ? ", ..." : "");
}

// Of more than two values the first two: what is wrong with one is seen by either.
std::string shown(const Opinions& differing) {
  return fmt::format("{} and {}", shown(differing[0]), shown(differing[1]));
}

[[noreturn]] void refuse(const std::string& key, const std::string& values) {
  throw UserError("config",
                  fmt::format("{} must be the same on every rank, got {}; {}", key, values,
                              key == kCheckpointSeen ? kShareLoad : "start all ranks with one configuration"));
}

// Of every rank; "" where a rank has no such key.
std::vector<std::string> values_at(const std::vector<KeyValues>& by_rank, std::size_t place) {
  std::vector<std::string> values;
  for (const KeyValues& pairs : by_rank) {
    values.push_back(place < pairs.size() ? pairs[place].second : "");
  }
  return values;
}

// Keys are the program's: another version has others.
void check_keys(const std::vector<KeyValues>& by_rank) {
  std::vector<std::string> keys;
  for (const KeyValues& pairs : by_rank) {
    std::string all;
    for (const auto& [key, value] : pairs) {
      all += key + '\n';
    }
    keys.push_back(std::move(all));
  }
  Opinions differing = opinions(keys);
  if (differing.size() > 1) {
    differing[0].value = "one version";
    differing[1].value = "another";
    refuse("the program", shown(differing));
  }
}

}  // namespace

std::string to_text(const KeyValues& pairs) { return nlohmann::json(pairs).dump(); }

KeyValues from_text(const std::string& text) { return nlohmann::json::parse(text).get<KeyValues>(); }

std::optional<std::string> difference(const std::vector<std::string>& by_rank) {
  const Opinions values = opinions(by_rank);
  return values.size() > 1 ? std::optional(shown(values)) : std::nullopt;
}

void check_agreement(const std::vector<KeyValues>& by_rank) {
  check_keys(by_rank);
  for (std::size_t i = 0; i < by_rank.front().size(); ++i) {
    if (const auto values = difference(values_at(by_rank, i))) {
      refuse(by_rank.front()[i].first, *values);
    }
  }
}

}  // namespace pretrain_gpt
