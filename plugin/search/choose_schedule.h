// plugin/search/choose_schedule.h
//
// choose_schedule(): what `pipeline_schedule: auto` means. Picks a placement and an order for P, M, costs and a memory
// limit: the best named schedule that fits, or a faster order that a search finds (plugin/search/improve.h). The result
// depends on the request alone, never on the machine, its load or the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/analysis/cost_file.h"
#include "plugin/analysis/cost_model.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

// The placements of plugin/schedule/placement.h: loop (with one chunk per rank and with several), V, bidirectional.
enum class PlacementKind { kLoop, kVee, kBidirectional };

std::string_view to_string(PlacementKind kind);  // "loop", "v", "bidirectional".
// Throws ScheduleError for another word, with `origin`.
PlacementKind parse_placement_kind(std::string_view origin, std::string_view word);

struct SearchProgress {
  double done = 0;      // Share of the budget, 0 to 1.
  double makespan = 0;  // Of the best order so far.
};

struct AutoRequest {
  int pipeline_model_parallel_size = 1;          // P.
  int num_microbatches = 1;                      // M, over both directions.
  int virtual_pipeline_model_parallel_size = 2;  // Chunks per rank of the interleaved loop; 1 leaves it out.

  // The placements that may be tried; empty: all that P and M allow (bidirectional wants both even).
  std::vector<PlacementKind> placements;

  // Costs of a stage where the model is cut into `cost_stages` stages, uniform or one by one. A placement with another
  // number of stages has them divided evenly or summed, so that all placements carry the same model; one where neither
  // number divides the other is left out. cost_stages is, by default, the number of per_stage costs, else 2P where the
  // V is the only placement asked for, else P.
  CostModel cost;
  std::optional<int> cost_stages;

  // Most live (stage, micro-batch) per rank, counted as in plugin/analysis/simulate.h, each in 1/P of the model, so
  // that a rank of a V may hold twice as many of its half stages; in 1/2P where the V is the only placement asked for.
  std::optional<int> max_activations;
  // Most bytes per rank (1 GB = 10^9 bytes): parameters of its stages and live activations. Needs `bytes`.
  std::optional<double> memory_limit_gb;
  // Per stage of a cut into any number of stages; divided and summed as costs are. Empty: unknown.
  std::vector<StageBytes> bytes;
  // With neither limit an order holds no more activations than the named schedules of its placement do: P for one chunk
  // per rank, 2P+1 for a V, P+1 for bidirectional, what interleaved_1f1b holds for several chunks.

  // How many orders are looked at: as given, or as many as the time budget is good for. One second is worth a fixed
  // number of simulated actions, which two cores of 2020 do in less, so the same budget gives the same order anywhere.
  std::optional<std::int64_t> evaluations;
  double time_budget_s = 20;
  std::uint64_t seed = 1;
  int threads = 2;  // Two at most are used. The result is the same with one.

  std::function<void(const SearchProgress&)> on_progress;  // Called on the caller's thread.
};

struct NamedResult {
  std::string schedule;  // "zb1p"
  double makespan = 0;
  int stages = 1;                        // Of its placement.
  int peak_activations = 0;              // Of the worst rank, in those stages.
  std::optional<double> peak_memory_gb;  // Of the worst rank, where `bytes` were given.
};

struct AutoChoice {
  Schedule schedule;  // Name "auto". print_rows() writes it as the file that read_schedule() reads.
  PlacementKind placement = PlacementKind::kLoop;
  CostModel cost;                 // Per stage of `schedule`, as is the next.
  std::vector<StageBytes> bytes;  // Empty where `bytes` were not given.
  double makespan = 0;
  int peak_activations = 0;               // Of the worst rank, in stages of `schedule`.
  std::optional<double> peak_memory_gb;   // Of the worst rank, where `bytes` were given.
  std::optional<NamedResult> best_named;  // Nothing where no named schedule is valid and fits.
  double bound = 0;                       // No order of any placement that was looked at is faster than this.
  std::int64_t evaluations = 0;           // Orders that were looked at.
  std::string reason;                     // A sentence or two with these figures.
};

// Throws ScheduleError for a request that is wrong in itself, for costs of no use (per_stage beside other cost_stages),
// and where no order fits the limits: then it says the least that would, per placement.
AutoChoice choose_schedule(const AutoRequest& request);

}  // namespace dualpipe
