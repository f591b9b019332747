#include "plugin/schedule/lower.h"

namespace dualpipe {
namespace {

Row forwards_of(const Row& row) {
  Row forwards;
  for (const Action& action : row) {
    if (action.op.kind == Kind::kForward) {
      forwards.push_back(single(action.op));
    }
  }
  return forwards;
}

}  // namespace

Schedule forward_only(const Schedule& schedule) {
  Schedule result{schedule.name, schedule.placement, schedule.num_microbatches, {}};
  for (const Row& row : schedule.rows) {
    result.rows.push_back(forwards_of(row));
  }
  return result;
}

}  // namespace dualpipe
