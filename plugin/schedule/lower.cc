#include "plugin/schedule/lower.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "plugin/schedule/rules.h"
#include "plugin/schedule/send_waits.h"
#include "plugin/schedule/traffic.h"

namespace dualpipe {
namespace {

// Both directed edges between a rank and a peer, while the rank's row is written.
struct Link {
  int peer;
  std::vector<Message> incoming;  // In the order of sending, which is the order of posting.
  std::vector<int> due;           // The column that needs incoming[i], or a message sent after it.
  std::size_t posted = 0;
  std::size_t taken = 0;
  std::vector<int> proofs;  // proof_columns() of the sends, in the order of sending.
  std::size_t sent = 0;
};

std::vector<int> due_columns(const std::vector<Message>& incoming) {
  std::vector<int> due(incoming.size());
  int earliest = std::numeric_limits<int>::max();
  for (std::size_t i = incoming.size(); i-- > 0;) {
    earliest = std::min(earliest, incoming[i].taken_at);
    due[i] = earliest;
  }
  return due;
}

Link make_link(const Traffic& traffic, int rank, int peer, int columns) {
  Link link{peer, traffic.edge(peer, rank), {}, 0, 0, {}, 0};
  link.due = due_columns(link.incoming);
  link.proofs = proof_columns(traffic.edge(rank, peer), link.incoming, columns);
  return link;
}

int closing_weights(const Row& row) {
  const auto closes = [](const Action& action) { return action.op.kind == Kind::kBackwardWeight; };
  return static_cast<int>(std::find_if_not(row.rbegin(), row.rend(), closes) - row.rbegin());
}

bool ends_gradient(Kind kind) { return kind == Kind::kBackward || kind == Kind::kBackwardWeight; }

// Writes one rank's row.
class RowLowering {
 public:
  RowLowering(const Schedule& schedule, const Traffic& traffic, int rank, const LowerOptions& options)
      : traffic_(traffic),
        rank_(rank),
        row_(schedule.rows[rank]),
        options_(options),
        columns_(static_cast<int>(row_.size())),
        body_(columns_ - (options.defer_tail_weight_gradients ? closing_weights(row_) : 0)),
        last_gradient_(schedule.placement.stages()) {
    for (const int peer : traffic.peers_of(rank)) {
      links_.push_back(make_link(traffic, rank, peer, columns_));
    }
    plan_waits();
    plan_reductions();
  }

  Row lowered() {
    result_.reserve(most_actions());
    post_into_free_slots(-1);
    for (int column = 0; column < body_; ++column) {
      const Action& action = row_[column];
      post_due(column);
      result_.push_back(action);
      send_results(action);
      free_slots(action);
      post_into_free_slots(column);
      wait_for_sends(column);
      reduce(action, column);
    }
    wait_for_sends(columns_);
    return std::move(result_);
  }

  Row deferred() const { return Row(row_.begin() + body_, row_.end()); }

 private:
  void plan_waits() {
    std::vector<SendWait> waits;
    waits.reserve(2 * row_.size());
    for (const Action& action : row_) {
      for_each_op(action, [&](const Op& op) {
        if (const std::optional<int> peer = traffic_.receiver_of(op, rank_)) {
          Link& link = link_to(*peer);
          waits.push_back({link.proofs[link.sent++], send_after(op)});
        }
      });
    }
    waits_ = by_column(waits, columns_ + 1);
  }

  void plan_reductions() {
    for (int column = 0; column < columns_; ++column) {
      for_each_op(row_[column], [&](const Op& op) {
        if (ends_gradient(op.kind)) {
          last_gradient_[op.stage] = column;
        }
      });
    }
  }

  // Exact but for the reductions: a send and its wait, a receive per message. A row of 16,384 micro-batches is not to
  // be copied while it grows.
  std::size_t most_actions() const {
    std::size_t most = body_ + 2 * waits_.size() + last_gradient_.size();
    for (const Link& link : links_) {
      most += link.incoming.size();
    }
    return most;
  }

  Link& link_to(int peer) {
    return *std::find_if(links_.begin(), links_.end(), [peer](const Link& link) { return link.peer == peer; });
  }

  void put(const Op& op) { result_.push_back(single(op)); }

  void post_next(Link& link) { put(link.incoming[link.posted++].recv); }

  // Shapes of a gradient are those of the rank's own outputs.
  bool knows_shapes(const Op& recv, int column) const {
    return recv.kind == Kind::kRecvForward || traffic_.forward_column(recv.stage, recv.micro_batch) <= column;
  }

  void post_into_free_slots(int column) {
    for (Link& link : links_) {
      while (link.posted < link.incoming.size() && link.posted < link.taken + options_.slots &&
             knows_shapes(link.incoming[link.posted].recv, column)) {
        post_next(link);
      }
    }
  }

  void post_due(int column) {
    for (Link& link : links_) {
      while (link.posted < link.due.size() && link.due[link.posted] <= column) {
        post_next(link);
      }
    }
  }

  void send_results(const Action& action) {
    for_each_op(action, [&](const Op& op) {
      if (traffic_.receiver_of(op, rank_)) {
        put(send_after(op));
      }
    });
  }

  void free_slots(const Action& action) {
    for_each_op(action, [&](const Op& op) {
      if (const std::optional<int> peer = traffic_.sender_to(op, rank_)) {
        ++link_to(*peer).taken;
      }
    });
  }

  void wait_for_sends(int column) {
    for (; waited_ < waits_.size() && waits_[waited_].column == column; ++waited_) {
      const Op& send = waits_[waited_].send;
      const Kind kind = send.kind == Kind::kSendForward ? Kind::kWaitSendForward : Kind::kWaitSendBackward;
      put(make_op(send.stage, kind, send.micro_batch));
    }
  }

  void reduce(const Action& action, int column) {
    for_each_op(action, [&](const Op& op) {
      if (options_.reduce_grad && ends_gradient(op.kind) && last_gradient_[op.stage] == column) {
        put(make_op(op.stage, Kind::kReduceGrad));
      }
    });
  }

  const Traffic& traffic_;
  const int rank_;
  const Row& row_;
  const LowerOptions& options_;
  const int columns_;
  const int body_;  // Columns that stay; the rest is the deferred closing run.
  std::vector<Link> links_;
  std::vector<SendWait> waits_;
  std::size_t waited_ = 0;
  std::vector<int> last_gradient_;  // By stage: the column of its last B or W.
  Row result_;
};

}  // namespace

void lower_rows(const Schedule& schedule, const LowerOptions& options,
                const std::function<void(Row row, Row deferred_weight)>& visit) {
  require_at_least(schedule.name, "slots", 1, options.slots);
  const Traffic traffic(schedule);
  for (int rank = 0; rank < schedule.placement.ranks(); ++rank) {
    RowLowering lowering(schedule, traffic, rank, options);
    Row row = lowering.lowered();
    visit(std::move(row), lowering.deferred());
  }
}

Program lower(const Schedule& schedule, const LowerOptions& options) {
  Program program{schedule.name, schedule.placement, schedule.num_microbatches, options.slots, {}, {}};
  lower_rows(schedule, options, [&](Row row, Row deferred_weight) {
    program.rows.push_back(std::move(row));
    program.deferred_weight.push_back(std::move(deferred_weight));
  });
  return program;
}

}  // namespace dualpipe
