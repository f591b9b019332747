// plugin/runtime/replica_layout.h
//
// Which gradients travel together over which group of ParallelGroups::gradients, and in which order: a value that is
// the same on all members of a group.
//
// A bucket holds parameters of one group, one stage and one pair of dtypes (of the gradient, of the parameter), up to a
// size; a larger parameter has one to itself. The order, stages included, is that of the group's first member, since
// members may reduce their stages in different orders, or hold a tied weight in different stages. Cut in as many equal
// parts as there are members, the last ones padded, a bucket is what ZeRO shards.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/gradients.h"
#include "plugin/runtime/group_collectives.h"
#include "plugin/runtime/parallel_groups.h"

namespace dualpipe {

struct ReplicaBucket {
  std::size_t group = 0;             // Index into ReplicaLayout::groups.
  std::vector<std::size_t> indices;  // Of parameters, one after another.
  at::ScalarType gradient_dtype = at::kFloat;
  std::int64_t elements = 0;  // Of all of them, without padding.
};

// Elements begin to end of a flattened parameter, which stand at `offset` of their bucket's part.
struct ParameterPiece {
  std::size_t index = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
};

struct ReplicaLayout {
  std::vector<std::shared_ptr<GroupCollectives>> groups;  // Each once, however often a host lists it.
  std::vector<std::vector<std::string>> members;          // By group, by rank in it: what identifies a member.
  std::vector<std::optional<std::size_t>> group_of;       // By parameter: none where it is this rank's alone.
  std::vector<ReplicaBucket> buckets;                     // Those of one group in its members' common order.

  // Elements of one member's part of a bucket, padding included.
  std::int64_t part_size(const ReplicaBucket& bucket) const;
  // What a member's part of a bucket holds of which parameters; nothing of some.
  std::vector<ParameterPiece> pieces_of(const ReplicaBucket& bucket, int member,
                                        const std::vector<StageParameter>& parameters) const;
};

// What decides the order: of this rank's parameters, stages in the order of `reduction_order`.
struct LayoutOptions {
  std::vector<int> reduction_order;
  std::int64_t bucket_bytes = 0;
  std::string identity;  // Of this rank, one in all groups.
  std::chrono::milliseconds timeout{0};
  std::shared_ptr<FailureChannel> failures = {};
};

// Collective over each group. Throws ScheduleError on all members of a group that do not train the same parameters
// (name, part, shape, dtypes).
ReplicaLayout agree_on_layout(const std::vector<GradientGroup>& groups, const std::vector<StageParameter>& parameters,
                              const LayoutOptions& options);

}  // namespace dualpipe
