#include "examples/pretrain_gpt/checkpoint/find_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "examples/pretrain_gpt/agreement.h"
#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/checkpoint_folder.h"
#include "examples/pretrain_gpt/checkpoint/outcome.h"

namespace pretrain_gpt {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// The first rank's view of the folder.
std::vector<std::int64_t> candidates_of(RankExchange& exchange, const fs::path& load,
                                        std::optional<std::int64_t> iteration) {
  if (iteration) {
    return {*iteration};
  }
  const std::string list =
      exchange.broadcast(exchange.is_first() ? outcome_of([&] { return json(list_checkpoints(load)).dump(); }) : "");
  return json::parse(take_outcome(list));
}

using Judge = std::function<std::string(const std::vector<std::string>& by_rank)>;

// With the rank in the message of an error.
std::vector<std::string> take_outcomes(const std::vector<std::string>& outcomes) {
  std::vector<std::string> results;
  for (const std::string& outcome : outcomes) {
    results.push_back(
        take_outcome(outcome.starts_with('+') ? outcome : fmt::format("{} on rank {}", outcome, results.size())));
  }
  return results;
}

// What the first rank makes of what all ranks see; throws on all of them what it throws, or `look` on any.
std::string settle(RankExchange& exchange, const std::function<std::string()>& look, const Judge& judge) {
  const std::vector<std::string> outcomes = exchange.gather(outcome_of(look));
  return take_outcome(
      exchange.broadcast(exchange.is_first() ? outcome_of([&] { return judge(take_outcomes(outcomes)); }) : ""));
}

// Of the bytes that `read` reads; "" where they are right. Throws where they cannot be read.
std::string damage_in(const std::function<void()>& read) {
  try {
    read();
    return "";
  } catch (const DamagedCheckpoint& damage) {
    return damage.what();
  }
}

void check_share(const RankExchange& exchange, const fs::path& folder, const Manifest& manifest) {
  const auto ranks = static_cast<std::size_t>(exchange.world_size());
  for (auto i = static_cast<std::size_t>(exchange.rank()); i < manifest.files.size(); i += ranks) {
    check_hash(folder, manifest.files[i]);
  }
}

std::string expect_one_view(const fs::path& folder, const std::vector<std::string>& views) {
  if (const auto values = difference(views)) {
    throw CheckpointError(folder.string(),
                          fmt::format("must be the same on every rank, got {}; {}", *values, kShareLoad));
  }
  return views.front();
}

std::string first_damage(const std::vector<std::string>& by_rank) {
  const auto first =
      std::find_if(by_rank.begin(), by_rank.end(), [](const std::string& damage) { return !damage.empty(); });
  return first == by_rank.end() ? "" : *first;
}

// Its manifest, or what is wrong with its bytes; the same on all ranks. A manifest and a list of files that one rank
// sees otherwise are no damage: the ranks have different folders.
std::pair<std::optional<Manifest>, std::string> try_checkpoint(RankExchange& exchange, const fs::path& folder) {
  CheckedManifest checked;
  std::string damage;
  const auto look = [&] {
    damage = damage_in([&] { checked = read_manifest(folder); });
    return damage.empty() ? "a whole one with manifest " + checked.sha256 : damage;
  };
  settle(exchange, look, [&](const std::vector<std::string>& views) { return expect_one_view(folder, views); });
  if (damage.empty()) {
    damage = settle(
        exchange, [&] { return damage_in([&] { check_share(exchange, folder, checked.manifest); }); }, first_damage);
  }
  return damage.empty() ? std::pair(std::optional(std::move(checked.manifest)), std::string())
                        : std::pair(std::optional<Manifest>(), std::move(damage));
}

}  // namespace

CheckpointSearch find_checkpoint(RankExchange& exchange, const fs::path& load, std::optional<std::int64_t> iteration) {
  CheckpointSearch search;
  const std::vector<std::int64_t> candidates = candidates_of(exchange, load, iteration);
  for (const std::int64_t candidate : candidates) {
    const fs::path folder = checkpoint_path(load, candidate);
    auto [manifest, damage] = try_checkpoint(exchange, folder);
    if (manifest) {
      search.found = FoundCheckpoint{folder, *std::move(manifest)};
      return search;
    }
    search.passed_over.push_back(candidate);
    search.notes.push_back(fmt::format("passed over {}: {}", folder.string(), damage));
  }
  if (!candidates.empty()) {
    throw CheckpointError(load.string(), fmt::format("must have a complete checkpoint, got none: {}; for example an "
                                                     "older folder, or none to begin anew",
                                                     fmt::join(search.notes, "; ")));
  }
  return search;
}

}  // namespace pretrain_gpt
