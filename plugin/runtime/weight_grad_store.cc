#include "plugin/runtime/weight_grad_store.h"

#include <set>
#include <utility>

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

thread_local WeightGradStore* current_store = nullptr;

std::string of_key(WeightGradStore::Key key) {
  return "stage " + std::to_string(key.stage) + ", micro-batch " + std::to_string(key.micro_batch);
}

}  // namespace

void WeightGradStore::begin() {
  check(!splitting_, "WeightGradStore::begin() while a backward is being split");
  splitting_ = true;
}

void WeightGradStore::put(std::function<void()> work, std::size_t bytes) {
  check(splitting_, "WeightGradStore::put() outside begin() and seal()");
  open_.push_back({std::move(work), bytes});
  pending_bytes_ += bytes;
  ++put_count_;
}

void WeightGradStore::seal(Key key) {
  check(splitting_, "WeightGradStore::seal() without begin()");
  check(!groups_.contains(key), "WeightGradStore::seal() of " + of_key(key) + ", which is sealed already");
  splitting_ = false;
  groups_.emplace(key, std::exchange(open_, {}));
}

void WeightGradStore::add(Key key, std::function<void()> work, std::size_t bytes) {
  groups_[key].push_back({std::move(work), bytes});
  pending_bytes_ += bytes;
}

void WeightGradStore::run(Key key) {
  auto group = groups_.extract(key);
  if (group.empty()) {
    throw ScheduleError("weight_grad_store", "W of " + of_key(key) +
                                                 " must come after its I and once only, but the store holds " +
                                                 (empty() ? "nothing" : describe()));
  }
  for (const Work& work : group.mapped()) pending_bytes_ -= work.bytes;
  for (Work& work : group.mapped()) std::exchange(work.run, {})();
}

void WeightGradStore::clear() {
  splitting_ = false;
  pending_bytes_ = 0;
  open_.clear();
  groups_.clear();
}

std::string WeightGradStore::describe() const {
  std::map<int, std::set<int>> by_stage;
  for (const auto& [key, work] : groups_) by_stage[key.stage].insert(key.micro_batch);
  std::string text;
  for (const auto& [stage, micro_batches] : by_stage) {
    text += (text.empty() ? "stage " : "; stage ") + std::to_string(stage);
    std::string separator = micro_batches.size() > 1 ? ": micro-batches " : ": micro-batch ";
    for (int micro_batch : micro_batches) text += std::exchange(separator, ", ") + std::to_string(micro_batch);
  }
  return text + " (" + std::to_string(pending_bytes_) + " bytes)";
}

WeightGradStore* WeightGradStore::current() { return current_store; }

WeightGradStore::Scope::Scope(WeightGradStore& store) : previous_(std::exchange(current_store, &store)) {}

WeightGradStore::Scope::~Scope() { current_store = previous_; }

}  // namespace dualpipe
