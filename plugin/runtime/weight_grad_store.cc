#include "plugin/runtime/weight_grad_store.h"

#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

thread_local WeightGradStore* current_store = nullptr;

std::string of_key(WeightGradStore::Key key) {
  return "stage " + std::to_string(key.first) + ", micro-batch " + std::to_string(key.second);
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
  std::string text;
  for (auto group = groups_.begin(); group != groups_.end(); ++group) {
    const int stage = group->first.first;
    const bool first = group == groups_.begin() || std::prev(group)->first.first != stage;
    if (!first) {
      text += ", ";
    } else {
      const auto next = std::next(group);
      const bool several = next != groups_.end() && next->first.first == stage;
      text += text.empty() ? "" : "; ";
      text += "stage " + std::to_string(stage) + (several ? ": micro-batches " : ": micro-batch ");
    }
    text += std::to_string(group->first.second);
  }
  return text + " (" + std::to_string(pending_bytes_) + " bytes)";
}

WeightGradStore* WeightGradStore::current() { return current_store; }

WeightGradStore::Scope::Scope(WeightGradStore& store) : previous_(std::exchange(current_store, &store)) {}

WeightGradStore::Scope::~Scope() { current_store = previous_; }

}  // namespace dualpipe
