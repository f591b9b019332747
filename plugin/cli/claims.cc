// The often quoted gains of DualPipe, each from the simulator.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugin/analysis/simulate.h"
#include "plugin/cli/commands.h"
#include "plugin/cli/summary.h"
#include "plugin/schedule/registry.h"

namespace dualpipe::cli {
namespace {

constexpr int kRanks = 8;
constexpr int kParts = 16;  // Of the global batch, in which times are given.

struct Case {
  const char* schedule;
  int num_microbatches;
  double overlapped;  // Of F = I = W = 1.
};

constexpr Case kSmallest1f1b{"1f1b", kRanks, 3};  // The least M that fills the pipeline.
constexpr Case k1f1b{"1f1b", kParts, 3};
constexpr Case kZeroBubble{"zb1p", kParts, 3};
constexpr Case kNothingOverlaps{"dualpipe", kParts, 3};  // M = 2P is its least.
constexpr Case kSomeOverlap{"dualpipe", kParts, 2.25};
constexpr Case kHalfTime{"dualpipe", kParts, 1.5};
constexpr Case kCases[] = {kSmallest1f1b,
                           k1f1b,
                           {"interleaved_1f1b", kParts, 3},
                           kZeroBubble,
                           kNothingOverlaps,
                           kSomeOverlap,
                           kHalfTime,
                           {"dualpipev", kParts, 3},
                           {"dualpipev", kParts, 2.25},
                           {"dualpipev", kParts, 1.5}};

struct Figures {
  double time = 0;
  double utilization = 0;
  double peak_activations = 0;  // Of the worst rank, in activations of a part of the batch in 1/8 of the model.
  int parameters = 1;           // Copies of the model over the ranks.
};

// A larger micro-batch and a longer stage take more time, as their share of the whole says.
Figures measure(const Case& claim) {
  const Schedule schedule = builtin_registry().make(
      claim.schedule, {.pipeline_model_parallel_size = kRanks, .num_microbatches = claim.num_microbatches});
  const double size = static_cast<double>(kParts) / claim.num_microbatches * kRanks / schedule.placement.stages();
  CostModel cost;
  cost.uniform = {size, size, size, claim.overlapped * size};
  const Timeline timeline = simulate(schedule, cost);
  const int peak = *std::max_element(timeline.peak_activations.begin(), timeline.peak_activations.end());
  return {timeline.makespan(), timeline.utilization(), peak * size, schedule.placement.is_bidirectional() ? 2 : 1};
}

double gain(const Case& claim, const Case& base) { return measure(claim).time / measure(base).time - 1; }

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }
std::string signed_percent(double share) { return fmt::format("{:+.1f}%", 100 * share); }
bool overlaps(const Case& claim) { return std::string(claim.schedule).starts_with("dualpipe"); }

std::string row(const Case& claim) {
  const Figures figures = measure(claim);
  return fmt::format("{:<18}{:>3}{:>6}{:>12}{:>13}{:>7}{:>8}{:>15}{:>15}\n", claim.schedule, claim.num_microbatches,
                     overlaps(claim) ? number(claim.overlapped) : "-", fmt::format("{}x", figures.parameters),
                     number(figures.peak_activations), number(figures.time), percent(figures.utilization),
                     signed_percent(gain(claim, kSmallest1f1b)), signed_percent(gain(claim, k1f1b)));
}

std::string table() {
  std::string text = fmt::format("{:<18}{:>3}{:>6}{:>12}{:>13}{:>7}{:>8}{:>15}{:>15}\n", "schedule", "M", "F&B",
                                 "parameters", "activations", "time", "busy", "to 1f1b, M=8", "to 1f1b, M=16");
  for (const Case& claim : kCases) {
    text += row(claim);
  }
  return text;
}

std::string words() {
  return fmt::format(
      "* \"Use from 50 % to over 80 %, time down 40 % on 8 devices\" holds where each schedule runs at its own\n"
      "  least M on one global batch: 1f1b at M={}, dualpipe at M={}, nothing overlapped: {} to {}, {}.\n"
      "* At equal M={} dualpipe changes 1f1b's time by {} where nothing overlaps (F&B = 3), {} at F&B = {}, {} at {}.\n"
      "* Where nothing overlaps zb1p takes {} against dualpipe's {}, with half the parameters.\n",
      kSmallest1f1b.num_microbatches, kNothingOverlaps.num_microbatches, percent(measure(kSmallest1f1b).utilization),
      percent(measure(kNothingOverlaps).utilization), signed_percent(gain(kNothingOverlaps, kSmallest1f1b)), kParts,
      signed_percent(gain(kNothingOverlaps, k1f1b)), signed_percent(gain(kSomeOverlap, k1f1b)),
      number(kSomeOverlap.overlapped), signed_percent(gain(kHalfTime, k1f1b)), number(kHalfTime.overlapped),
      number(measure(kZeroBubble).time), number(measure(kNothingOverlaps).time));
}

nlohmann::ordered_json to_json(const Case& claim) {
  const Figures figures = measure(claim);
  nlohmann::ordered_json json{{"schedule", claim.schedule},
                              {"num_microbatches", claim.num_microbatches},
                              {"overlapped", nullptr},
                              {"parameters", figures.parameters},
                              {"peak_activations", figures.peak_activations},
                              {"time", figures.time},
                              {"utilization", figures.utilization},
                              {"against_1f1b_m8", gain(claim, kSmallest1f1b)},
                              {"against_1f1b_m16", gain(claim, k1f1b)}};
  if (overlaps(claim)) {
    json["overlapped"] = claim.overlapped;
  }
  return json;
}

void run_claims(const std::string& format) {
  if (format == "json") {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Case& claim : kCases) {
      rows.push_back(to_json(claim));
    }
    fmt::print("{}\n", rows.dump(2));
    return;
  }
  fmt::print(
      "One model and one global batch on {} ranks, simulated. F = I = W = 1 for 1/{} of the batch in 1/{} of the\n"
      "model: a micro-batch at M={} takes twice as long, a stage of interleaved_1f1b and dualpipev half as long.\n"
      "A pair takes F&B. parameters: copies of the model over the ranks. activations: the most that a rank holds, in\n"
      "those of 1/{} of the batch in 1/{} of the model. busy: mean share of the ranks' time.\n\n{}\n{}",
      kRanks, kParts, kRanks, kSmallest1f1b.num_microbatches, kParts, kRanks, table(), words());
}

}  // namespace

void add_claims(CLI::App& app, int&) {
  auto format = std::make_shared<std::string>("table");
  CLI::App* command =
      app.add_subcommand("claims", "What the schedules give and when: the often quoted gains, simulated.");
  command->add_option("--format", *format, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  command->callback([format] { run_claims(*format); });
}

}  // namespace dualpipe::cli
