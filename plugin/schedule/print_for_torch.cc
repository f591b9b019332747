#include <algorithm>
#include <map>
#include <ostream>

#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"
#include "plugin/schedule/traffic.h"

namespace dualpipe {
namespace {

// Rewrites one rank's row: every receive right before the action that needs it, or needs one that is sent after it; a
// wait behind every reduction, where torch's own lowering puts it.
class TorchRow {
 public:
  explicit TorchRow(const Placement& placement) : placement_(placement) {}

  Row rewrite(const Row& row) {
    for (const Action& action : row) {
      if (is_recv(action.op.kind)) {
        posted_[sender_of(action.op)].push_back(action.op);
        continue;
      }
      for_each_op(action, [&](const Op& op) { receive_for(op); });
      row_.push_back(action);
      if (action.op.kind == Kind::kReduceGrad) {
        row_.push_back(single(make_op(action.op.stage, Kind::kWaitReduceGrad)));
      }
    }
    return std::move(row_);
  }

 private:
  int sender_of(const Op& recv) const {
    return placement_.rank_of(recv.kind == Kind::kRecvForward ? recv.stage - 1 : recv.stage + 1, recv.micro_batch);
  }

  void receive_for(const Op& op) {
    if (!is_compute(op.kind) || op.kind == Kind::kBackwardWeight) {
      return;
    }
    const Kind kind = op.kind == Kind::kForward ? Kind::kRecvForward : Kind::kRecvBackward;
    for (auto& [sender, posted] : posted_) {
      const auto needed = std::find(posted.begin(), posted.end(), make_op(op.stage, kind, op.micro_batch));
      if (needed != posted.end()) {
        std::transform(posted.begin(), needed + 1, std::back_inserter(row_), single);
        posted.erase(posted.begin(), needed + 1);
      }
    }
  }

  const Placement& placement_;
  std::map<int, std::vector<Op>> posted_;  // By sender, in its order; as many as there are slots.
  Row row_;
};

void require_takeable(const Program& program) {
  if (program.placement.is_bidirectional()) {
    throw ScheduleError(program.name,
                        "torch takes schedules whose stages each stand on one rank, got stages on two; "
                        "dualpipev works");
  }
  for (const Row& deferred : program.deferred_weight) {
    if (!deferred.empty()) {
      throw ScheduleError(program.name, "torch takes rows with all weight gradients in them, got a deferred " +
                                            to_string(deferred.front()) + "; defer_tail_weight_gradients: false works");
    }
  }
}

}  // namespace

void print_for_torch(std::ostream& out, const Program& program) {
  require_takeable(program);
  for (const Row& row : program.rows) {
    out << print_row(TorchRow(program.placement).rewrite(row)) << '\n';
  }
}

}  // namespace dualpipe
