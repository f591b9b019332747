#include "plugin/runtime/gradient_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "plugin/runtime/gradient_buffer.h"

namespace dualpipe {
namespace {

constexpr int kChannel = 1;

std::vector<ExchangedGradients> divide_by_dtype(std::vector<std::size_t> indices, Gradients& gradients) {
  const auto& parameters = gradients.parameters();
  std::sort(indices.begin(), indices.end(),
            [&](std::size_t a, std::size_t b) { return parameters[a].name < parameters[b].name; });
  std::map<at::ScalarType, ExchangedGradients> by_dtype;
  for (std::size_t index : indices) by_dtype[gradient_dtype(parameters[index])].indices.push_back(index);
  std::vector<ExchangedGradients> parts;
  for (auto& [dtype, part] : by_dtype) {
    TensorList flat = flat_gradients(part.indices, gradients, dtype);
    flat.push_back(gradient_flags(part.indices, gradients, dtype));
    part.mine = at::cat(flat);
    part.theirs = at::empty_like(part.mine);
    parts.push_back(std::move(part));
  }
  return parts;
}

void restore(const ExchangedGradients& part, const at::Tensor& sums, Gradients& gradients) {
  const auto count = static_cast<std::int64_t>(part.indices.size());
  restore_gradients(part.indices, sums, sums.narrow(0, sums.numel() - count, count), gradients);
}

// Into the lower rank's buffer, whichever it is here: the same order of addition on both.
at::Tensor sum(const ExchangedGradients& part, bool is_lower) {
  at::Tensor lower = is_lower ? part.mine : part.theirs;
  return lower.add_(is_lower ? part.theirs : part.mine);
}

}  // namespace

GradientExchange::GradientExchange(int peer, std::vector<std::size_t> indices, Gradients& gradients) : peer_(peer) {
  at::NoGradGuard no_grad;
  refuse_sparse("mirrored_reduction", indices, gradients);
  parts_ = divide_by_dtype(std::move(indices), gradients);
}

void GradientExchange::post(Transport& transport) {
  TensorList mine;
  TensorList theirs;
  for (const ExchangedGradients& part : parts_) {
    mine.push_back(part.mine);
    theirs.push_back(part.theirs);
  }
  receive_ = transport.receive(peer_, kChannel, theirs);
  send_ = transport.send(peer_, kChannel, mine);
}

void GradientExchange::finish(const Transport& transport, Gradients& gradients) {
  at::NoGradGuard no_grad;
  receive_->wait();
  send_->wait();
  for (const ExchangedGradients& part : parts_) restore(part, sum(part, transport.rank() < peer_), gradients);
}

}  // namespace dualpipe
