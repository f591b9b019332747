// plugin/compare/run_cost.h
//
// cost_of_run(): the cost file that the timelines of a run give (plugin/analysis/measured_cost.h), with what the host
// wrote about exchanges, layers and bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/analysis/cost_file.h"
#include "plugin/compare/run_files.h"

namespace dualpipe {

struct RunCost {
  CostFile file;  // Stages as the run divided them; name and source are left to the caller.
  int ranks = 1;  // Of a pipeline, as is num_microbatches.
  int num_microbatches = 1;
  double measured = 0;   // Milliseconds from the first action of a step to its last: the median step.
  double simulated = 0;  // The same order under the costs of `file`.
  std::vector<std::optional<double>> pair_share;  // By stage, as MeasuredCost's.
  std::vector<std::string> notes;                 // What was not seen and how it was filled, in words.
};

// Bytes of a rank with two stages are divided evenly between them, and those of one that does the same for another
// pipeline are the mean. Activations are what the forward of a stage adds, or, where the host wrote no memory over
// time, an even part of the peak. Throws ScheduleError where the run has no whole step, and as measure_cost().
RunCost cost_of_run(const RunFiles& run);

// The layers of a model by what their phases take, in its order; empty where the host wrote no phases, or names that do
// not tell layers apart ("attention" in every stage). A phase "3.mlp" is one of layer "3", "embedding" is a layer of
// its own, and "output" is what a stage ends with, of its last layer. Of an exchange counts what the rank waited.
std::vector<LayerCost> layer_costs(const RunFiles& run);

}  // namespace dualpipe
