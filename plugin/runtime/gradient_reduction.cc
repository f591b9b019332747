#include "plugin/runtime/gradient_reduction.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <sstream>
#include <utility>

#include "plugin/runtime/name_list.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

constexpr int kChannel = 1;

class NoReduction final : public GradientReduction {
 public:
  void start(int, Gradients&) override {}
  void finish(Gradients&) override {}
};

at::ScalarType gradient_dtype(const StageParameter& parameter) {
  return parameter.main_grad.defined() ? parameter.main_grad.scalar_type() : parameter.parameter.scalar_type();
}

// A part of a stage's message: the gradients of one dtype one after another, then a flag for each, 1 where this rank
// has a gradient and 0 where it has none.
struct Bucket {
  std::vector<std::size_t> indices;  // Of parameters, by name.
  at::Tensor mine;
  at::Tensor theirs;
};

at::Tensor flatten(const std::vector<std::size_t>& indices, Gradients& gradients, at::ScalarType dtype) {
  TensorList parts;
  const auto options = gradients.parameters()[indices.front()].parameter.options().dtype(dtype).requires_grad(false);
  std::vector<double> flags;
  for (std::size_t index : indices) {
    const at::Tensor& gradient = gradients.step_gradient(index);
    flags.push_back(gradient.defined() ? 1 : 0);
    parts.push_back(gradient.defined() ? gradient.reshape({-1}).to(dtype)
                                       : at::zeros({gradients.parameters()[index].parameter.numel()}, options));
  }
  parts.push_back(at::tensor(flags, at::kDouble).to(options));
  return at::cat(parts);
}

std::vector<Bucket> make_buckets(int stage, Gradients& gradients) {
  std::vector<std::size_t> indices = gradients.indices_of(stage);
  const auto& parameters = gradients.parameters();
  std::sort(indices.begin(), indices.end(),
            [&](std::size_t a, std::size_t b) { return parameters[a].name < parameters[b].name; });
  std::map<at::ScalarType, Bucket> by_dtype;
  for (std::size_t index : indices) by_dtype[gradient_dtype(parameters[index])].indices.push_back(index);
  std::vector<Bucket> buckets;
  for (auto& [dtype, bucket] : by_dtype) {
    bucket.mine = flatten(bucket.indices, gradients, dtype);
    bucket.theirs = at::empty_like(bucket.mine);
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

void refuse_sparse(int stage, Gradients& gradients) {
  for (std::size_t index : gradients.indices_of(stage)) {
    const at::Tensor& gradient = gradients.step_gradient(index);
    if (!gradient.defined() || gradient.layout() == at::kStrided) continue;
    throw ScheduleError("mirrored_reduction", "gradients must be dense, got a sparse one for \"" +
                                                  gradients.parameters()[index].name +
                                                  "\"; an embedding with sparse=false works");
  }
}

void write_back(const Bucket& bucket, const at::Tensor& sums, Gradients& gradients) {
  const auto count = static_cast<std::int64_t>(bucket.indices.size());
  const at::Tensor flags = sums.narrow(0, sums.numel() - count, count).to(at::kDouble).cpu();
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t index = bucket.indices[i];
    const at::Tensor& parameter = gradients.parameters()[index].parameter;
    at::Tensor& gradient = gradients.step_gradient(index);
    const at::Tensor sum = sums.narrow(0, offset, parameter.numel()).view(parameter.sizes());
    offset += parameter.numel();
    if (gradient.defined()) {
      gradient.copy_(sum);
    } else if (flags.data_ptr<double>()[i] > 0) {
      gradient = sum.clone();
    }
  }
}

class MirroredReduction final : public GradientReduction {
 public:
  MirroredReduction(std::shared_ptr<Transport> transport, int mirror)
      : transport_(std::move(transport)), mirror_(mirror) {}

  void start(int stage, Gradients& gradients) override;
  void finish(Gradients& gradients) override;

 private:
  struct Exchange {
    std::vector<Bucket> buckets;
    std::unique_ptr<Transfer> receive;
    std::unique_ptr<Transfer> send;
  };

  // Into the lower rank's buffer, whichever it is here: the same order of addition on both.
  at::Tensor sum(const Bucket& bucket) const {
    const bool is_lower = transport_->rank() < mirror_;
    at::Tensor lower = is_lower ? bucket.mine : bucket.theirs;
    return lower.add_(is_lower ? bucket.theirs : bucket.mine);
  }

  std::shared_ptr<Transport> transport_;
  int mirror_;
  std::deque<Exchange> under_way_;  // In the order of starting.
};

void MirroredReduction::start(int stage, Gradients& gradients) {
  at::NoGradGuard no_grad;
  refuse_sparse(stage, gradients);
  std::vector<Bucket> buckets = make_buckets(stage, gradients);
  if (buckets.empty()) return;
  TensorList mine;
  TensorList theirs;
  for (const Bucket& bucket : buckets) {
    mine.push_back(bucket.mine);
    theirs.push_back(bucket.theirs);
  }
  // The exchange is listed before it is posted: what was posted stays alive where the send throws.
  Exchange& exchange = under_way_.emplace_back();
  exchange.buckets = std::move(buckets);
  exchange.receive = transport_->receive(mirror_, kChannel, theirs);
  exchange.send = transport_->send(mirror_, kChannel, mine);
}

void MirroredReduction::finish(Gradients& gradients) {
  at::NoGradGuard no_grad;
  while (!under_way_.empty()) {
    Exchange& exchange = under_way_.front();
    exchange.receive->wait();
    exchange.send->wait();
    for (const Bucket& bucket : exchange.buckets) write_back(bucket, sum(bucket), gradients);
    under_way_.pop_front();
  }
}

std::string describe(const StageParameter& parameter) {
  std::ostringstream text;
  text << "\"" << parameter.name << "\" (stage " << parameter.stage << ", " << parameter.parameter.sizes() << ", "
       << c10::toString(gradient_dtype(parameter)) << ")";
  return text.str();
}

// The first that one list has and the other lacks, or "nothing".
std::string first_missing(const std::vector<std::string>& from, const std::vector<std::string>& in) {
  for (const std::string& name : from) {
    if (std::find(in.begin(), in.end(), name) == in.end()) return name;
  }
  return "nothing";
}

}  // namespace

std::unique_ptr<GradientReduction> no_reduction() { return std::make_unique<NoReduction>(); }

std::unique_ptr<GradientReduction> mirrored_reduction(std::shared_ptr<Transport> transport, int mirror) {
  return std::make_unique<MirroredReduction>(std::move(transport), mirror);
}

void check_mirrors(Transport& transport, int mirror, const Gradients& gradients) {
  std::vector<std::string> own;
  for (const StageParameter& parameter : gradients.parameters()) own.push_back(describe(parameter));
  std::sort(own.begin(), own.end());
  own.insert(own.begin(), std::to_string(mirror));

  std::vector<std::vector<std::string>> by_rank;
  for (const std::string& bytes : transport.all_gather(encode_names(own))) by_rank.push_back(decode_names(bytes));
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto other = static_cast<std::size_t>(std::stoi(by_rank[rank].front()));
    check(by_rank.at(other).front() == std::to_string(rank), "a mirror's mirror is the rank itself");
    const std::vector<std::string> a(by_rank[rank].begin() + 1, by_rank[rank].end());
    const std::vector<std::string> b(by_rank[other].begin() + 1, by_rank[other].end());
    if (a == b) continue;
    throw ScheduleError("mirrored_reduction", "ranks " + std::to_string(rank) + " and " + std::to_string(other) +
                                                  " hold the same stages and must train the same parameters, got " +
                                                  first_missing(a, b) + " on rank " + std::to_string(rank) +
                                                  " alone and " + first_missing(b, a) + " on rank " +
                                                  std::to_string(other) + " alone; freeze and build both alike");
  }
}

}  // namespace dualpipe
