#include "plugin/compare/postmortem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "plugin/schedule/error.h"
#include "plugin/schedule/text.h"

namespace dualpipe {
namespace {

using Rings = std::map<int, const RingFile*>;

Rings by_rank(const std::vector<RingFile>& rings) {
  Rings result;
  for (const RingFile& ring : rings) result[ring.rank] = &ring;
  return result;
}

bool is_at_hand(const RingAction& action) { return action.started && !action.done; }

// The innermost: the one that began last, whenever it was posted.
const RingAction* at_hand(const RingFile& ring) {
  const RingAction* innermost = nullptr;
  for (const RingAction& action : ring.actions) {
    if (is_at_hand(action) && (innermost == nullptr || *action.started >= *innermost->started)) innermost = &action;
  }
  return innermost;
}

const RingAction* last_done(const RingFile& ring) {
  const RingAction* last = nullptr;
  for (const RingAction& action : ring.actions) {
    if (action.done && (last == nullptr || *action.done >= *last->done)) last = &action;
  }
  return last;
}

// "1RECV_F3" and "0SEND_F3" name one message; nothing for what is none.
std::optional<std::string> other_end(const std::string& text) {
  try {
    Action action = parse_action(text);
    switch (action.op.kind) {
      case Kind::kRecvForward:
        return to_string(make_op(action.op.stage - 1, Kind::kSendForward, action.op.micro_batch));
      case Kind::kRecvBackward:
        return to_string(make_op(action.op.stage + 1, Kind::kSendBackward, action.op.micro_batch));
      case Kind::kSendForward:
        return to_string(make_op(action.op.stage + 1, Kind::kRecvForward, action.op.micro_batch));
      case Kind::kSendBackward:
        return to_string(make_op(action.op.stage - 1, Kind::kRecvBackward, action.op.micro_batch));
      default:
        return std::nullopt;
    }
  } catch (const ScheduleError&) {
    return std::nullopt;
  }
}

// Steps repeat names: this step's message is younger than the end of the same one in the step before.
double end_of_earlier(const RingFile& ring, const RingAction& waiting) {
  double end = std::numeric_limits<double>::lowest();
  for (const RingAction& action : ring.actions) {
    if (action.action == waiting.action && action.peer == waiting.peer && action.done)
      end = std::max(end, *action.done);
  }
  return end;
}

std::string describe_at_hand(const RingFile& ring) {
  const RingAction* action = at_hand(ring);
  return action ? "it is at " + action->action : "it is between actions";
}

// Ranks leave one after another, and those that are still there go on.
std::string describe_posted(const RingAction& counterpart, int peer, const RingFile& ring) {
  if (counterpart.posted > ring.written)
    return fmt::format("rank {} posted {} {:.3f} s later, when rank {} had left", peer, counterpart.action,
                       counterpart.posted - ring.written, ring.rank);
  return fmt::format("rank {} has posted {}, {} bytes: the message is under way, or its link is broken", peer,
                     counterpart.action, counterpart.bytes);
}

std::string find_out(const Rings& rings, const RingFile& ring, const RingAction& waiting) {
  if (!waiting.peer) return "which takes all ranks of a group";
  const int peer = *waiting.peer;
  const auto log = rings.find(peer);
  if (log == rings.end()) return fmt::format("rank {} left no log", peer);
  const auto counterpart = other_end(waiting.action);
  if (!counterpart) return describe_at_hand(*log->second);
  const double since = end_of_earlier(ring, waiting);
  for (const RingAction& action : log->second->actions) {
    if (action.action == *counterpart && action.peer == ring.rank && action.posted > since)
      return describe_posted(action, peer, ring);
  }
  return fmt::format("rank {} has not posted {}: {}", peer, *counterpart, describe_at_hand(*log->second));
}

std::optional<int> named_most(const std::vector<RingFile>& rings) {
  std::map<int, int> votes;
  for (const RingFile& ring : rings) {
    if (ring.failed_rank) ++votes[*ring.failed_rank];
  }
  const auto most =
      std::max_element(votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == votes.end() ? std::nullopt : std::optional(most->first);
}

// Along who waits for whom: from the rank that failed, since logs of ranks that had to leave early end in waits that
// would have been over soon; where none is known, from the first that waits.
std::optional<int> end_of_waiting(const std::vector<WaitingRank>& waiting, std::optional<int> failed) {
  std::map<int, int> waits_for;
  for (const WaitingRank& rank : waiting) {
    if (rank.action.peer) waits_for[rank.rank] = *rank.action.peer;
  }
  if (waits_for.empty()) return failed;
  int rank = failed.value_or(waits_for.begin()->first);
  for (std::set<int> passed; waits_for.contains(rank) && passed.insert(rank).second;) rank = waits_for.at(rank);
  return rank;
}

std::string ago(double time, double end) { return fmt::format("{:.3f} s before", std::max(0.0, end - time)); }

double end_of(const std::vector<RingFile>& rings) {
  double end = 0;
  for (const RingFile& ring : rings) end = std::max(end, ring.written);
  return end;
}

std::string print_rank(const RingFile& ring, double end) {
  const RingAction* done = last_done(ring);
  const RingAction* now = at_hand(ring);
  std::string text = fmt::format("rank {}: ", ring.rank);
  text += done ? fmt::format("last done {} ({})", done->action, ago(*done->done, end)) : "nothing done";
  if (now == nullptr) return text + "; between actions\n";
  text += fmt::format("; at {}", now->action);
  if (now->peer)
    text += fmt::format(" {} rank {}, {} bytes", now->kind == "send" ? "to" : "from", *now->peer, now->bytes);
  return text + fmt::format(", since {} the end\n", ago(*now->started, end));
}

// The first of them.
std::string print_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kMost));
  return fmt::format("{}{}", fmt::join(ranks.begin(), end, ", "), ranks.size() > kMost ? ", ..." : "");
}

const RingFile* with_failure(const std::vector<RingFile>& rings, int rank) {
  const auto found =
      std::find_if(rings.begin(), rings.end(), [&](const RingFile& ring) { return ring.failed_rank == rank; });
  return found == rings.end() ? nullptr : &*found;
}

std::string print_failure(const std::vector<RingFile>& rings, const Postmortem& result) {
  if (!result.failed_rank) return "no log names the rank that failed first\n";
  const RingFile& ring = *with_failure(rings, *result.failed_rank);
  const std::string place = ring.failed_place.empty() ? "" : " in " + ring.failed_place;
  return fmt::format("rank {} failed first{}: {}\n", *result.failed_rank, place, ring.failure);
}

}  // namespace

Postmortem examine(const std::vector<RingFile>& rings) {
  const Rings logs = by_rank(rings);
  Postmortem result;
  result.failed_rank = named_most(rings);
  for (int rank = 0; rank < rings.front().world_size; ++rank) {
    if (!logs.contains(rank)) result.without_log.push_back(rank);
  }
  for (const RingFile& ring : rings) {
    const RingAction* action = at_hand(ring);
    if (action && action->kind != "compute")
      result.waiting.push_back({ring.rank, *action, find_out(logs, ring, *action)});
  }
  result.parting = end_of_waiting(result.waiting, result.failed_rank);
  return result;
}

std::string print_postmortem(const std::vector<RingFile>& rings) {
  const Postmortem result = examine(rings);
  const double end = end_of(rings);
  std::string text = fmt::format("{} of {} ranks left a log", rings.size(), rings.front().world_size);
  if (!result.without_log.empty()) text += "; none of " + print_ranks(result.without_log);
  text += "\n" + print_failure(rings, result);
  for (const RingFile& ring : rings) text += print_rank(ring, end);
  for (const WaitingRank& waiting : result.waiting)
    text += fmt::format("rank {} waits for {}: {}\n", waiting.rank, waiting.action.action, waiting.finding);
  if (result.parting) text += fmt::format("the ranks part at rank {}\n", *result.parting);
  return text;
}

}  // namespace dualpipe
