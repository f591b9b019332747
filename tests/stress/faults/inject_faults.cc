// Every point of a small dualpipe step on every rank x {throw, hang, drop, repeat, wrong size, NaN, bad_alloc}, with
// ranks as threads over loopback in virtual time. However a rank goes wrong, all ranks come back within the bound, with
// one and the same record of who failed first, or all go on: then with the very numbers of a run without faults, or,
// after a NaN, with a step that all of them skip. Prints a JSON row; exits with 1 where one is missed.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <thread>

#include "plugin/runtime/dualpipe.h"
#include "plugin/runtime/optimizer_hook.h"
#include "tests/stress/faults/faulty_parts.h"
#include "tests/stress/row.h"

namespace dualpipe::stress {
namespace {

using std::chrono::seconds;

constexpr int kRanks = 4;
constexpr int kMicroBatches = 8;
constexpr std::int64_t kWidth = 3;
constexpr int kSteps = 2;
constexpr seconds kTimeout{20};  // Of one wait, in virtual time.
constexpr seconds kBound{2};     // After a fault, or after the timeout by which it is noticed.

struct Strike {
  int rank = 0;
  std::size_t number = 0;
  Fault fault = Fault::kThrow;
};

// What became of one rank.
struct RankOutcome {
  std::optional<FailureRecord> failure;
  std::string other_error;                          // Something else than a PipelineError.
  std::vector<bool> skipped;                        // By step.
  std::optional<NonFinite> first_bad;               // Of the first step.
  std::vector<std::vector<at::Tensor>> parameters;  // After each step.
  std::vector<Passed> points;
  std::size_t points_of_first_step = 0;
  seconds end{0};
};

using Outcome = std::vector<RankOutcome>;

// Tells the others at once, as a watchdog would a moment later.
class VirtualChannel : public FailureChannel {
 public:
  VirtualChannel(std::shared_ptr<VirtualClock> clock, std::vector<std::shared_ptr<Transport>> transports)
      : clock_(std::move(clock)), transports_(std::move(transports)) {}

  FailureRecord record(const FailureRecord& failure) override {
    {
      std::lock_guard lock(mutex_);
      if (first_) return *first_;
      first_ = failure;
    }
    clock_->notify_all(wake_);
    for (const auto& transport : transports_) {
      if (transport->rank() != failure.rank) transport->abort(failure.to_string());
    }
    return failure;
  }

  std::optional<FailureRecord> first() override {
    std::lock_guard lock(mutex_);
    return first_;
  }

  std::optional<FailureRecord> wait_for_first(std::chrono::milliseconds patience) override {
    std::unique_lock lock(mutex_);
    const auto deadline = clock_->now() + patience;
    while (!first_ && clock_->now() < deadline) clock_->wait_until(lock, wake_, deadline);
    return first_;
  }

 private:
  std::shared_ptr<VirtualClock> clock_;
  std::vector<std::shared_ptr<Transport>> transports_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<FailureRecord> first_;
};

at::Tensor batch(std::size_t micro_batches, double phase) {
  const auto rows = static_cast<std::int64_t>(2 * micro_batches);
  return at::arange(rows * kWidth, at::kFloat).add(phase).cos().view({rows, kWidth});
}

TensorList rows_of(const std::vector<int>& micro_batches, double phase) {
  return micro_batches.empty() ? TensorList{} : TensorList{batch(micro_batches.size(), phase)};
}

at::Tensor squares(const TensorList& outputs, const TensorList& labels) {
  return (outputs.at(0) - labels.at(0)).pow(2).mean();
}

class RankRun {
 public:
  RankRun(std::shared_ptr<Transport> transport, std::shared_ptr<FailureChannel> failures,
          std::shared_ptr<FaultPoints> points)
      : transport_(std::move(transport)), failures_(std::move(failures)), points_(std::move(points)) {}

  void run(RankOutcome& outcome) {
    try {
      train(outcome);
    } catch (const PipelineError& error) {
      outcome.failure = error.record();
    } catch (const std::exception& error) {
      outcome.other_error = error.what();
    }
    outcome.points = points_->seen();
  }

 private:
  void train(RankOutcome& outcome) {
    const int rank = transport_->rank();
    const std::vector<std::shared_ptr<StageModule>> stages{make_faulty_stage(rank, kWidth, points_),
                                                           make_faulty_stage(kRanks - 1 - rank, kWidth, points_)};
    std::vector<at::Tensor> parameters{stages[0]->parameters()[0], stages[1]->parameters()[0]};
    Pipeline pipeline("dualpipe", make_faulty(transport_, points_), stages,
                      {.num_microbatches = kMicroBatches, .failures = failures_, .check_finite = true});
    torch::optim::SGD optimizer(parameters, 0.1);
    OptimizerHook hook(pipeline, optimizer);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      pipeline.step(rows_of(pipeline.input_micro_batches(), 0), rows_of(pipeline.loss_micro_batches(), 1), squares);
      const OptimizerStep done = hook.step();
      outcome.skipped.push_back(done.skipped);
      if (step == 0) outcome.first_bad = done.first_bad;
      outcome.parameters.push_back({parameters[0].detach().clone(), parameters[1].detach().clone()});
      if (step == 0) outcome.points_of_first_step = points_->seen().size();
    }
  }

  std::shared_ptr<Transport> transport_;
  std::shared_ptr<FailureChannel> failures_;
  std::shared_ptr<FaultPoints> points_;
};

Outcome run(const std::optional<Strike>& strike) {
  const auto clock = std::make_shared<VirtualClock>(kRanks);
  const auto transports = make_loopback(kRanks, {.timeout = kTimeout, .clock = clock});
  const auto failures = std::make_shared<VirtualChannel>(clock, transports);
  Outcome outcome(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto points = std::make_shared<FaultPoints>(clock);
      if (strike && strike->rank == rank) points->arm(strike->number, strike->fault);
      RankRun(transports[rank], failures, points).run(outcome[rank]);
      outcome[rank].end = std::chrono::duration_cast<seconds>(clock->now().time_since_epoch());
      clock->leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

bool same_parameters(const RankOutcome& a, const RankOutcome& b, std::size_t steps_of_a, std::size_t steps_of_b) {
  for (int i = 0; i < 2; ++i) {
    if (!at::equal(a.parameters.at(steps_of_a - 1)[i], b.parameters.at(steps_of_b - 1)[i])) return false;
  }
  return true;
}

// "" where the promise is kept.
class Judge {
 public:
  Judge(const Outcome& clean, const Strike& strike, const Outcome& outcome)
      : clean_(clean), strike_(strike), outcome_(outcome) {}

  std::string complaint() const {
    for (int rank = 0; rank < kRanks; ++rank) {
      const RankOutcome& mine = outcome_[rank];
      if (!mine.other_error.empty()) return on(rank) + "threw something else: " + mine.other_error;
      if (mine.failure.has_value() != outcome_[0].failure.has_value()) return on(rank) + "does not do as rank 0 does";
      if (mine.failure != outcome_[0].failure) return on(rank) + "blames another: " + mine.failure->to_string();
      if (mine.end > last_moment(rank)) return on(rank) + "came back after " + std::to_string(mine.end.count()) + " s";
    }
    return outcome_[0].failure ? wrong_culprit() : wrong_numbers();
  }

 private:
  static std::string on(int rank) { return "rank " + std::to_string(rank) + " "; }

  // Computing takes no time, so a fault strikes at 0, or where a timeout has passed that it does not depend on.
  seconds last_moment(int rank) const {
    if (strike_.fault == Fault::kHang && rank == strike_.rank) return kHang + kBound;
    const bool at_once = strike_.fault == Fault::kThrow || strike_.fault == Fault::kBadAlloc;
    return (at_once ? seconds(0) : kTimeout) + kBound;
  }

  const Passed& point() const { return clean_[strike_.rank].points[strike_.number]; }

  bool is_message() const { return point().point == Point::kSend || point().point == Point::kReceive; }

  bool is_an_end(int rank) const { return rank == strike_.rank || (is_message() && rank == point().which); }

  // An exception is of the rank that threw, and what it computes in another size it finds itself; a message that does
  // not fit, the next one in the place of a lost one too, is found by either end. A hang is found by whoever waits
  // longest: a timeout knows no more.
  bool explains(const FailureRecord& record) const {
    const bool timed_out = record.cause.find("timed out") != std::string::npos;
    switch (strike_.fault) {
      case Fault::kThrow:
      case Fault::kBadAlloc:
        return record.rank == strike_.rank;
      case Fault::kHang:
        return timed_out;
      case Fault::kWrongSize:
        return is_an_end(record.rank);
      default:
        return timed_out || is_an_end(record.rank);
    }
  }

  std::string wrong_culprit() const {
    const FailureRecord& record = *outcome_[0].failure;
    return explains(record) ? "" : "the culprit is not named: " + record.to_string();
  }

  // The micro-batch of a compute point: it is as far in the row as among the points of its stage.
  int micro_batch() const {
    const std::vector<Passed>& points = clean_[strike_.rank].points;
    const auto same = [&](const Passed& passed) {
      return passed.point == point().point && passed.which == point().which;
    };
    auto left = std::count_if(points.begin(), points.begin() + static_cast<std::ptrdiff_t>(strike_.number), same);
    const bool is_forward = point().point == Point::kForward;
    for (const Op& op : row_of(strike_.rank)) {
      const bool is_same =
          is_forward ? op.kind == Kind::kForward : op.kind == Kind::kBackward || op.kind == Kind::kBackwardInput;
      if (is_same && op.stage == point().which && left-- == 0) return op.micro_batch;
    }
    return -1;
  }

  static std::vector<Op> row_of(int rank) {
    ScheduleSpec spec;
    spec.pipeline_model_parallel_size = kRanks;
    spec.num_microbatches = kMicroBatches;
    std::vector<Op> ops;
    const Schedule schedule = builtin_registry().make("dualpipe", spec);
    for (const Action& action : schedule.rows.at(rank)) {
      ops.push_back(action.op);
      if (action.paired) ops.push_back(*action.paired);
    }
    return ops;
  }

  // Where a NaN has to be seen first; of messages, by the rank that got it.
  std::string wrong_place() const {
    const std::optional<NonFinite>& seen = outcome_[0].first_bad;
    if (!seen) return "nobody says where it began";
    const int stage = point().which;
    const std::string weight = "the gradient of stage" + std::to_string(stage) + ".weight";
    NonFinite wanted{strike_.rank, stage, {}, weight};
    switch (point().point) {
      case Point::kForward:
        wanted = {strike_.rank, stage, micro_batch(), "output 0"};
        break;
      case Point::kBackward:
        if (stage > 0) wanted = {strike_.rank, stage, micro_batch(), "the gradient of input 0"};
        break;
      case Point::kSend:
        wanted = *seen;
        wanted.rank = point().which;
        break;
      case Point::kReceive:
        wanted = *seen;
        wanted.rank = strike_.rank;
        break;
      default:
        break;
    }
    return *seen == wanted ? "" : "it began in " + wanted.to_string() + ", and they name " + seen->to_string();
  }

  // Nobody failed: a NaN skips a step everywhere, and all else leaves no trace.
  std::string wrong_numbers() const {
    const bool skipped = outcome_[0].skipped.at(0);
    if (skipped && strike_.fault != Fault::kNan) return "a step was skipped";
    for (int rank = 0; rank < kRanks; ++rank) {
      if (outcome_[rank].skipped != outcome_[0].skipped) return on(rank) + "skips another step than rank 0";
      if (outcome_[rank].first_bad != outcome_[0].first_bad) return on(rank) + "names another place than rank 0";
      if (!same_parameters(outcome_[rank], clean_[rank], kSteps, skipped ? kSteps - 1 : kSteps))
        return on(rank) + "has wrong numbers, and nobody said so";
    }
    return skipped ? wrong_place() : "";
  }

  const Outcome& clean_;
  const Strike& strike_;
  const Outcome& outcome_;
};

std::vector<Strike> strikes_of(const Outcome& clean, std::size_t every) {
  std::vector<Strike> strikes;
  std::size_t number = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (std::size_t point = 0; point < clean[rank].points_of_first_step; ++point) {
      for (const Fault fault : kFaults) {
        if (can_strike(fault, clean[rank].points[point].point) && number++ % every == 0) {
          strikes.push_back({rank, point, fault});
        }
      }
    }
  }
  return strikes;
}

bool went_well(const Outcome& outcome) {
  return std::all_of(outcome.begin(), outcome.end(), [](const RankOutcome& rank) {
    return !rank.failure && rank.other_error.empty() && rank.skipped == std::vector<bool>(kSteps, false);
  });
}

struct Tally {
  std::size_t kept = 0;
  std::map<std::string, int> by_fault;  // How many ended in a failure.
  int told = 0;
};

void judge(const Outcome& clean, const Strike& strike, Tally& tally) {
  const Outcome outcome = run(strike);
  const std::string complaint = Judge(clean, strike, outcome).complaint();
  tally.by_fault[to_string(strike.fault)] += outcome[0].failure ? 1 : 0;
  if (complaint.empty()) {
    ++tally.kept;
  } else if (tally.told++ < 20) {
    std::cerr << "rank " << strike.rank << ", point " << strike.number << " ("
              << to_string(clean[strike.rank].points[strike.number].point) << "), " << to_string(strike.fault) << ": "
              << complaint << "\n";
  }
}

std::string outcomes(const Tally& tally) {
  std::string text;
  for (const auto& [fault, failures] : tally.by_fault) {
    text += (text.empty() ? "" : ", ") + fault + " " + std::to_string(failures);
  }
  return text;
}

}  // namespace
}  // namespace dualpipe::stress

int main(int argc, char** argv) {
  using namespace dualpipe::stress;
  CLI::App app("Faults in one process");
  std::size_t every = 1;
  app.add_option("--every", every, "only every n-th fault")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const Outcome clean = run(std::nullopt);
  if (!went_well(clean)) {
    std::cerr << "the run without faults fails: "
              << (clean[0].failure ? clean[0].failure->to_string() : clean[0].other_error) << "\n";
    return 2;
  }
  const std::vector<Strike> strikes = strikes_of(clean, every);
  Tally tally;
  for (const Strike& strike : strikes) judge(clean, strike, tally);
  const ResultRow row{"faults in one process: every action x {throw, hang, drop, repeat, wrong size, NaN, bad_alloc}",
                      std::to_string(strikes.size()) + ", all end within 2 s, or a timeout and 2 s, of virtual time",
                      std::to_string(tally.kept) + " of " + std::to_string(strikes.size()) +
                          " (ended in a failure: " + outcomes(tally) + ")",
                      "", !strikes.empty() && tally.kept == strikes.size()};
  print(std::cout, row);
  return row.reached ? 0 : 1;
}
