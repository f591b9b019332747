#include "adapters/python/binding/renumbered_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "plugin/schedule/error.h"

namespace dualpipe::python {
namespace {

// Where each number of the pipeline is in the group.
std::vector<int> inverse_of(const std::vector<int>& mapping, int size) {
  std::vector<int> inverse(size, -1);
  bool fits = static_cast<int>(mapping.size()) == size;
  for (std::size_t g = 0; fits && g < mapping.size(); ++g) {
    fits = mapping[g] >= 0 && mapping[g] < size && inverse[mapping[g]] < 0;
    if (fits) inverse[mapping[g]] = static_cast<int>(g);
  }
  if (fits) return inverse;
  throw ScheduleError("rank_mapping", fmt::format("must hold each of 0 .. {} once, got [{}]; None keeps the ranks of "
                                                  "the group",
                                                  size - 1, fmt::join(mapping, ", ")));
}

class RenumberedTransport : public Transport {
 public:
  RenumberedTransport(std::shared_ptr<Transport> transport, std::vector<int> mapping)
      : transport_(std::move(transport)), mapping_(std::move(mapping)), inverse_(inverse_of(mapping_, size())) {}

  int rank() const override { return mapping_[transport_->rank()]; }
  int size() const override { return transport_->size(); }
  void all_reduce_sum(at::Tensor& tensor) override { transport_->all_reduce_sum(tensor); }
  std::vector<std::string> all_gather(const std::string& bytes) override {
    std::vector<std::string> by_group_rank = transport_->all_gather(bytes);
    std::vector<std::string> by_rank;
    for (const int group_rank : inverse_) by_rank.push_back(std::move(by_group_rank[group_rank]));
    return by_rank;
  }
  void abort(const std::string& why) override { transport_->abort(why); }
  at::Device device() const override { return transport_->device(); }
  std::unique_ptr<Transfer> send(int peer, int channel, const TensorList& tensors) override {
    return renumbering_errors([&] { return transport_->send(inverse_[peer], channel, tensors); });
  }
  std::unique_ptr<Transfer> receive(int peer, int channel, const TensorList& into) override {
    return renumbering_errors([&] { return transport_->receive(inverse_[peer], channel, into); });
  }
  void broadcast(at::Tensor& tensor, int root) override { transport_->broadcast(tensor, inverse_[root]); }

 private:
  class RenumberedTransfer : public Transfer {
   public:
    RenumberedTransfer(RenumberedTransport& owner, std::unique_ptr<Transfer> transfer)
        : owner_(owner), transfer_(std::move(transfer)) {}
    void wait() override {
      try {
        transfer_->wait();
      } catch (const PeerError& error) {
        owner_.rethrow(error);
      }
    }

   private:
    RenumberedTransport& owner_;  // Outlives its transfers, as every transport does.
    std::unique_ptr<Transfer> transfer_;
  };

  [[noreturn]] void rethrow(const PeerError& error) const { throw PeerError(mapping_[error.peer()], error.what()); }
  template <typename Start>
  std::unique_ptr<Transfer> renumbering_errors(Start start) {
    try {
      return std::make_unique<RenumberedTransfer>(*this, start());
    } catch (const PeerError& error) {
      rethrow(error);
    }
  }

  std::shared_ptr<Transport> transport_;
  std::vector<int> mapping_;  // By rank of the group.
  std::vector<int> inverse_;  // By rank of the pipeline.
};

}  // namespace

std::shared_ptr<Transport> renumber(std::shared_ptr<Transport> transport, std::vector<int> mapping) {
  return std::make_shared<RenumberedTransport>(std::move(transport), std::move(mapping));
}

}  // namespace dualpipe::python
