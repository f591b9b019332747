// What overlap gains where exchanges between experts are slow: the pairs of DualPipeV in sequence, by the model's own
// hook, and by its phases. Alone, or torchrun --nproc-per-node 2 --no-python build/cpu/bin/custom_overlap.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "examples/custom_overlap/stage.h"
#include "examples/two_linears/launch.h"
#include "plugin/runtime/dualpipe.h"
#include "plugin/schedule/registry.h"

namespace custom_overlap {
namespace {

constexpr const char* kSchedule = "dualpipev";
constexpr int kRows = 192;  // Of a micro-batch.
constexpr int kSteps = 3;   // The first one warms up.
constexpr double kTolerance = 1e-10;
constexpr std::chrono::microseconds kPerExchange{3000};

struct Outcome {
  double step_seconds = 0;    // The faster one.
  double waited_seconds = 0;  // A step, doing nothing but wait for an exchange.
  int exchanges = 0;          // A step.
  std::string summary;
  std::string program;  // Of the first pair, if phases were merged.
  std::vector<at::Tensor> gradients;
};

// Every rank draws the same micro-batches and takes those that it is asked for.
dualpipe::MicroBatches draw(int count, const std::vector<int>& mine, int seed) {
  at::manual_seed(seed);
  std::vector<at::Tensor> all;
  for (int k = 0; k < count; ++k) all.push_back(at::randn({kRows, Stage::kWidth}, at::kDouble));
  dualpipe::MicroBatches chosen;
  for (int k : mine) chosen.push_back({all.at(k)});
  return chosen;
}

Outcome train(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int num_microbatches, Offer offer) {
  const auto link = c10::make_intrusive<Link>(kPerExchange);
  const dualpipe::Placement placement =
      dualpipe::builtin_registry().make(kSchedule, {group->getSize(), num_microbatches}).placement;
  std::vector<std::shared_ptr<dualpipe::StageModule>> stages;
  for (int stage : placement.stages_of(group->getRank())) {
    stages.push_back(std::make_shared<Stage>(stage, offer, link));
  }
  dualpipe::Pipeline pipeline(kSchedule, group, stages, {.num_microbatches = num_microbatches});
  const dualpipe::MicroBatches inputs = draw(num_microbatches, pipeline.input_micro_batches(), 1);
  const dualpipe::MicroBatches labels = draw(num_microbatches, pipeline.loss_micro_batches(), 2);
  const dualpipe::Criterion criterion([](const auto& y, const auto& t) { return (y[0] - t[0]).square().mean(); });

  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    const auto began = std::chrono::steady_clock::now();
    const double waited = link->waited_seconds();
    const int exchanges = link->exchanges();
    outcome.summary = pipeline.step(inputs, labels, criterion).statistics.overlap_summary();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    outcome.exchanges = link->exchanges() - exchanges;
    if (step > 0 && outcome.step_seconds > 0 && outcome.step_seconds <= seconds) continue;
    if (step == 0) continue;
    outcome.step_seconds = seconds;
    outcome.waited_seconds = link->waited_seconds() - waited;
  }
  if (!pipeline.pair_programs().empty()) outcome.program = print(pipeline.pair_programs().begin()->second);
  for (const dualpipe::StageParameter& parameter : pipeline.parameters()) {
    outcome.gradients.push_back(parameter.parameter.grad());
  }
  return outcome;
}

void print_outcome(const char* name, const Outcome& outcome) {
  fmt::print("{:<12} {:5.0f} ms a step, {:4.0f} ms of it waiting for {} exchanges; {}\n", name,
             1e3 * outcome.step_seconds, 1e3 * outcome.waited_seconds, outcome.exchanges, outcome.summary);
}

double worst_gradient(const Outcome& given, const Outcome& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < wanted.gradients.size(); ++i) {
    const at::Tensor error = given.gradients.at(i) - wanted.gradients[i];
    worst = std::max(worst, (error.norm() / wanted.gradients[i].norm()).item<double>());
  }
  return worst;
}

int run() {
  at::set_num_threads(1);
  const auto group = two_linears::process_group();
  const int num_microbatches = 8 * group->getSize();
  const Outcome sequence = train(group, num_microbatches, Offer::kNothing);
  const Outcome hook = train(group, num_microbatches, Offer::kHook);
  const Outcome phases = train(group, num_microbatches, Offer::kPhases);

  const double worst = std::max(worst_gradient(hook, sequence), worst_gradient(phases, sequence));
  const bool less = std::max(hook.waited_seconds, phases.waited_seconds) < sequence.waited_seconds;
  if (group->getRank() == 0) {
    print_outcome("in sequence", sequence);
    print_outcome("by hook", hook);
    print_outcome("by phases", phases);
    fmt::print("\nThe merged program of a pair:\n{}\n", phases.program);
  }
  const bool passed = worst <= kTolerance && less;
  fmt::print(
      "rank {}: the hook takes {:.2f}x of the sequence's time, phases {:.2f}x; every gradient within {:.1e} of "
      "the sequence's: {}\n",
      group->getRank(), hook.step_seconds / sequence.step_seconds, phases.step_seconds / sequence.step_seconds, worst,
      passed ? "passed" : "FAILED");
  return passed ? 0 : 1;
}

}  // namespace
}  // namespace custom_overlap

int main() {
  try {
    return custom_overlap::run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
