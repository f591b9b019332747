// plugin/runtime/failure_path.h
//
// How a pipeline fails: the first exception of a rank ends it. Recorded, told to the others, thrown as PipelineError,
// nested around the original; afterwards every call throws.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plugin/runtime/failure.h"
#include "plugin/runtime/ring_log.h"
#include "plugin/runtime/store_failure_channel.h"

namespace dualpipe {

class FailurePath {
 public:
  // `numbers`: of the pipeline's ranks in records, by rank; `failures` and `on_fatal` may be empty.
  FailurePath(int rank, std::vector<int> numbers, std::shared_ptr<FailureChannel> failures,
              std::function<void(const FailureRecord&)> on_fatal);

  // From now on another rank's failure calls on_fatal or, without one, `abort` with the record.
  void watch(std::function<void(const std::string& why)> abort);

  // A failure, this rank's or another's, writes `log` into `folder`.
  void keep(std::shared_ptr<const RingLog> log, std::string folder);

  // `action` names what is being done, where it fails.
  void guarded(const std::function<std::string()>& action, const std::function<void()>& body);

 private:
  [[noreturn]] void fail(FailureRecord mine, bool echo);
  FailureRecord first_record(const FailureRecord& mine, bool echo);
  void call_on_fatal(const FailureRecord& record);
  void write_log(const FailureRecord& record);
  int number() const { return numbers_[rank_]; }

  int rank_;
  std::vector<int> numbers_;
  std::shared_ptr<FailureChannel> failures_;
  std::function<void(const FailureRecord&)> on_fatal_;
  std::optional<FailureRecord> failed_;
  std::once_flag told_;  // on_fatal is called once.
  std::once_flag written_;
  std::shared_ptr<const RingLog> log_;
  std::string folder_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace dualpipe
