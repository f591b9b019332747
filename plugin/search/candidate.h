// plugin/search/candidate.h
//
// The placements that a request leaves to choose from, each with its costs, its limits and the named schedules that
// have it.
#pragma once

#include <string>
#include <vector>

#include "plugin/search/anneal.h"
#include "plugin/search/choose_schedule.h"

namespace dualpipe::search {

inline constexpr double kBytesPerGb = 1e9;

struct NamedOrder {
  std::string name;
  Found order;
};

struct Candidate {
  PlacementKind kind;
  int chunks;  // Per rank.
  CostModel cost;
  std::vector<StageBytes> bytes;  // By stage; empty: unknown.
  Limits limits;
  Lanes lanes;
  std::vector<NamedOrder> named;  // Those that are valid for P and M, and fit.
  int least_activations;          // Per rank, below which no order of the placement can run.
  double least_bytes;             // Of the worst rank; 0 where unknown.

  bool fits_at_all() const;
  // Of the worst rank.
  int peak_activations(const Words& words) const;
  std::optional<double> peak_memory_gb(const Words& words) const;
};

// "loop with 2 chunks per rank"
std::string placement_name(PlacementKind kind, int chunks);

// Loop with one chunk, loop with several, V, bidirectional, as far as the request allows and its costs can be divided.
// Throws ScheduleError where it is wrong in itself or leaves none.
std::vector<Candidate> make_candidates(const AutoRequest& request);

// The orders that fit to start from: named ones, and what first_orders.h makes of nothing.
std::vector<Found> starts_of(const Candidate& candidate);

}  // namespace dualpipe::search
