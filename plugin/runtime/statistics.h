// plugin/runtime/statistics.h
//
// What a step did, as this rank ran it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plugin/analysis/simulate.h"
#include "plugin/schedule/merge.h"

namespace dualpipe {

// One phase of a stage that runs phase by phase. Seconds since the step began.
struct PhaseSpan {
  int stage = 0;
  int micro_batch = 0;
  PhasePart part = PhasePart::kForward;  // kInput also where a B computes both gradients at once.
  int phase = 0;
  bool communication = false;
  double start = 0;   // Of an exchange: when it was posted.
  double end = 0;     // Of an exchange: when its result had been awaited.
  double waited = 0;  // Of an exchange: how much of that the rank did nothing but wait.
  std::string name;   // "3F5 0.attention", as profilers see it; "3B5 ..." where a B computes both gradients at once.
};

struct MemoryPoint {
  double seconds = 0;  // Since the step began.
  std::int64_t bytes = 0;
};

// A bucket of gradients whose sum over replicas was started.
struct ReductionStart {
  std::int64_t elements = 0;
  std::size_t after_spans = 0;  // How many compute actions had run: fewer than all, where it overlaps the schedule.
};

struct StepStatistics {
  double began = 0;  // Unix time in seconds: ranks of one machine share a clock.
  // Compute actions in the order in which they ran; seconds since the step began. A row of a Timeline. A pair begins
  // with the first of what it needs, and counts as waited what it then waits for messages of the other. Where the
  // closing of a pair ran behind the opening of the next one (plugin/runtime/overlap.h), it is part of the next one's
  // span.
  std::vector<Span> spans;
  int peak_activations = 0;                   // Most (stage, micro-batch) live at once, by the simulator's definition.
  std::size_t peak_pending_weight_bytes = 0;  // Largest WeightGradStore::pending_bytes().
  std::size_t messages_sent = 0;
  std::size_t bytes_sent = 0;
  int overlapped_pairs = 0;                     // Pairs that a hook ran, or a merge of their phases.
  int pairs_by_phases = 0;                      // Of those, by their phases.
  std::map<std::string, int> sequential_pairs;  // Pairs that ran in sequence, by reason.

  std::vector<PhaseSpan> phases;     // In the order in which they ended.
  int recomputed_phases = 0;         // How often a phase was computed again in backward.
  double exchange_seconds = 0;       // From posting an exchange to having awaited it; their sum, overlaps included.
  double exchange_wait_seconds = 0;  // Of that, how long the rank did nothing but wait: exposed communication.

  // What PipelineOptions::live_bytes said at the step's begin and at the end of every compute action; empty without it.
  std::vector<MemoryPoint> memory;

  std::vector<ReductionStart> reductions;  // In the order of starting; empty without ParallelGroups::gradients.

  // "12 of 14 pairs overlapped, 12 by phases; 2 in sequence: stage 3 has no phases"
  std::string overlap_summary() const;
};

}  // namespace dualpipe
