#include "tests/support/gloo_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace dualpipe {

c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                       std::chrono::milliseconds timeout) {
  using c10d::ProcessGroup;
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
  auto backend = c10::make_intrusive<ProcessGroupGloo>(prefixed, rank, size, options);
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  return group;
}

}  // namespace dualpipe
