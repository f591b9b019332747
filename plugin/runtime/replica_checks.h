// plugin/runtime/replica_checks.h
//
// Mistakes in ParallelGroups that would hang a group, or leave a sum silently incomplete or scaled, found while ranks
// can still tell each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/collectives.h"
#include "plugin/runtime/gradient_reduction.h"
#include "plugin/runtime/gradients.h"
#include "plugin/runtime/parallel_groups.h"
#include "plugin/runtime/replica_layout.h"

namespace dualpipe {

// Before any group but `world` is used, collective over it. Throws ScheduleError on every rank where copies of a
// parameter go to gradient groups of different sizes, or where ranks that compute losses give `losses` of different
// sizes.
void check_group_sizes(Collectives& world, const ParallelGroups& groups, const std::vector<StageParameter>& parameters,
                       bool computes_losses);

// What a rank knows of its groups' members, each by the identity it has in all of them.
struct KnownMembers {
  std::string identity;             // This rank's.
  std::vector<std::string> losses;  // Of ParallelGroups::losses; empty where null.
  bool computes_losses = false;
  std::optional<int> mirror = {};  // The rank's in the pipeline.
  bool sums_mirrors = true;        // False: mirrors may keep their own gradients.
  bool sharded = false;
};

// Collective over the pipeline. Throws ScheduleError on every rank where mirrors are not members of one gradient group,
// where `losses` lacks an end of the pipeline, or where it is null though gradients are summed with those of a
// pipeline that has other data (as far as that can be seen). Gives the parameters that another rank holds too (tied
// weights) without being a member of their group: the pipeline has to add their sums itself, which is refused where
// gradients are sharded.
TiedParameters check_members(Collectives& pipeline, const KnownMembers& known, const ReplicaLayout& layout,
                             const std::vector<StageParameter>& parameters);

}  // namespace dualpipe
