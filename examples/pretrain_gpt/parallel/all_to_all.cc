#include "examples/pretrain_gpt/parallel/all_to_all.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "examples/pretrain_gpt/collective.h"
#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

constexpr const char* kWhat = "an all-to-all";

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::string even_split(std::int64_t rows, std::int64_t ranks) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), rows / ranks);
  counts[0] += rows % ranks;
  return fmt::format("{}", fmt::join(counts, ", "));
}

void validate_counts(const std::vector<std::int64_t>& counts, std::int64_t rows, const LayerGroup& group,
                     const std::string& origin, const std::string& what) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (counts.size() != ranks || std::any_of(counts.begin(), counts.end(), [](auto count) { return count < 0; })) {
    throw UserError(origin, fmt::format("an all-to-all must have one count of rows to {} of at least 0 for each of the "
                                        "{} ranks, got {}; for example {}",
                                        what, ranks, fmt::join(counts, ", "), even_split(rows, group.size())));
  }
}

void validate(const RowSplits& splits, std::int64_t rows, const LayerGroup& group, const std::string& origin) {
  validate_counts(splits.send, rows, group, origin, "send");
  validate_counts(splits.receive, rows, group, origin, "receive");
  if (sum(splits.send) != rows) {
    throw UserError(origin,
                    fmt::format("the rows that an all-to-all sends must add up to the rows given = {}, got {} = "
                                "{}; for example {}",
                                rows, fmt::join(splits.send, " + "), sum(splits.send), even_split(rows, group.size())));
  }
  const auto own = static_cast<std::size_t>(group.rank());
  if (splits.send[own] != splits.receive[own]) {
    throw UserError(origin, fmt::format("rank {} must receive as many rows from itself as it sends to itself = {}, got "
                                        "{}; for example {}",
                                        own, splits.send[own], splits.receive[own], splits.send[own]));
  }
}

// [rows, bytes of a row]: a form that every backend moves whatever the type, bfloat16 over Gloo among them.
at::Tensor as_bytes(const at::Tensor& rows) {
  return (rows.dim() == 1 ? rows.unsqueeze(1) : rows.flatten(1)).view(at::kByte);
}

class PendingRows : public PendingTensors {
 public:
  PendingRows(at::Tensor sent, at::Tensor received, c10::intrusive_ptr<c10d::Work> work, bool requires_grad)
      : sent_(std::move(sent)), received_(std::move(received)), work_(std::move(work)), requires_grad_(requires_grad) {}

  Tensors wait() override {
    if (work_) {
      wait_for(*work_, kWhat);
    }
    work_.reset();
    sent_.reset();
    return {received_.requires_grad_(requires_grad_)};
  }

 private:
  at::Tensor sent_, received_;
  c10::intrusive_ptr<c10d::Work> work_;  // Null: nothing moves.
  bool requires_grad_;
};

c10::intrusive_ptr<c10d::Work> post(const at::Tensor& sent, const at::Tensor& received, const RowSplits& splits,
                                    const LayerGroup& group) {
  at::Tensor out = as_bytes(received), in = as_bytes(sent);
  std::vector<std::int64_t> receive = splits.receive, send = splits.send;
// Its newer name is not in every LibTorch that this builds with.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return posted(kWhat, [&] { return group.group->alltoall_base(out, in, receive, send); });
#pragma GCC diagnostic pop
}

}  // namespace

std::unique_ptr<PendingTensors> start_all_to_all(const at::Tensor& rows, const RowSplits& splits,
                                                 const LayerGroup& group, const std::string& origin) {
  validate(splits, rows.size(0), group, origin);
  if (group.size() == 1) {
    return std::make_unique<PendingRows>(at::Tensor(), rows.detach(), nullptr, rows.requires_grad());
  }
  const at::Tensor sent = rows.detach().contiguous();
  std::vector<std::int64_t> shape = sent.sizes().vec();
  shape[0] = sum(splits.receive);
  const at::Tensor received = at::empty(shape, sent.options());
  return std::make_unique<PendingRows>(sent, received, post(sent, received, splits, group), rows.requires_grad());
}

}  // namespace pretrain_gpt
