#include <fmt/core.h>

#include <map>
#include <string>

#include "plugin/analysis/closed_form.h"
#include "plugin/cli/commands.h"
#include "plugin/schedule/registry.h"

namespace dualpipe::cli {
namespace {

const std::map<std::string, std::string>& rules() {
  static const std::map<std::string, std::string> kRules = {
      {"1f1b", "any P and M"},
      {"interleaved_1f1b", "M a multiple of P; --virtual-pipeline-model-parallel-size >= 2"},
      {"zb1p", "any P and M"},
      {"dualpipe", "P even, M even, M >= 2P; each stage on two ranks"},
      {"dualpipev", "M >= 2P; 2P stages, two per rank"},
  };
  return kRules;
}

void run_schedules() {
  fmt::print("P ranks, M micro-batches over both directions, B = I + W the full backward\n\n");
  fmt::print("{:<18}{:<66}{}\n", "name", "rule", "idle time of a rank");
  for (const std::string& name : builtin_registry().names()) {
    const auto rule = rules().find(name);
    const ClosedForm form = closed_form(name);
    fmt::print("{:<18}{:<66}{}\n", name, rule == rules().end() ? "" : rule->second,
               form.formula.empty() ? "see plan" : form.formula);
  }
  fmt::print("{:<18}{}\n", "auto", "any P and M; the best of these, or an order that a search finds (plan --help)");
  fmt::print("{:<18}{}\n", "FILE.csv", "a line per rank, cells like 0F7, 3B2, 0I1, 0W1 and (0F7;7B3)OVERLAP_F_B");
}

}  // namespace

void add_schedules(CLI::App& app, int&) {
  app.add_subcommand("schedules", "List the schedules with their rules.")->callback(run_schedules);
}

}  // namespace dualpipe::cli
