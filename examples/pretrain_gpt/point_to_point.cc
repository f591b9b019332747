#include "examples/pretrain_gpt/point_to_point.h"

#include <ATen/ATen.h>

#include <vector>

#include "examples/pretrain_gpt/collective.h"

namespace pretrain_gpt {
namespace {

constexpr const char* kWhat = "a message between two ranks";

}  // namespace

at::Tensor PostedMessage::wait() {
  wait_for(*work, kWhat);
  return tensor;
}

PostedMessage post_receive(c10d::ProcessGroup& group, int from, int tag, at::IntArrayRef shape, at::ScalarType dtype) {
  std::vector<at::Tensor> tensors{at::empty(shape, dtype)};
  c10::intrusive_ptr<c10d::Work> work = group.recv(tensors, from, tag);
  return {tensors[0], std::move(work)};
}

void SendQueue::send(const at::Tensor& tensor, int tag) {
  std::vector<at::Tensor> tensors{tensor.detach().contiguous()};
  pending_.push_back({tensors[0], group_->send(tensors, to_, tag)});
}

void SendQueue::complete_until(std::int64_t count) {
  for (; completed_ < count && !pending_.empty(); ++completed_) {
    pending_.front().wait();
    pending_.pop_front();
  }
}

void SendQueue::complete_all() {
  complete_until(completed_ + static_cast<std::int64_t>(pending_.size()));
  completed_ = 0;
}

}  // namespace pretrain_gpt
