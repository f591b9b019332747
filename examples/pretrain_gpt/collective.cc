#include "examples/pretrain_gpt/collective.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace pretrain_gpt {

void wait_for(c10d::Work& work, const char* what) {
  if (!work.wait()) {
    throw std::runtime_error(std::string(what) + " was aborted");
  }
}

at::Tensor PendingSum::wait() {
  wait_for(*work, "a sum over ranks");
  return tensor;
}

PendingSum post_sum(c10d::ProcessGroup& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10::intrusive_ptr<c10d::Work> work = group.allreduce(tensors);
  return {std::move(tensors[0]), std::move(work)};
}

at::Tensor sum_over(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Tensor tensor) {
  return group && group->getSize() > 1 ? post_sum(*group, std::move(tensor)).wait() : tensor;
}

}  // namespace pretrain_gpt
