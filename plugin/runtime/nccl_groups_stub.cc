#include "plugin/runtime/nccl_groups.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

[[noreturn]] void refuse() {
  throw ScheduleError(
      "process_group",
      "NCCL is not built in: configure with -DDUALPIPE_WITH_CUDA=ON (preset cuda; of the Python package: pip install "
      "--no-build-isolation . -C cmake.define.DUALPIPE_WITH_CUDA=ON), or use a gloo group");
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                  std::chrono::milliseconds, int) {
  refuse();
}

std::vector<EdgeGroup> make_nccl_edge_groups(const c10::intrusive_ptr<c10d::Store>&, int, const std::vector<Link>&,
                                             std::chrono::milliseconds, int) {
  refuse();
}

bool nccl_is_built_in() { return false; }

}  // namespace dualpipe
