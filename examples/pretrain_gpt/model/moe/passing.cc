#include "examples/pretrain_gpt/model/moe/passing.h"

#include <ATen/ATen.h>

#include <utility>

namespace pretrain_gpt {
namespace {

class Between : public PendingTensors {
 public:
  Between(Tensors before, std::unique_ptr<PendingTensors> pending, Tensors after)
      : before_(std::move(before)), pending_(std::move(pending)), after_(std::move(after)) {}

  Tensors wait() override {
    const Tensors middle = pending_->wait();
    Tensors all = std::move(before_);
    all.insert(all.end(), middle.begin(), middle.end());
    all.insert(all.end(), after_.begin(), after_.end());
    return all;
  }

 private:
  Tensors before_;
  std::unique_ptr<PendingTensors> pending_;
  Tensors after_;
};

}  // namespace

std::unique_ptr<PendingTensors> between(Tensors before, std::unique_ptr<PendingTensors> pending, Tensors after) {
  return std::make_unique<Between>(std::move(before), std::move(pending), std::move(after));
}

}  // namespace pretrain_gpt
