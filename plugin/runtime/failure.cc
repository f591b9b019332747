#include "plugin/runtime/failure.h"

#include <utility>

namespace dualpipe {
namespace {

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

PipelineError::PipelineError(int rank, FailureRecord record)
    : std::runtime_error(message(rank, record)), record_(std::move(record)) {}

}  // namespace dualpipe
