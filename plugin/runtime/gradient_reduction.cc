#include "plugin/runtime/gradient_reduction.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "plugin/runtime/gradient_buffer.h"
#include "plugin/runtime/gradient_exchange.h"
#include "plugin/runtime/name_list.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

class NoReduction final : public GradientReduction {
 public:
  void start(int, Gradients&) override {}
  void finish(Gradients&) override {}
};

class MirroredReduction final : public GradientReduction {
 public:
  MirroredReduction(std::shared_ptr<Transport> transport, int mirror)
      : transport_(std::move(transport)), mirror_(mirror) {}

  void start(int stage, Gradients& gradients) override {
    std::vector<std::size_t> indices = gradients.indices_of(stage);
    if (indices.empty()) return;
    // Listed before it is posted: what was posted stays alive where the send throws.
    under_way_.emplace_back(mirror_, std::move(indices), gradients).post(*transport_);
  }

  void finish(Gradients& gradients) override {
    for (; !under_way_.empty(); under_way_.pop_front()) under_way_.front().finish(*transport_, gradients);
  }

 private:
  std::shared_ptr<Transport> transport_;
  int mirror_;
  std::deque<GradientExchange> under_way_;  // In the order of starting.
};

// Waits with a peer's message until all stages that contribute to it are done.
class TiedReduction final : public GradientReduction {
 public:
  TiedReduction(std::shared_ptr<Transport> transport, TiedParameters tied, std::unique_ptr<GradientReduction> rest,
                bool of_sums)
      : transport_(std::move(transport)), tied_(std::move(tied)), rest_(std::move(rest)), of_sums_(of_sums) {}

  void start(int stage, Gradients& gradients) override {
    rest_->start(stage, gradients);
    started_.insert(stage);
    if (of_sums_) return;
    for (const auto& [peer, indices] : tied_) {
      if (!posted_.contains(peer) && is_complete(indices, gradients)) post(peer, indices, gradients);
    }
  }

  void finish(Gradients& gradients) override {
    rest_->finish(gradients);
    if (of_sums_) {
      for (const auto& [peer, indices] : tied_) post(peer, indices, gradients);
    }
    for (auto& [peer, exchange] : posted_) exchange.finish(*transport_, gradients);
    posted_.clear();
    started_.clear();
  }

 private:
  bool is_complete(const std::vector<std::size_t>& indices, const Gradients& gradients) const {
    return std::all_of(indices.begin(), indices.end(),
                       [&](std::size_t index) { return started_.contains(gradients.parameters()[index].stage); });
  }

  void post(int peer, const std::vector<std::size_t>& indices, Gradients& gradients) {
    posted_.emplace(peer, GradientExchange(peer, indices, gradients)).first->second.post(*transport_);
  }

  std::shared_ptr<Transport> transport_;
  TiedParameters tied_;
  std::unique_ptr<GradientReduction> rest_;
  bool of_sums_;
  std::set<int> started_;
  std::map<int, GradientExchange> posted_;  // By peer.
};

// A rank that trains a logical parameter, and a text about it that all its holders have to agree on.
struct Holder {
  int rank;
  std::string text;
};

std::string form_of(const StageParameter& parameter) {
  std::ostringstream text;
  text << parameter.parameter.sizes() << " " << c10::toString(gradient_dtype(parameter));
  return text.str();
}

std::string values_of(const StageParameter& parameter) {
  const at::Tensor values = parameter.parameter.detach().to(at::kDouble);
  std::ostringstream text;
  text << std::setprecision(17) << "sum " << values.sum().item<double>() << ", norm " << values.norm().item<double>();
  return text.str();
}

// By full name.
std::map<std::string, std::vector<Holder>> gather_holders(
    Collectives& ranks, const std::vector<StageParameter>& parameters,
    const std::function<std::string(const StageParameter&)>& text) {
  std::vector<std::string> own;
  for (const StageParameter& parameter : parameters) {
    own.push_back(full_name(parameter));
    own.push_back(text(parameter));
  }
  const std::vector<std::string> gathered = ranks.all_gather(encode_names(own));
  std::map<std::string, std::vector<Holder>> holders;
  for (std::size_t rank = 0; rank < gathered.size(); ++rank) {
    const std::vector<std::string> entries = decode_names(gathered[rank]);
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      holders[entries[i]].push_back({static_cast<int>(rank), entries[i + 1]});
    }
  }
  return holders;
}

void require_equal(const std::string& origin, const std::string& name, const std::vector<Holder>& held,
                   const std::string& rule) {
  for (const Holder& holder : held) {
    if (holder.text == held.front().text) continue;
    throw ScheduleError(origin, "copies of \"" + name + "\" " + rule + ", got " + held.front().text + " on rank " +
                                    std::to_string(held.front().rank) + " and " + holder.text + " on rank " +
                                    std::to_string(holder.rank));
  }
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

std::unique_ptr<GradientReduction> tied_reduction(std::shared_ptr<Transport> transport, TiedParameters tied,
                                                  std::unique_ptr<GradientReduction> rest, bool of_sums) {
  if (tied.empty()) return rest;
  return std::make_unique<TiedReduction>(std::move(transport), std::move(tied), std::move(rest), of_sums);
}

TiedParameters find_tied(Transport& transport, std::optional<int> mirror,
                         const std::vector<StageParameter>& parameters) {
  const std::map<std::string, std::vector<Holder>> holders = gather_holders(transport, parameters, form_of);
  for (const auto& [name, held] : holders) {
    if (held.size() > 2) {
      throw ScheduleError("tied_reduction", "a logical parameter must be on two ranks at most, got \"" + name +
                                                "\" on " + std::to_string(held.size()));
    }
    require_equal("tied_reduction", name, held, "must have one shape and one dtype of its gradient");
  }
  TiedParameters tied;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const Holder& holder : holders.at(full_name(parameters[i]))) {
      if (holder.rank != transport.rank() && holder.rank != mirror) tied[holder.rank].push_back(i);
    }
  }
  return tied;
}

void check_copies(Collectives& ranks, const std::vector<StageParameter>& parameters) {
  for (const auto& [name, held] : gather_holders(ranks, parameters, values_of)) {
    require_equal("copies", name, held, "must start with the same values (one seed, one checkpoint)");
  }
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
