// plugin/schedule/lower.h
//
// lower(): Schedule -> Program, the one pass that adds communication and gradient reduction to a compute-only schedule.
// The executor interprets a Program's row; nothing else decides when a message moves.
//
// Rules, per rank:
//  * SEND_F follows the F (SEND_B the B or I) whose result another rank needs; after a pair, SEND_F first. A hand-over
//    inside one rank (the turn of the V) is no message.
//  * RECV posts a receive. Receives of one directed edge are posted in the sender's order, as early as the edge has a
//    free slot: `slots` of them may be posted and not yet consumed. A message is consumed by the compute that needs it,
//    which frees its slot; messages may be consumed out of order. RECV_B is not posted before the rank's own F of the
//    same (stage, micro-batch), whose outputs give its shapes; the sender cannot have sent it, or anything after it,
//    earlier.
//  * WAIT_SEND stands where the peer's own later message proves that the transfer is done (a message that the peer sent
//    in or after the action that consumed ours has been consumed here), so it never blocks and what the send kept alive
//    is freed; sends without such a proof are waited for at the end of the row, in the order of sending.
//  * REDUCE_GRAD(s) follows the last W or B of stage s on the rank.
// Behind an action stand, in this order, its sends, the receives for which there are slots (by peer, ascending), the
// WAIT_SENDs that it proves (in the order of sending), its REDUCE_GRADs. A receive that an action cannot do without
// stands right before it at the latest, free slot or not: where `slots` are too few, validate() says so.
#pragma once

#include <functional>
#include <vector>

#include "plugin/schedule/schedule.h"

namespace dualpipe {

inline constexpr int kDefaultSlots = 2;

struct LowerOptions {
  int slots = kDefaultSlots;  // k per directed edge, at least 1.
  bool reduce_grad = true;    // Emit REDUCE_GRAD.
  // The closing run of W of each rank is left out of the row: the optimizer-step hook runs it. REDUCE_GRAD of a stage
  // with W left out is left out as well (the hook starts it).
  bool defer_tail_weight_gradients = false;
};

struct Program {
  std::string name;
  Placement placement;
  int num_microbatches = 0;
  int slots = kDefaultSlots;
  std::vector<Row> rows;             // Overlapped pairs stay pairs; communication stands as single actions.
  std::vector<Row> deferred_weight;  // Per rank, the closing W that defer_tail_weight_gradients left out; else empty.
};

// Throws ScheduleError where the schedule cannot be lowered (a stage whose result nobody computes on, an action that
// stands twice): run validate() first for violations as data.
Program lower(const Schedule& schedule, const LowerOptions& options = {});

// The rows of lower(), one rank at a time and in the order of ranks, for programs that need not be held at once.
void lower_rows(const Schedule& schedule, const LowerOptions& options,
                const std::function<void(Row row, Row deferred_weight)>& visit);

// The rows with I, W, B dropped and pairs reduced to their F: what evaluate() runs.
Schedule forward_only(const Schedule& schedule);

// The least k such that in-order channels with k slots per directed edge never block a rank for good: the largest
// number of earlier-sent, not yet consumed messages at any consumption, plus one. 1 where there is no message. A pair
// consumes for its F first, so that two messages of one edge for one pair can do with one slot; a Program, whose
// receives stand before the pair, posts both and wants two.
int least_slots(const Schedule& schedule);

}  // namespace dualpipe
