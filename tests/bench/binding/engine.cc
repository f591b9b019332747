// bench_binding_engine SCHEDULE STEPS: CPU seconds per action of each step, a line each, of one rank whose stages
// multiply by a weight. What bench_binding.py does in Python, without Python.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "plugin/runtime/dualpipe.h"
#include "plugin/runtime/loopback_transport.h"

namespace dualpipe::bench {
namespace {

constexpr int kMicroBatches = 64;

struct Product : StageModule {
  Product() : weight(register_parameter("weight", at::ones({8}))) {}
  TensorList forward(const TensorList& inputs) override { return {inputs[0] * weight}; }
  at::Tensor weight;
};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void run(const std::string& schedule, int steps) {
  const std::vector<std::shared_ptr<Transport>> ranks = make_loopback(1);
  std::vector<std::shared_ptr<StageModule>> stages{std::make_shared<Product>()};
  if (schedule == "dualpipev") stages.push_back(std::make_shared<Product>());
  Pipeline pipeline(schedule, ranks[0], stages, {.num_microbatches = kMicroBatches});
  const MicroBatches inputs(kMicroBatches, {at::ones({1, 8})});
  const Criterion criterion(
      [](const TensorList& outputs, const TensorList& labels) { return (outputs[0] - labels[0]).square().mean(); });
  for (int i = 0; i < steps; ++i) {
    const double began = cpu_seconds();
    const StepResult result = pipeline.step(inputs, inputs, criterion);
    fmt::print("{}\n", (cpu_seconds() - began) / static_cast<double>(result.statistics.spans.size()));
  }
}

}  // namespace
}  // namespace dualpipe::bench

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  at::set_num_threads(1);
  dualpipe::bench::run(argv[1], std::stoi(argv[2]));
  return 0;
}
