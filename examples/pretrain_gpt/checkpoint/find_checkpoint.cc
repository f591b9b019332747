#include "examples/pretrain_gpt/checkpoint/find_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

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

// The manifest, and this rank's share of the files.
CheckedManifest check_share(const RankExchange& exchange, const fs::path& folder) {
  CheckedManifest checked = read_manifest(folder);
  const auto ranks = static_cast<std::size_t>(exchange.world_size());
  for (auto i = static_cast<std::size_t>(exchange.rank()); i < checked.manifest.files.size(); i += ranks) {
    check_hash(folder, checked.manifest.files[i]);
  }
  return checked;
}

// "" of the ranks together, or what the first of them with an error has found.
std::string judge(const fs::path& folder, const std::vector<std::string>& outcomes) {
  const std::string first = take_outcome(outcomes.front());
  for (const std::string& outcome : outcomes) {
    if (const std::string hash = take_outcome(outcome); hash != first) {
      throw CheckpointError((folder / kManifestName).string(),
                            fmt::format("must be the same on all ranks, got hashes {} and {}", first, hash));
    }
  }
  return "";
}

// Its manifest, or why the checkpoint cannot be taken; the same on all ranks.
std::pair<std::optional<Manifest>, std::string> try_checkpoint(RankExchange& exchange, const fs::path& folder) {
  std::optional<Manifest> manifest;
  const std::string mine = outcome_of([&] {
    CheckedManifest checked = check_share(exchange, folder);
    manifest = std::move(checked.manifest);
    return checked.sha256;
  });
  const std::vector<std::string> outcomes = exchange.gather(mine);
  const std::string outcome =
      exchange.broadcast(exchange.is_first() ? outcome_of([&] { return judge(folder, outcomes); }) : "");
  if (outcome.starts_with('+')) {
    return {std::move(manifest), ""};
  }
  return {std::nullopt, outcome.substr(1)};
}

}  // namespace

CheckpointSearch find_checkpoint(RankExchange& exchange, const fs::path& load, std::optional<std::int64_t> iteration) {
  CheckpointSearch search;
  const std::vector<std::int64_t> candidates = candidates_of(exchange, load, iteration);
  for (const std::int64_t candidate : candidates) {
    const fs::path folder = checkpoint_path(load, candidate);
    auto [manifest, cause] = try_checkpoint(exchange, folder);
    if (manifest) {
      search.found = FoundCheckpoint{folder, *std::move(manifest)};
      return search;
    }
    search.passed_over.push_back(candidate);
    search.notes.push_back(fmt::format("passed over {}: {}", folder.string(), cause));
  }
  if (!candidates.empty()) {
    throw CheckpointError(load.string(), fmt::format("must have a complete checkpoint, got none: {}; for example an "
                                                     "older folder, or none to begin anew",
                                                     fmt::join(search.notes, "; ")));
  }
  return search;
}

}  // namespace pretrain_gpt
