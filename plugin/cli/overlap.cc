#include <fmt/core.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

#include "plugin/analysis/simulate_pair.h"
#include "plugin/analysis/stage_cost.h"
#include "plugin/cli/commands.h"
#include "plugin/cli/layer_options.h"
#include "plugin/cli/output.h"
#include "plugin/cli/summary.h"
#include "plugin/schedule/error.h"

namespace dualpipe::cli {
namespace {

struct OverlapOptions {
  LayerOptions layers;
  double slowdown = 1;
  std::string format = "text";
  std::string output;
};

struct Overlap {
  PairProgram merged;
  PairTimeline timeline;
  PairTimeline sequence;
  double in_a_row = 0;  // Of each pair among equal ones.
  StageCost cost;
};

Overlap make_overlap(const Phases& phases, const MergeOptions& options) {
  Overlap overlap;
  overlap.merged = merge(phases, phases, options);
  overlap.timeline = simulate(overlap.merged, options);
  overlap.sequence = simulate(in_sequence(phases, phases), options);
  overlap.in_a_row = makespan_in_a_row(overlap.merged, options);
  overlap.cost = stage_cost(phases, options);
  return overlap;
}

std::string cost_option(const StageCost& cost) {
  return fmt::format("forward={},backward_input={},backward_weight={},overlapped={}", number(cost.forward),
                     number(cost.backward_input), number(cost.backward_weight), number(cost.overlapped));
}

std::string line(const std::string& name, const std::string& value) { return fmt::format("{:<12}{}\n", name, value); }

// Without what the order of summation leaves behind.
double exposed_of(const PairTimeline& timeline) {
  const double exposed = timeline.exposed();
  return std::abs(exposed) <= 1e-9 * timeline.makespan ? 0 : exposed;
}

std::string describe_exposed(const PairTimeline& timeline) {
  const double exposed = exposed_of(timeline);
  return timeline.communication > 0
             ? fmt::format("{}; {:.1f}% of all-to-all", number(exposed), 100 * exposed / timeline.communication)
             : number(exposed);
}

std::string describe_merged(const Overlap& overlap) {
  const double merged = overlap.timeline.makespan;
  return merged > 0 ? fmt::format("{}; {:.2f}x as fast", number(merged), overlap.sequence.makespan / merged)
                    : number(merged);
}

// The head over the two columns, which are as wide as what print() made.
std::string head(const std::string& text) {
  const std::size_t bar = text.find('|');
  if (bar == std::string::npos) {
    return "computes\n--------\n";
  }
  const std::size_t width = bar - text.rfind('\n', bar) - 1;
  return fmt::format("{:<{}}| travels beside it\n{}+------------------\n", "computes", width, std::string(width, '-'));
}

void write_text(std::ostream& out, const Overlap& overlap) {
  const std::string program = print(overlap.merged);
  out << head(program) << program << "\n"
      << line("compute", number(overlap.timeline.compute)) << line("all-to-all", number(overlap.timeline.communication))
      << line("exposed", describe_exposed(overlap.timeline)) << line("sequence", number(overlap.sequence.makespan))
      << line("merged", describe_merged(overlap)) << line("in a row", number(overlap.in_a_row))
      << line("for plan", "--cost " + cost_option(overlap.cost));
}

nlohmann::ordered_json to_json(const PairProgram& program, const PairSpan& span) {
  return {{"name", name_of(program, span.part, span.phase)},
          {"communication", span.communication},
          {"start", span.start},
          {"end", span.end}};
}

void write_json(std::ostream& out, const Overlap& overlap) {
  nlohmann::ordered_json json;
  json["steps"] = nlohmann::ordered_json::array();
  for (const PairStep& step : overlap.merged.steps) {
    json["steps"].push_back(to_string(overlap.merged, step));
  }
  json["spans"] = nlohmann::ordered_json::array();
  for (const PairSpan& span : overlap.timeline.spans) {
    json["spans"].push_back(to_json(overlap.merged, span));
  }
  json["compute"] = overlap.timeline.compute;
  json["all_to_all"] = overlap.timeline.communication;
  json["exposed"] = exposed_of(overlap.timeline);
  json["sequence"] = overlap.sequence.makespan;
  json["merged"] = overlap.timeline.makespan;
  json["in_a_row"] = overlap.in_a_row;
  json["cost"] = cost_option(overlap.cost);
  out << json.dump(2) << "\n";
}

int run_overlap(const OverlapOptions& options) {
  const Phases phases = make_phases("overlap", options.layers);
  if (!(options.slowdown >= 1) || options.slowdown > 1e6) {
    throw ScheduleError("overlap",
                        fmt::format("--slowdown must be from 1 (none) to 1e6, got {}", number(options.slowdown)));
  }
  const Overlap overlap = make_overlap(phases, {.slowdown = options.slowdown});
  write_output(options.output, [&](std::ostream& out) {
    options.format == "json" ? write_json(out, overlap) : write_text(out, overlap);
  });
  return kExitOk;
}

}  // namespace

void add_overlap(CLI::App& app, int& status) {
  auto options = std::make_shared<OverlapOptions>();
  CLI::App* command =
      app.add_subcommand("overlap", "Show how all-to-all hides behind compute in an overlapped pair of two chunks.");
  add_layer_options(*command, options->layers);
  command->add_option("--slowdown", options->slowdown, "By how much a compute takes longer beside an all-to-all")
      ->capture_default_str();
  command->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "File to write instead of standard output");
  command->footer(
      "The forward of one micro-batch and the backward of another through equal chunks, in the order that training\n"
      "takes. Beside each compute stand the communications that are under way or queued; exposed is what the pair\n"
      "takes beyond its computes. In a row of pairs the W behind the last send run behind the first exchange of the\n"
      "next pair, where a rank has the gradients that it begins with.");
  command->callback([options, &status] { status = run_overlap(*options); });
}

}  // namespace dualpipe::cli
