#include "tests/stress/faults/faulty_parts.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

namespace dualpipe::stress {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr int kNowhere = 6;  // A channel that nobody else uses.

at::Tensor other_size(const at::Tensor& tensor) { return at::zeros({tensor.numel() + 1}, tensor.options()); }

void fill_nan(const TensorList& tensors) {
  const at::NoGradGuard no_grad;
  for (at::Tensor tensor : tensors) {
    if (tensor.is_floating_point()) tensor.fill_(kNotANumber);
  }
}

TensorList copies(const TensorList& tensors) {
  TensorList result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

class DoneTransfer : public Transfer {
 public:
  void wait() override {}
};

class FaultyTransfer : public Transfer {
 public:
  FaultyTransfer(std::unique_ptr<Transfer> transfer, std::shared_ptr<FaultPoints> points, TensorList becomes_nan)
      : transfer_(std::move(transfer)), points_(std::move(points)), becomes_nan_(std::move(becomes_nan)) {}

  void wait() override {
    points_->pass({Point::kWait});
    transfer_->wait();
    fill_nan(becomes_nan_);
  }

 private:
  std::unique_ptr<Transfer> transfer_;
  std::shared_ptr<FaultPoints> points_;
  TensorList becomes_nan_;
};

class FaultyTransport : public Transport {
 public:
  FaultyTransport(std::shared_ptr<Transport> transport, std::shared_ptr<FaultPoints> points)
      : transport_(std::move(transport)), points_(std::move(points)) {}

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  at::Device device() const override { return transport_->device(); }

  std::unique_ptr<Transfer> send(int peer, int channel, const TensorList& tensors) override {
    const std::optional<Fault> fault = points_->pass({Point::kSend, peer, channel});
    TensorList given = fault ? copies(tensors) : tensors;
    if (fault == Fault::kDrop) return watched(std::make_unique<DoneTransfer>());
    if (fault == Fault::kRepeat) extra_.push_back(transport_->send(peer, channel, given));
    if (fault == Fault::kWrongSize) given.front() = other_size(given.front());
    if (fault == Fault::kNan) fill_nan(given);
    return watched(transport_->send(peer, channel, given));
  }

  std::unique_ptr<Transfer> receive(int peer, int channel, const TensorList& into) override {
    const std::optional<Fault> fault = points_->pass({Point::kReceive, peer, channel});
    if (fault == Fault::kDrop) return watched(transport_->receive(peer, kNowhere, into));
    if (fault == Fault::kRepeat) extra_.push_back(transport_->receive(peer, channel, copies(into)));
    TensorList given = into;
    if (fault == Fault::kWrongSize) given.front() = other_size(given.front());
    return watched(transport_->receive(peer, channel, given), fault == Fault::kNan ? into : TensorList{});
  }

  void all_reduce_sum(at::Tensor& tensor) override { transport_->all_reduce_sum(tensor); }
  std::vector<std::string> all_gather(const std::string& bytes) override { return transport_->all_gather(bytes); }
  void broadcast(at::Tensor& tensor, int root) override { transport_->broadcast(tensor, root); }
  void abort(const std::string& why) override { transport_->abort(why); }

 private:
  std::unique_ptr<Transfer> watched(std::unique_ptr<Transfer> transfer, TensorList becomes_nan = {}) {
    return std::make_unique<FaultyTransfer>(std::move(transfer), points_, std::move(becomes_nan));
  }

  std::shared_ptr<Transport> transport_;
  std::shared_ptr<FaultPoints> points_;
  std::vector<std::unique_ptr<Transfer>> extra_;
};

at::Tensor pass(FaultPoints& points, const Passed& passed, const at::Tensor& tensor) {
  const std::optional<Fault> fault = points.pass(passed);
  if (fault == Fault::kNan) return tensor * kNotANumber;
  return fault == Fault::kWrongSize ? other_size(tensor) : tensor;
}

class FaultyStage : public StageModule {
 public:
  FaultyStage(int stage, std::int64_t width, std::shared_ptr<FaultPoints> points)
      : stage_(stage), points_(std::move(points)) {
    const at::Tensor values = at::arange(width * width, at::kFloat).add(stage).sin().div(2).view({width, width});
    weight_ = register_parameter("weight", values);
    weight_.register_hook([points = points_, stage](const at::Tensor& g) {
      return pass(*points, {Point::kWeight, stage}, g);
    });
  }

  TensorList forward(const TensorList& inputs) override {
    const std::optional<Fault> fault = points_->pass({Point::kForward, stage_});
    at::Tensor output = at::matmul(only_tensor(inputs), weight_).tanh();
    if (fault == Fault::kNan) output = output * kNotANumber;
    if (fault == Fault::kWrongSize) output = at::cat({output, output});
    if (output.requires_grad()) {
      output.register_hook([points = points_, stage = stage_](const at::Tensor& g) {
        return pass(*points, {Point::kBackward, stage}, g);
      });
    }
    return {output};
  }

 private:
  int stage_;
  std::shared_ptr<FaultPoints> points_;
  at::Tensor weight_;
};

}  // namespace

std::string to_string(Fault fault) {
  static constexpr const char* kNames[] = {"throw", "hang", "drop", "repeat", "wrong size", "NaN", "bad_alloc"};
  return kNames[static_cast<int>(fault)];
}

std::string to_string(Point point) {
  static constexpr const char* kNames[] = {"forward", "backward", "weight gradient", "send", "receive", "wait"};
  return kNames[static_cast<int>(point)];
}

bool can_strike(Fault fault, Point point) {
  const bool is_message = point == Point::kSend || point == Point::kReceive;
  if (fault == Fault::kDrop || fault == Fault::kRepeat) return is_message;
  if (fault == Fault::kWrongSize || fault == Fault::kNan) return point != Point::kWait;
  return true;
}

void FaultPoints::arm(std::size_t number, Fault fault) {
  armed_ = number;
  fault_ = fault;
}

std::optional<Fault> FaultPoints::pass(const Passed& passed) {
  const std::size_t number = seen_.size();
  seen_.push_back(passed);
  if (armed_ != number) return std::nullopt;
  if (fault_ == Fault::kThrow) throw std::runtime_error("an injected fault");
  if (fault_ == Fault::kBadAlloc) throw std::bad_alloc();
  if (fault_ != Fault::kHang) return fault_;
  clock_->sleep_for(kHang);
  return std::nullopt;
}

std::shared_ptr<Transport> make_faulty(std::shared_ptr<Transport> transport, std::shared_ptr<FaultPoints> points) {
  return std::make_shared<FaultyTransport>(std::move(transport), std::move(points));
}

std::shared_ptr<StageModule> make_faulty_stage(int stage, std::int64_t width, std::shared_ptr<FaultPoints> points) {
  return std::make_shared<FaultyStage>(stage, width, std::move(points));
}

}  // namespace dualpipe::stress
