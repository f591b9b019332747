// Trains one step of a pipeline of one rank and prints how many losses it gave.
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <iostream>

#include "plugin/runtime/dualpipe.h"

namespace {

c10::intrusive_ptr<c10d::ProcessGroup> group_of_one() {
  using c10d::ProcessGroup;
  auto store = c10::make_intrusive<c10d::HashStore>();
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto group = c10::make_intrusive<ProcessGroup>(store, 0, 1);
  group->setBackend(at::kCPU, ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, 0, 1, options));
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace

int main() {
  auto stage = dualpipe::make_stage(std::make_shared<torch::nn::LinearImpl>(8, 8));
  dualpipe::Pipeline pipeline("1f1b", group_of_one(), {stage}, {.num_microbatches = 4});
  const dualpipe::Criterion criterion(
      [](const auto& outputs, const auto& labels) { return torch::mse_loss(outputs[0], labels[0]); });
  const auto result = pipeline.step({torch::randn({16, 8})}, {torch::randn({16, 8})}, criterion);
  std::cout << "losses " << result.losses.size() << "\n";
}
