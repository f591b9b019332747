#include "adapters/libtorch_host/watch.h"

#include <exception>

#include "examples/pretrain_gpt/failures/exit_code.h"
#include "plugin/runtime/transport.h"

namespace dualpipe::libtorch_host {

pretrain_gpt::Activity RingActivity::now() const {
  RingStanding standing = log_->standing();
  return {std::move(standing.action), standing.waits, standing.peer, standing.changes};
}

void RingActivity::write(const std::filesystem::path& folder, const std::string& failure) const noexcept {
  log_->write(folder, failure);
}

void rethrow_for_trainer(const PipelineError& error, const std::vector<int>& numbers) {
  const FailureRecord& record = error.record();
  try {
    std::rethrow_if_nested(error);
  } catch (const PeerError& lost) {
    throw pretrain_gpt::PeerLost(record.cause, numbers.at(lost.peer()));
  } catch (const TransportError&) {
    throw pretrain_gpt::PeerLost(record.cause);
  } catch (const pretrain_gpt::PeerLost&) {
    throw;
  } catch (const std::exception&) {
    throw pretrain_gpt::ActionError(record.action, record.cause);
  }
  throw pretrain_gpt::ActionError(record.action, record.cause);
}

}  // namespace dualpipe::libtorch_host
