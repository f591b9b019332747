#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "plugin/runtime/optimizer_hook.h"

int main() {  // torchrun --nproc-per-node 2 --no-python build/cpu/bin/embedding
  const int rank = std::stoi(std::getenv("RANK")), size = std::stoi(std::getenv("WORLD_SIZE"));
  c10d::TCPStoreOptions where;  // torchrun's agent hosts the store.
  where.port = std::stoi(std::getenv("MASTER_PORT"));
  auto store = c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), where);
  auto gloo = c10d::ProcessGroupGloo::Options::create();
  gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, gloo));
  group->setDefaultBackend(c10d::ProcessGroup::GLOO);

  std::vector<torch::nn::Linear> layers;  // Stages r and P-1-r.
  for (int stage : {rank, size - 1 - rank}) {
    torch::manual_seed(stage);  // Mirrors start equal, and stay equal to the bit.
    layers.emplace_back(32, 32);
  }
  dualpipe::Pipeline pipeline("dualpipe", group,
                              {dualpipe::make_stage(layers[0].ptr()), dualpipe::make_stage(layers[1].ptr())},
                              {.num_microbatches = 4 * size, .mean_loss_on_every_rank = true});
  std::vector<at::Tensor> parameters = layers[0]->parameters();
  for (const auto& parameter : layers[1]->parameters()) parameters.push_back(parameter);
  torch::optim::SGD optimizer(parameters, 0.1);
  dualpipe::OptimizerHook hook(pipeline, optimizer, /*clip_grad=*/1.0);
  const dualpipe::Criterion criterion([](const auto& y, const auto& t) { return torch::mse_loss(y[0], t[0]); });
  const bool at_an_end = rank == 0 || rank == size - 1;  // Inputs and losses of half of the micro-batches each.
  for (int step = 0; step < 20; ++step) {
    const dualpipe::TensorList x = at_an_end ? dualpipe::TensorList{torch::ones({64, 32})} : dualpipe::TensorList{};
    const auto result = pipeline.step(x, x, criterion);
    hook.step(), optimizer.zero_grad();
    if (rank == 0) std::cout << "step " << step << ": loss " << *result.mean_loss << "\n";
  }
}
