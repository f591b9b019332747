#include "plugin/runtime/nccl_groups.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace dualpipe {
namespace {

c10::intrusive_ptr<c10d::Backend> make_edge_group(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  const Link& link, std::chrono::milliseconds timeout, int max_ctas) {
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(link.to_string(), store);
  return make_nccl_group(prefixed, rank == link.from ? 0 : 1, 2, timeout, max_ctas);
}

// The communicator comes to be, and its connection with it, when the first byte moves.
void warm(c10d::Backend& group) {
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  const at::Device device = guard.getDevice();
  std::vector<at::Tensor> byte{at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(device))};
  const auto work = group.getRank() == 0 ? group.send(byte, 1, 0) : group.recv(byte, 0, 0);
  work->wait();
  guard.synchronizeDevice(device.index());
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                  std::chrono::milliseconds timeout, int max_ctas) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  if (max_ctas > 0) {
    options->config.minCTAs = 1;
    options->config.maxCTAs = max_ctas;
  }
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

std::vector<EdgeGroup> make_nccl_edge_groups(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             const std::vector<Link>& links, std::chrono::milliseconds timeout,
                                             int max_ctas) {
  std::vector<EdgeGroup> groups;
  for (const Link& link : links) {
    if (rank == link.from || rank == link.to) {
      groups.push_back({link, make_edge_group(store, rank, link, timeout, max_ctas)});
      warm(*groups.back().group);
    }
  }
  return groups;
}

bool nccl_is_built_in() { return true; }

}  // namespace dualpipe
