#include "plugin/runtime/failure_path.h"

#include <chrono>
#include <exception>
#include <utility>

#include "plugin/runtime/transport.h"

namespace dualpipe {
namespace {

constexpr std::chrono::seconds kEchoPatience{2};  // How long a lost connection waits for the record that explains it.

}  // namespace

FailurePath::FailurePath(int rank, std::vector<int> numbers, std::shared_ptr<FailureChannel> failures,
                         std::function<void(const FailureRecord&)> on_fatal)
    : rank_(rank), numbers_(std::move(numbers)), failures_(std::move(failures)), on_fatal_(std::move(on_fatal)) {}

void FailurePath::watch(std::function<void(const std::string& why)> abort) {
  if (!failures_) return;
  watchdog_ = std::make_unique<Watchdog>(failures_, [this, abort = std::move(abort)](const FailureRecord& record) {
    write_log(record);
    on_fatal_ ? call_on_fatal(record) : abort(record.to_string());
  });
}

void FailurePath::keep(std::shared_ptr<const RingLog> log, std::string folder) {
  log_ = std::move(log);
  folder_ = std::move(folder);
}

// A log that cannot be written must not hide the failure.
void FailurePath::write_log(const FailureRecord& record) {
  if (!log_) return;
  std::call_once(written_, [&] { log_->write(folder_, failure_json(record.rank, record.action, record.cause)); });
}

FailureRecord FailurePath::first_record(const FailureRecord& mine, bool echo) {
  if (!failures_) return mine;
  if (echo) {
    if (const auto first = failures_->wait_for_first(kEchoPatience)) return *first;
  }
  return failures_->record(mine);
}

void FailurePath::call_on_fatal(const FailureRecord& record) {
  std::call_once(told_, [&] { on_fatal_(record); });
}

// Called while the original exception is handled, which the new one is nested around.
void FailurePath::fail(FailureRecord mine, bool echo) {
  failed_ = mine;
  try {
    failed_ = first_record(mine, echo);
  } catch (const std::exception&) {
    // The channel is lost too; what this rank knows still stands.
  }
  write_log(*failed_);
  if (on_fatal_) call_on_fatal(*failed_);
  std::throw_with_nested(PipelineError(number(), *failed_));
}

void FailurePath::guarded(const std::function<std::string()>& action, const std::function<void()>& body) {
  if (failed_) throw PipelineError(number(), *failed_);
  try {
    body();
  } catch (const PeerError& error) {
    fail({numbers_.at(error.peer()), "an unknown action", error.what()}, true);
  } catch (const TransportError& error) {
    fail({number(), action(), error.what()}, true);
  } catch (const std::exception& error) {
    fail({number(), action(), error.what()}, false);
  } catch (...) {
    fail({number(), action(), "an exception of an unknown type"}, false);
  }
}

}  // namespace dualpipe
