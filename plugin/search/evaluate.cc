#include "plugin/search/evaluate.h"

#include <algorithm>

namespace dualpipe::search {
namespace {

// What a rank can wait for: the next F, or the next B or I, of a lane.
int forward_event(int lane) { return 2 * lane; }
int backward_event(int lane) { return 2 * lane + 1; }

}  // namespace

Evaluator::Evaluator(const Lanes& lanes)
    : lanes_(lanes),
      forwards_(lanes.lanes.size()),
      backwards_(lanes.lanes.size()),
      weights_(lanes.lanes.size()),
      forward_end_(lanes.lanes.size() * lanes.per_lane),
      backward_end_(forward_end_.size()),
      progress_(lanes.ranks()) {}

WordCheck Evaluator::check_word(int rank, const Word& word) {
  for (const int lane : lanes_.of_rank[rank]) forwards_[lane] = backwards_[lane] = weights_[lane] = 0;
  const int most = lanes_.max_activations.value_or(std::numeric_limits<int>::max());
  const double room = lanes_.counts_bytes ? lanes_.room_bytes[rank] : 0;
  int live = 0;
  double live_bytes = 0;
  double busy = 0;
  for (const Letter& letter : word) {
    busy += duration(lanes_.lanes[letter.lane], letter.kind);
    const int lane = letter.backward_lane();
    if (letter.has_backward() && ++backwards_[lane] > forwards_[lane]) return {};
    if (letter.has_forward()) {
      ++forwards_[letter.lane];
      live_bytes += lanes_.lanes[letter.lane].activation_bytes;
      if (++live > most || live_bytes > room) return {};
    }
    if (letter.frees()) {
      if (++weights_[lane] > backwards_[lane]) return {};
      --live;
      live_bytes -= lanes_.lanes[lane].activation_bytes;
    }
  }
  return {true, busy};
}

Score Evaluator::evaluate(const Words& words, const std::vector<double>& busy, double limit) {
  ++evaluations_;
  std::fill(forwards_.begin(), forwards_.end(), 0);
  std::fill(backwards_.begin(), backwards_.end(), 0);
  queue_.clear();
  for (int rank = lanes_.ranks() - 1; rank >= 0; --rank) {
    progress_[rank] = {0, 0, busy[rank], -1};
    queue_.push_back(rank);
  }
  while (!queue_.empty()) {
    const int rank = queue_.back();
    queue_.pop_back();
    if (!run_rank(rank, words[rank], limit)) return {};
  }
  Score score{0, 0};
  for (int rank = 0; rank < lanes_.ranks(); ++rank) {
    if (progress_[rank].column < words[rank].size()) return {};
    score.makespan = std::max(score.makespan, progress_[rank].free);
    score.ends += progress_[rank].free;
  }
  return score;
}

bool Evaluator::wait_for(int rank, int event) {
  progress_[rank].waits_for = event;
  return true;
}

void Evaluator::wake(int lane, int event) {
  if (lane < 0) return;
  Progress& other = progress_[lanes_.lanes[lane].rank];
  if (other.waits_for != event) return;
  other.waits_for = -1;
  queue_.push_back(lanes_.lanes[lane].rank);
}

// Runs until the rank waits or ends. False where it is sure to end after `limit`.
bool Evaluator::run_rank(int rank, const Word& word, double limit) {
  Progress& progress = progress_[rank];
  const double allowed = limit + 1e-9 * limit;
  double free = progress.free;
  for (; progress.column < word.size(); ++progress.column) {
    const Letter letter = word[progress.column];
    const Lane& lane = lanes_.lanes[letter.lane];
    double start = free;
    if (letter.has_forward() && lane.previous >= 0) {
      const int turn = forwards_[letter.lane];
      if (forwards_[lane.previous] <= turn) return wait_for(rank, forward_event(lane.previous));
      start = std::max(start, forward_end_[lane.previous * lanes_.per_lane + turn] + lane.previous_latency);
    }
    const int backward_lane = letter.backward_lane();
    const Lane& back = lanes_.lanes[backward_lane];
    if (letter.has_backward() && back.next >= 0) {
      const int turn = backwards_[backward_lane];
      if (backwards_[back.next] <= turn) return wait_for(rank, backward_event(back.next));
      start = std::max(start, backward_end_[back.next * lanes_.per_lane + turn] + back.next_latency);
    }
    const double time = duration(lane, letter.kind);
    if (start + progress.remaining > allowed) return false;
    progress.remaining -= time;
    free = progress.free = start + time;
    if (letter.has_forward()) {
      forward_end_[letter.lane * lanes_.per_lane + forwards_[letter.lane]++] = free;
      wake(lane.next, forward_event(letter.lane));
    }
    if (letter.has_backward()) {
      backward_end_[backward_lane * lanes_.per_lane + backwards_[backward_lane]++] = free;
      wake(back.previous, backward_event(backward_lane));
    }
  }
  return true;
}

int last_stage(const Lanes& lanes, const Word& word) {
  const auto last = std::find_if(word.rbegin(), word.rend(), [](const Letter& letter) { return letter.frees(); });
  return last == word.rend() ? -1 : lanes.lanes[last->backward_lane()].stage;
}

bool mirrors_agree(const Lanes& lanes, const Words& words) {
  for (int rank = 0; lanes.placement.is_bidirectional() && rank < lanes.ranks() / 2; ++rank) {
    if (last_stage(lanes, words[rank]) != last_stage(lanes, words[lanes.ranks() - 1 - rank])) return false;
  }
  return true;
}

}  // namespace dualpipe::search
