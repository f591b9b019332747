#include "plugin/runtime/failure.h"

#include <thread>
#include <utility>

namespace dualpipe {
namespace {

constexpr std::chrono::milliseconds kPoll{20};

std::string message(int rank, const FailureRecord& record) {
  if (rank == record.rank) {
    return record.to_string();
  }
  return "rank " + std::to_string(rank) + " stops: " + record.to_string();
}

}  // namespace

std::string FailureRecord::to_string() const {
  return "rank " + std::to_string(rank) + " failed in " + action + ": " + cause;
}

std::optional<FailureRecord> FailureChannel::wait_for_first(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < deadline) {
    if (auto record = first()) return record;
    std::this_thread::sleep_for(kPoll);
  }
  return std::nullopt;
}

PipelineError::PipelineError(int rank, FailureRecord record)
    : std::runtime_error(message(rank, record)), record_(std::move(record)) {}

}  // namespace dualpipe
