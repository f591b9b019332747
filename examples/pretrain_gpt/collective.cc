#include "examples/pretrain_gpt/collective.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/pretrain_gpt/failures/exit_code.h"

namespace pretrain_gpt {
namespace {

constexpr const char* kSum = "a sum over ranks";

}  // namespace

void wait_for(c10d::Work& work, const char* what, std::optional<int> peer) {
  bool arrived = false;
  try {
    arrived = work.wait();
  } catch (const std::exception& error) {
    throw PeerLost(fmt::format("{} failed: {}", what, text_of(error)), peer);
  }
  if (!arrived) {
    throw PeerLost(std::string(what) + " was aborted", peer);
  }
}

c10::intrusive_ptr<c10d::Work> posted(const char* what, const std::function<c10::intrusive_ptr<c10d::Work>()>& post,
                                      std::optional<int> peer) {
  try {
    return post();
  } catch (const c10::DistError& error) {
    throw PeerLost(fmt::format("{} failed: {}", what, text_of(error)), peer);
  } catch (const std::runtime_error& error) {  // Of Gloo.
    throw PeerLost(fmt::format("{} failed: {}", what, error.what()), peer);
  }
}

std::string text_of(const std::exception& error) {
  const auto* from_c10 = dynamic_cast<const c10::Error*>(&error);
  return from_c10 != nullptr ? from_c10->what_without_backtrace() : error.what();
}

at::Tensor PendingSum::wait() {
  wait_for(*work, kSum);
  return tensor;
}

PendingSum post_sum(c10d::ProcessGroup& group, at::Tensor tensor) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10::intrusive_ptr<c10d::Work> work = posted(kSum, [&] { return group.allreduce(tensors); });
  return {std::move(tensors[0]), std::move(work)};
}

at::Tensor sum_over(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Tensor tensor) {
  return group && group->getSize() > 1 ? post_sum(*group, std::move(tensor)).wait() : tensor;
}

}  // namespace pretrain_gpt
