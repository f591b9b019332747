#include "examples/custom_overlap/exchange.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace custom_overlap {
namespace {

class Rows : public torch::autograd::Function<Rows> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& rows, Way way, LinkPtr link,
                            Link::Arrival arrival) {
    link->wait(arrival);
    ctx->saved_data["dispatch"] = way == Way::kDispatch;
    ctx->saved_data["link"] = c10::IValue::make_capsule(link);
    return moved(rows, way);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const Way way = ctx->saved_data["dispatch"].toBool() ? Way::kDispatch : Way::kCombine;
    const auto link = c10::static_intrusive_pointer_cast<Link>(ctx->saved_data["link"].toCapsule());
    const Link::Arrival arrival = link->post();
    if (link->meanwhile) link->meanwhile();
    link->wait(arrival);
    return {moved(gradients[0], opposite(way)), {}, {}, {}};
  }
};

class Pending : public dualpipe::PendingExchange {
 public:
  Pending(LinkPtr link, dualpipe::TensorList result)
      : link_(std::move(link)), arrival_(link_->post()), result_(std::move(result)) {}
  dualpipe::TensorList wait() override {
    link_->wait(arrival_);
    return result_;
  }

 private:
  LinkPtr link_;
  Link::Arrival arrival_;
  dualpipe::TensorList result_;
};

}  // namespace

at::Tensor moved(const at::Tensor& rows, Way way) { return rows.roll(way == Way::kDispatch ? 1 : -1, 0); }

at::Tensor arrive(const at::Tensor& rows, Way way, const LinkPtr& link, Link::Arrival arrival) {
  return Rows::apply(rows, way, link, arrival);
}

at::Tensor exchange(const at::Tensor& rows, Way way, const LinkPtr& link) {
  return arrive(rows, way, link, link->post());
}

dualpipe::Phase exchange_phase(const char* name, Way way, const LinkPtr& link) {
  dualpipe::Phase phase;
  phase.spec.name = name;
  phase.spec.kind = dualpipe::PhaseKind::kCommunication;
  phase.exchange = [=](const dualpipe::TensorList& inputs, dualpipe::PhaseContext&) {
    const at::Tensor rows = moved(inputs.at(1), way).set_requires_grad(inputs[1].requires_grad());
    return std::make_unique<Pending>(link, dualpipe::TensorList{inputs[0], rows});
  };
  phase.exchange_back = [=](const dualpipe::TensorList& gradients, dualpipe::PhaseContext&) {
    return std::make_unique<Pending>(link,
                                     dualpipe::TensorList{gradients.at(0), moved(gradients.at(1), opposite(way))});
  };
  return phase;
}

}  // namespace custom_overlap
