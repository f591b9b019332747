#include "examples/pretrain_gpt/failures/progress.h"

#include <utility>

#include "examples/pretrain_gpt/failures/failure.h"

namespace pretrain_gpt {

void Progress::enter(std::string part, std::chrono::milliseconds patience, bool waits) {
  const std::lock_guard lock(mutex_);
  part_ = std::move(part);
  patience_ = patience;
  waits_ = waits;
  ++entered_;
}

void Progress::set_waits(bool waits) {
  const std::lock_guard lock(mutex_);
  entered_ += waits != waits_ ? 1 : 0;
  waits_ = waits;
}

void Progress::follow(const ActivityLog* log) {
  const std::lock_guard lock(mutex_);
  log_ = log;
}

Standing Progress::now() const {
  const std::lock_guard lock(mutex_);
  if (log_ == nullptr) {
    return {part_, waits_, {}, entered_};
  }
  const Activity activity = log_->now();
  if (activity.action.empty()) {
    return {part_, waits_, {}, entered_ + activity.changes};
  }
  return {part_ + ", " + explain_action(activity.action), activity.waits, activity.peer, entered_ + activity.changes};
}

std::chrono::milliseconds Progress::patience() const {
  const std::lock_guard lock(mutex_);
  return patience_;
}

void Progress::write_log(const std::filesystem::path& folder, const std::string& failure) const noexcept {
  const std::lock_guard lock(mutex_);
  if (log_ != nullptr) {
    log_->write(folder, failure);
  }
}

}  // namespace pretrain_gpt
