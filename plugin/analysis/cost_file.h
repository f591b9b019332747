// plugin/analysis/cost_file.h
//
// Cost files: what the stages of a model cost and hold, as `dualpipe profile` measures it and `--cost FILE` reads it.
//
//   {"format": "dualpipe-cost", "version": 1, "unit": "ms",
//    "source": "...",          where the figures come from, in words; may be missing
//    "latency": 0.3,           of a message between two ranks; default 0
//    "step_overhead": 12,      what a step takes beside its schedule (data, optimizer, ...); default 0
//    "stages": [{"forward": 4, "backward_input": 4, "backward_weight": 4,
//                "overlapped": 9,       F&B with this stage's forward; default their sum: nothing is gained
//                "all_to_all": 1.5,     of which exchanges between ranks of the stage, F and B together; may be missing
//                "parameter_bytes": 1e9, "gradient_bytes": 1e9, "optimizer_bytes": 2e9,
//                "activation_bytes": 3e7}, ...],     of one micro-batch from F to B or W; each of these may be missing
//    "layers": [{"name": "embedding", "forward": 0.2, "backward_input": 0.1, "backward_weight": 0.1,
//                "parameter_bytes": 1e8}, ...]}      in the order of the model; may be missing
//
// Any key that may be missing may be null as well. Stages stand at the finest division that could be measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugin/analysis/cost_model.h"

namespace dualpipe {

struct CostFileStage {
  StageCost cost;  // Milliseconds.
  std::optional<double> all_to_all;
  std::optional<double> parameter_bytes;
  std::optional<double> gradient_bytes;
  std::optional<double> optimizer_bytes;
  std::optional<double> activation_bytes;

  friend bool operator==(const CostFileStage&, const CostFileStage&) = default;
};

struct LayerCost {
  std::string name;
  double forward = 0;  // Milliseconds.
  double backward_input = 0;
  double backward_weight = 0;
  std::optional<double> parameter_bytes;

  double total() const { return forward + backward_input + backward_weight; }
  friend bool operator==(const LayerCost&, const LayerCost&) = default;
};

struct CostFile {
  std::string name;  // As messages cite it: the path. Not part of the file.
  std::string source;
  double latency = 0;  // Milliseconds, as is the next.
  double step_overhead = 0;
  std::vector<CostFileStage> stages;  // At least one.
  std::vector<LayerCost> layers;      // Empty where the file has none.

  friend bool operator==(const CostFile&, const CostFile&) = default;
};

// Strict: an unknown key (with the nearest valid one), a repeated one, a missing one without a default, a wrong type, a
// negative or non-finite number or an object too deep throws ScheduleError with `name` as the origin and the key.
CostFile parse_cost_file(std::string_view json, const std::string& name);
CostFile read_cost_file(const std::string& path);
// The inverse; ends with a newline.
std::string to_json(const CostFile& file);

// What a stage keeps on every rank that holds it, in bytes.
struct StageBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double activations = 0;  // Of one micro-batch, from F to B or W.

  double state() const { return parameters + gradients + optimizer; }
  friend bool operator==(const StageBytes&, const StageBytes&) = default;
};

// The file for a plan of some number of stages.
struct FittedCost {
  CostModel cost;  // per_stage has an entry for each.
  double step_overhead = 0;
  std::vector<StageBytes> bytes = {};  // By stage; empty where the file lacks parameter_bytes or activation_bytes.
  // What a reader should know: "each of the 4 stages in FILE is divided evenly in 2".
  std::optional<std::string> note = {};
};

// The first key of the file without which a stage's bytes are unknown: "stages[2].activation_bytes".
std::optional<std::string> missing_bytes(const CostFile& file);

// With fewer stages than the file, neighbours are summed; with more, each is divided evenly, which `note` says. Throws
// ScheduleError where neither number divides the other. Gradients that the file does not give take what parameters do,
// and an optimizer twice that (Adam's two moments).
FittedCost fit(const CostFile& file, int stages);

}  // namespace dualpipe
