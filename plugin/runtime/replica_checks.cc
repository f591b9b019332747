#include "plugin/runtime/replica_checks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "plugin/runtime/name_list.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr const char* kOrigin = "parallel_groups";

std::string size_of(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return group ? std::to_string(group->getSize()) : "1";
}

std::string size_for(const std::vector<GradientGroup>& groups, const std::string& name) {
  for (const GradientGroup& candidate : groups) {
    if (!candidate.holds || candidate.holds(name)) return size_of(candidate.group);
  }
  return "1";
}

// What the first rank that said anything said, and whoever says otherwise is refused.
class OneSize {
 public:
  OneSize(std::string before, std::string after) : before_(std::move(before)), after_(std::move(after)) {}

  void add(std::size_t rank, const std::string& key, const std::string& size) {
    const auto& [first_rank, first_size] = first_.try_emplace(key, rank, size).first->second;
    if (first_size == size) return;
    throw ScheduleError(kOrigin, before_ + key + after_ + ", got " + first_size + " on rank " +
                                     std::to_string(first_rank) + " and " + size + " on rank " + std::to_string(rank));
  }

 private:
  std::string before_;
  std::string after_;
  std::map<std::string, std::pair<std::size_t, std::string>> first_;
};

// A rank of the pipeline as the others see it.
struct Peer {
  std::string identity;
  bool computes_losses;
  std::optional<std::size_t> mirror;
  std::set<std::string> losses;
  std::map<std::string, std::set<std::string>> members;  // By parameter: those with whom its gradient is summed.
  std::set<std::string> shards;                          // Which of the parameters are parts of one.
};

std::string encode_set(const std::set<std::string>& set) { return encode_names({set.begin(), set.end()}); }

std::set<std::string> decode_set(const std::string& bytes) {
  const std::vector<std::string> names = decode_names(bytes);
  return {names.begin(), names.end()};
}

// The distinct sets of members once, then each parameter with the number of its own.
std::string encode(const KnownMembers& known, const ReplicaLayout& layout,
                   const std::vector<StageParameter>& parameters) {
  std::vector<std::string> texts{known.identity,
                                 known.computes_losses ? "1" : "",
                                 known.mirror ? std::to_string(*known.mirror) : "",
                                 encode_set({known.losses.begin(), known.losses.end()}),
                                 std::to_string(layout.members.size() + 1),
                                 encode_set({known.identity})};
  for (const auto& members : layout.members) texts.push_back(encode_set({members.begin(), members.end()}));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::optional<std::size_t> group = layout.group_of[i];
    texts.insert(texts.end(), {full_name(parameters[i]), parameters[i].shard.empty() ? "" : "1",
                               std::to_string(group ? *group + 1 : 0)});
  }
  return encode_names(texts);
}

Peer decode(const std::string& bytes) {
  const std::vector<std::string> texts = decode_names(bytes);
  Peer peer{texts.at(0), !texts.at(1).empty(), {}, decode_set(texts.at(3)), {}, {}};
  if (!texts.at(2).empty()) peer.mirror = std::stoul(texts[2]);
  constexpr std::size_t kFirstSet = 5;
  for (std::size_t i = kFirstSet + std::stoul(texts.at(4)); i + 2 < texts.size(); i += 3) {
    if (!texts[i + 1].empty()) peer.shards.insert(texts[i]);
    peer.members[texts[i]] = decode_set(texts.at(kFirstSet + std::stoul(texts[i + 2])));
  }
  return peer;
}

// Copies of a parameter on two ranks of a pipeline that are not members of one group.
struct Apart {
  std::string name;
  std::size_t from;
  std::size_t to;
};

std::vector<Apart> find_apart(const std::vector<Peer>& peers) {
  std::vector<Apart> apart;
  for (std::size_t from = 0; from < peers.size(); ++from) {
    for (const auto& [name, members] : peers[from].members) {
      for (std::size_t to = 0; to < peers.size(); ++to) {
        if (to == from || !peers[to].members.contains(name) || members.contains(peers[to].identity)) continue;
        apart.push_back({name, from, to});
      }
    }
  }
  return apart;
}

[[noreturn]] void refuse(const Apart& apart, const std::string& where) {
  throw ScheduleError(kOrigin, "copies of \"" + apart.name + "\" on ranks " + std::to_string(apart.from) + " and " +
                                   std::to_string(apart.to) + " of a pipeline" + where +
                                   " must be members of one gradient group, got one of rank " +
                                   std::to_string(apart.from) + " without rank " + std::to_string(apart.to) +
                                   "; a group is all that hold the parameter, times data parallelism");
}

// With pipelines that have other data. Where parameters are divided over tensor ranks, whole ones may be summed over
// those, which share their data; parts are not.
bool sums_with_others(const std::vector<Peer>& peers) {
  std::set<std::string> own;
  bool has_shards = false;
  for (const Peer& peer : peers) {
    own.insert(peer.identity);
    has_shards = has_shards || !peer.shards.empty();
  }
  for (const Peer& peer : peers) {
    for (const auto& [name, members] : peer.members) {
      if (has_shards && !peer.shards.contains(name)) continue;
      if (!std::includes(own.begin(), own.end(), members.begin(), members.end())) return true;
    }
  }
  return false;
}

void require_all_losses(const std::vector<Peer>& peers) {
  const bool others = sums_with_others(peers);
  for (std::size_t from = 0; from < peers.size(); ++from) {
    if (!peers[from].computes_losses) continue;
    if (peers[from].losses.empty() && others) {
      throw ScheduleError(kOrigin,
                          "`losses` must be all ranks that compute losses where gradients are summed over "
                          "several pipelines, got null on rank " +
                              std::to_string(from) + "; give the group of both ends x data parallel ranks");
    }
    for (std::size_t to = 0; to < peers.size(); ++to) {
      if (!peers[to].computes_losses || peers[from].losses.empty()) continue;
      if (peers[from].losses.contains(peers[to].identity)) continue;
      throw ScheduleError(kOrigin, "`losses` must hold all ranks of a pipeline that compute losses, got one of rank " +
                                       std::to_string(from) + " without rank " + std::to_string(to));
    }
  }
}

}  // namespace

void check_group_sizes(Collectives& world, const ParallelGroups& groups, const std::vector<StageParameter>& parameters,
                       bool computes_losses) {
  std::vector<std::string> own{computes_losses ? size_of(groups.losses) : ""};
  if (computes_losses && !groups.losses) own[0] = "none";
  for (const StageParameter& parameter : parameters) {
    own.insert(own.end(), {full_name(parameter), size_for(groups.gradients, parameter.name)});
  }
  OneSize losses("`losses` must be of one size on all ranks that compute losses", "");
  OneSize copies("copies of \"", "\" must be summed over groups of one size");
  const std::vector<std::string> all = world.all_gather(encode_names(own));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<std::string> texts = decode_names(all[rank]);
    if (!texts.at(0).empty()) losses.add(rank, "", texts[0]);
    for (std::size_t i = 1; i + 1 < texts.size(); i += 2) copies.add(rank, texts[i], texts[i + 1]);
  }
}

TiedParameters check_members(Collectives& pipeline, const KnownMembers& known, const ReplicaLayout& layout,
                             const std::vector<StageParameter>& parameters) {
  std::vector<Peer> peers;
  for (const std::string& bytes : pipeline.all_gather(encode(known, layout, parameters)))
    peers.push_back(decode(bytes));
  require_all_losses(peers);
  TiedParameters tied;
  for (const Apart& apart : find_apart(peers)) {
    const bool mirrors = peers[apart.from].mirror == apart.to;
    if (mirrors && known.sums_mirrors) refuse(apart, "");
    if (mirrors) continue;
    if (known.sharded) refuse(apart, " with shard_gradients");
    if (apart.from != static_cast<std::size_t>(pipeline.rank())) continue;
    const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const StageParameter& parameter) {
      return full_name(parameter) == apart.name;
    });
    tied[static_cast<int>(apart.to)].push_back(found - parameters.begin());
  }
  return tied;
}

}  // namespace dualpipe
