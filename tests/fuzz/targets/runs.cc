// What runs wrote into their folders, and comparisons of them.
#include <filesystem>

#include "plugin/compare/comparison.h"
#include "plugin/compare/comparison_json.h"
#include "plugin/compare/html_report.h"
#include "plugin/compare/measured_steps.h"
#include "plugin/compare/postmortem.h"
#include "plugin/compare/run_cost.h"
#include "plugin/compare/run_files.h"
#include "plugin/schedule/error.h"
#include "tests/fuzz/targets.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe::fuzz {
namespace {

constexpr std::string_view kDivider = "\n---\n";

// The last one's last line may be cut off; a divider's first byte ends the line before it.
void write_by_rank(const TemporaryFolder& folder, const std::string& prefix, std::string_view bytes) {
  for (int rank = 0; rank < 8 && !bytes.empty(); ++rank) {
    const std::string_view text = bytes.substr(0, bytes.find(kDivider));
    const bool is_last = text.size() == bytes.size();
    folder.write(prefix + std::to_string(rank) + ".jsonl", std::string(text) + (is_last ? "" : "\n"));
    bytes.remove_prefix(std::min(bytes.size(), text.size() + kDivider.size()));
  }
}

void use(const RunFiles& run) {
  for (const MeasuredStep& step : measured_steps(run)) check(!step.ranks.empty(), "a step has ranks");
  const Comparison comparison =
      compare_runs({{"fuzz", {}, {run}}}, {.title = "fuzz", .command = "", .baseline = "fuzz", .warmup = 0});
  check(!html_report(to_json(comparison)).empty(), "what was compared has a page");
  check(layer_costs(run).size() <= 1u << 20, "layers come of phases");
  check(cost_of_run(run).ranks >= 1, "a run has ranks");
}

}  // namespace

void read_metrics(std::string_view bytes) {
  const TemporaryFolder folder;
  try {
    const auto metrics = dualpipe::read_metrics(folder.write("metrics.jsonl", std::string(bytes)));
    check(!metrics.empty(), "a file of metrics has a line");
  } catch (const ScheduleError&) {
  }
}

void read_timelines(std::string_view bytes) {
  const TemporaryFolder folder;
  write_by_rank(folder, "timeline_rank", bytes);
  try {
    use({{{1, 2.0, std::nullopt, 3.0}}, dualpipe::read_timelines(folder.path())});
  } catch (const ScheduleError&) {
  }
}

void read_rings(std::string_view bytes) {
  const TemporaryFolder folder;
  write_by_rank(folder, "ring_rank", bytes);
  try {
    check(!print_postmortem(dualpipe::read_rings(folder.path())).empty(), "logs have a postmortem");
  } catch (const ScheduleError&) {
  }
}

void read_comparison(std::string_view bytes) {
  try {
    check(!html_report(bytes).empty(), "a comparison has a page");
  } catch (const ScheduleError&) {
  }
}

}  // namespace dualpipe::fuzz
