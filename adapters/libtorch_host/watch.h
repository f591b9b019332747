// adapters/libtorch_host/watch.h
//
// What the trainer's watch needs of a pipeline: what it is doing, and its failures in the trainer's words.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "examples/pretrain_gpt/failures/activity.h"
#include "plugin/runtime/failure.h"
#include "plugin/runtime/ring_log.h"

namespace dualpipe::libtorch_host {

class RingActivity : public pretrain_gpt::ActivityLog {
 public:
  explicit RingActivity(std::shared_ptr<const RingLog> log) : log_(std::move(log)) {}

  pretrain_gpt::Activity now() const override;
  void write(const std::filesystem::path& folder, const std::string& failure) const noexcept override;

 private:
  std::shared_ptr<const RingLog> log_;
};

// Throws pretrain_gpt::PeerLost where the failure may be the echo of another rank's, else pretrain_gpt::ActionError.
// `numbers`: the run's, of the pipeline's ranks.
[[noreturn]] void rethrow_for_trainer(const PipelineError& error, const std::vector<int>& numbers);

// What `body` returns.
template <typename Body>
auto for_trainer(const std::vector<int>& numbers, const Body& body) {
  try {
    return body();
  } catch (const PipelineError& error) {
    rethrow_for_trainer(error, numbers);
  }
}

}  // namespace dualpipe::libtorch_host
