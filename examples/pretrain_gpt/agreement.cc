#include "examples/pretrain_gpt/agreement.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

std::string shown(const std::string& value) { return value.empty() ? "no value" : value; }

[[noreturn]] void refuse(const std::string& key, const std::string& on_first, const std::string& on_other, int other) {
  throw UserError("config",
                  fmt::format("{} must be the same on every rank, got {} on rank 0 and {} on rank {}; start all "
                              "ranks with one configuration",
                              key, shown(on_first), shown(on_other), other));
}

}  // namespace

std::string to_text(const KeyValues& pairs) { return nlohmann::json(pairs).dump(); }

KeyValues from_text(const std::string& text) { return nlohmann::json::parse(text).get<KeyValues>(); }

void check_agreement(const std::vector<KeyValues>& by_rank) {
  const KeyValues& first = by_rank.front();
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    const KeyValues& other = by_rank[rank];
    for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      if (i >= first.size() || i >= other.size() || first[i].first != other[i].first) {
        refuse("the program", "one version", "another", static_cast<int>(rank));
      }
      if (first[i].second != other[i].second) {
        refuse(first[i].first, first[i].second, other[i].second, static_cast<int>(rank));
      }
    }
  }
}

}  // namespace pretrain_gpt
