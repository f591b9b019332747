#include "examples/pretrain_gpt/train.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "examples/pretrain_gpt/checkpoint/checkpoints.h"
#include "examples/pretrain_gpt/collective.h"
#include "examples/pretrain_gpt/data/data_position.h"
#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/expert_balance.h"
#include "examples/pretrain_gpt/failures/exit_code.h"
#include "examples/pretrain_gpt/failures/failure_watch.h"
#include "examples/pretrain_gpt/failures/last_words.h"
#include "examples/pretrain_gpt/line_file.h"
#include "examples/pretrain_gpt/memory_report.h"
#include "examples/pretrain_gpt/optimizer.h"
#include "examples/pretrain_gpt/run_variables.h"
#include "examples/pretrain_gpt/schedule_choice.h"
#include "examples/pretrain_gpt/sockets.h"
#include "examples/pretrain_gpt/start.h"
#include "examples/pretrain_gpt/tensor_memory.h"
#include "examples/pretrain_gpt/timeline_recorder.h"
#include "examples/pretrain_gpt/train_log.h"
#include "examples/pretrain_gpt/train_plan.h"

namespace pretrain_gpt {
namespace {

// An engine decides about Gloo's threads by this variable: under every schedule they are the same.
void tell_engines(const Environment& environment) {
  ::setenv("DUALPIPE_GLOO_THREADS", gloo_threads_yield(environment) ? "yield" : "preempt", /*overwrite=*/0);
}

// As torchrun does: processes that share a machine get a thread each, unless the user says otherwise.
void limit_threads(const Environment& environment) {
  if (environment.local_world_size > 1 && !process_variable("OMP_NUM_THREADS")) {
    at::set_num_threads(1);
  }
}

class Trainer {
 public:
  // `save_store`: another client of the store, for the thread that saves.
  Trainer(const TrainContext& context, TrainPlan& plan, TensorMemory& memory, FailureWatch& watch,
          c10::intrusive_ptr<c10d::Store> save_store)
      : context_(context),
        watch_(watch),
        config_(plan.config),
        data_(plan.data),
        schedule_(plan.schedule.make(context)),
        main_gradients_(schedule_->main_gradients()),
        optimizer_(make_optimizer(config_, schedule_->chunks(), main_gradients_, &context.parallel)),
        checkpoints_({context, schedule_->chunks(), *optimizer_, data_.num_tokens, std::move(save_store),
                      [this](const std::string& line) { say(line); },
                      [this](bool waits) { watch_.progress().set_waits(waits); }}),
        position_(checkpoints_.load()),
        memory_(context, *schedule_, memory),
        timeline_(context, *schedule_, memory_),
        choice_(plan.choice) {
    if (context.parallel.rank() == 0) {
      log_.emplace(config_, stdout, position_.iteration);
      std::for_each(early_lines_.begin(), early_lines_.end(), [this](const std::string& line) { log_->say(line); });
    }
    if (position_.iteration > 0) {
      data_.training->set_consumed_samples(position_.consumed_samples);
    }
  }

  void run() {
    check_memory();
    say(fmt::format(
        "{}: {} process(es) (tensor {}, pipeline {}, data {}, expert {}), {} micro-batches of {} x {} tokens "
        "a step and data-parallel rank, {} samples in {}",
        config_.pipeline_schedule, context_.parallel.world_size(), config_.tensor_model_parallel_size,
        config_.pipeline_size(), config_.data_parallel_size, config_.expert_model_parallel_size,
        config_.num_microbatches(), config_.micro_batch_size, config_.seq_length, data_.training->size(),
        config_.data_path));
    write_choice();
    if (position_.iteration >= config_.train_iters) {
      say(fmt::format("nothing to do: iteration {} of {} is done", position_.iteration, config_.train_iters));
      return;
    }
    watch_.progress().follow(schedule_->activity());
    watch_.begin_training();
    for (std::int64_t iteration = position_.iteration + 1; iteration <= config_.train_iters; ++iteration) {
      enter(fmt::format("step {}", iteration));
      const IterationRecord record = step(iteration);
      position_ = {iteration, data_.training->consumed_samples()};
      if (log_) {
        log_->add(record);
      }
      count_skipped(record.skipped);
      enter_saving();
      checkpoints_.after_step(position_);
      stop_where_agreed();
    }
    enter_saving();
    checkpoints_.save(position_);
    checkpoints_.finish();
    enter("the end", /*waits=*/true);
    write_actions();
    timeline_.write(*optimizer_);
    report_memory();
    for (const std::string& note : schedule_->notes()) {
      say(note);
    }
    if (log_) {
      say(fmt::format("metrics of every step: {}", log_->metrics_path().string()));
    }
  }

 private:
  void enter(const std::string& part, bool waits = false) {
    watch_.progress().enter(part, std::chrono::seconds(config_.step_patience()), waits);
  }

  void enter_saving() {
    watch_.progress().enter(fmt::format("saving step {}", position_.iteration), save_patience(config_));
  }

  // Every rank counts the same.
  void count_skipped(bool skipped) {
    skipped_in_a_row_ = skipped ? skipped_in_a_row_ + 1 : 0;
    if (skipped_in_a_row_ > config_.max_skipped_steps) {
      throw RunError(ExitCode::kNotFinite,
                     fmt::format("loss or gradients were not finite in {} step(s) in a row, and max_skipped_steps is "
                                 "{}; it began in {}",
                                 skipped_in_a_row_, config_.max_skipped_steps, first_bad_));
    }
  }

  // Signals land at different steps of different ranks: all stop behind the same one.
  void stop_where_agreed() {
    enter(fmt::format("the end of step {}", position_.iteration), /*waits=*/true);
    const at::Tensor wishes = at::full({1}, watch_.stop_requested() ? 1.0 : 0.0, at::kDouble);
    if (sum_over(context_.parallel.world(), wishes).item<double>() == 0) {
      return;
    }
    std::string saved = "nothing is saved, since `save` is not set";
    if (!config_.save.empty()) {
      enter_saving();
      checkpoints_.save(position_);
      checkpoints_.finish();
      saved = fmt::format("saved in {}", config_.save);
    }
    throw RunError(ExitCode::kPreempted,
                   fmt::format("stopped behind step {}, as a signal asked for; {}", position_.iteration, saved));
  }

  void note_bad(std::int64_t iteration, const StepOutcome& outcome) {
    if (outcome.skipped) {
      first_bad_ = outcome.first_bad.value_or("a sum over ranks of finite values");
      say(fmt::format("step {} is skipped: not finite, first in {}", iteration, first_bad_));
    }
  }

  void say(const std::string& line) {
    if (log_) {
      log_->say(line);
    } else if (context_.parallel.rank() == 0) {
      early_lines_.push_back(line);
    }
  }

  // A choice kept to the limit already, by what was measured.
  void check_memory() const {
    const auto needed = static_cast<double>(memory_.expected_bytes()) / 1e9;
    if (config_.memory_limit_gb > 0 && needed > config_.memory_limit_gb && !choice_) {
      throw UserError(
          "memory_limit_gb",
          fmt::format("must be at least what rank {} needs under {} = {:.6g}, got {:.6g}; for example {:.3g}",
                      context_.parallel.rank(), config_.pipeline_schedule, needed, config_.memory_limit_gb,
                      1.1 * needed));
    }
  }

  void write_choice() {
    if (choice_ && log_) {
      say(choice_->reason);
      say(fmt::format("the schedule: {}", write_rows(*choice_, context_.output_dir).string()));
    }
  }

  IterationRecord step(std::int64_t iteration) {
    const auto start = std::chrono::steady_clock::now();
    IterationRecord record;
    record.iteration = iteration;
    record.lr = learning_rate(config_, iteration);
    set_learning_rate(*optimizer_, record.lr);
    zero_gradients();
    begin_passes(iteration, /*training=*/true, *data_.training);
    memory_.begin_step();
    record.lm_loss = schedule_->train_step(read_by([this](int index) { return data_.training->read(index); }));
    memory_.end_step();
    const StepOutcome outcome =
        schedule_->optimizer_step(*optimizer_, config_.clip_grad, /*skip=*/!std::isfinite(record.lm_loss));
    note_bad(iteration, outcome);
    balance_experts(config_, schedule_->chunks(), context_.parallel, outcome.skipped);
    data_.training->advance();
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    timeline_.end_step(iteration);
    record.grad_norm = outcome.grad_norm;
    record.skipped = outcome.skipped;
    record.consumed_samples = data_.training->consumed_samples();
    record.ms = elapsed.count();
    record.tokens_per_second = static_cast<double>(config_.global_batch_size * config_.seq_length) * 1000 / record.ms;
    record.validation_loss = evaluate(iteration);
    return record;
  }

  void zero_gradients() {
    optimizer_->zero_grad();
    for (const auto& [name, gradient] : main_gradients_) {
      gradient.zero_();
    }
  }

  // Dropout depends on the step; an evaluation has none.
  void begin_passes(std::int64_t iteration, bool training, const DataPosition& data) {
    for (GptChunk* chunk : schedule_->chunks()) {
      chunk->set_step(iteration, data.samples_of_step());
      chunk->train(training);
    }
  }

  // The same samples each time. Nothing where no evaluation is due.
  std::optional<double> evaluate(std::int64_t iteration) {
    if (config_.eval_interval == 0 || iteration % config_.eval_interval != 0) {
      return std::nullopt;
    }
    data_.validation->set_consumed_samples(0);
    begin_passes(iteration, /*training=*/false, *data_.validation);
    double sum = 0;
    for (std::int64_t i = 0; i < config_.eval_iters; ++i) {
      sum += schedule_->evaluate(read_by([this](int index) { return data_.validation->read(index); }));
      data_.validation->advance();
    }
    return sum / static_cast<double>(config_.eval_iters);
  }

  // Of the ranks of the first pipeline; the others are like them.
  void report_memory() {
    const auto lines = gather_texts(*context_.store, "memory", context_.parallel.rank(), context_.parallel.world_size(),
                                    memory_.line(*optimizer_));
    for (const int rank : context_.parallel.layout().group_of(GroupKind::kPipeline, 0)) {
      say(lines[static_cast<std::size_t>(rank)]);
    }
  }

  // Every rank's actions of the last step, a row per rank: of all pipelines, the first's.
  void write_actions() {
    if (!config_.record_actions) {
      return;
    }
    const std::string row = schedule_->recorded_actions().value_or("");
    const auto rows =
        gather_texts(*context_.store, "actions", context_.parallel.rank(), context_.parallel.world_size(), row);
    if (log_) {
      LineFile file(context_.output_dir / "actions.csv");
      for (const int rank : context_.parallel.layout().group_of(GroupKind::kPipeline, 0)) {
        file.append(rows[static_cast<std::size_t>(rank)]);
      }
      say(fmt::format("actions of the last step: {}", file.path().string()));
    }
  }

  const TrainContext& context_;
  FailureWatch& watch_;
  const Config& config_;
  TrainingData& data_;
  std::unique_ptr<ForwardBackward> schedule_;
  NamedTensors main_gradients_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<TrainLog> log_;
  std::vector<std::string> early_lines_;  // Said before there is a log.
  Checkpoints checkpoints_;
  TrainingPosition position_;
  std::int64_t skipped_in_a_row_ = 0;
  std::string first_bad_;  // Of the last step that was skipped.
  MemoryReport memory_;
  TimelineRecorder timeline_;
  const std::optional<ScheduleChoice>& choice_;
};

// Until the first step: for the search of a schedule, and the files of a checkpoint.
std::chrono::seconds start_patience(const Config& config) {
  const std::chrono::seconds search(static_cast<int>(config.schedule_search_s));
  const std::chrono::seconds patience(std::max(config.timeout_s, config.step_patience()));
  return search + (config.load.empty() ? patience : std::max(patience, save_patience(config)));
}

[[noreturn]] void train(TrainPlan& plan, const Environment& environment, const Rendezvous& rendezvous,
                        FailureWatch& watch) {
  // Outside of `try`: neither a failure nor the end must unwind what messages may be under way in.
  std::optional<ProcessGroups> groups;
  std::optional<TrainContext> context;
  std::optional<Trainer> trainer;
  std::optional<RunError> stopped;  // As all ranks have agreed.
  const auto memory = count_tensor_memory();
  try {
    watch.progress().enter("the start", start_patience(plan.config));
    compare_with_other_ranks(plan, environment, *rendezvous.store());
    settle_schedule(plan, environment, *rendezvous.store());
    groups.emplace(plan.layout, environment, rendezvous.store(), transport_timeout(plan.config));
    context.emplace(TrainContext{plan.config, *groups, rendezvous.store(), plan.config.output_dir});
    context->memory = memory;
    trainer.emplace(*context, plan, *memory, watch, plan.config.save.empty() ? nullptr : rendezvous.connect());
    trainer->run();
  } catch (const c10::DistError& error) {
    watch.fail(PeerLost(text_of(error)));
  } catch (const c10::Error& error) {
    watch.fail(RunError(ExitCode::kException, text_of(error)));
  } catch (const RunError& error) {
    if (error.code() != ExitCode::kPreempted) {
      watch.fail(error);
    }
    stopped = error;
  } catch (const std::exception& error) {
    watch.fail(error);
  }
  watch.finish(std::chrono::seconds(plan.config.step_patience()), stopped ? stopped->code() : ExitCode::kOk,
               stopped ? stopped->what() : "");
}

Failure failure_of(const std::exception_ptr& mistake, int rank) {
  try {
    std::rethrow_exception(mistake);
  } catch (const std::exception& error) {
    return {rank, exit_code_of(error), "", text_of(error)};
  }
}

Rendezvous meet_at_store(const Environment& environment, std::chrono::seconds timeout,
                         const std::exception_ptr& mistake) {
  try {
    return Rendezvous(environment, timeout);
  } catch (const std::exception& error) {
    const Failure own =
        mistake ? failure_of(mistake, environment.rank) : Failure{{}, exit_code_of(error), "", error.what()};
    exit_with_error(environment.rank, own.message, own.code);
  }
}

constexpr std::chrono::seconds kTimeoutWithoutPlan{10};
constexpr std::chrono::seconds kBehindTheCalls{10};  // Which say more than the watch, where they return.

Environment read_own_environment() {
  try {
    return read_environment(process_variable);
  } catch (const std::exception& mistake) {
    report_bad_environment(mistake);
    exit_with_error(rank_as_told(process_variable), mistake.what(), exit_code_of(mistake));
  }
}

}  // namespace

void run_train(const TrainOptions& options, const ScheduleRegistry& registry) {
  const Environment environment = read_own_environment();
  if (is_on_one_machine(environment)) {
    ask_names_briefly();
  }
  tell_engines(environment);
  FailureWatch watch(environment.rank, environment.world_size);
  limit_threads(environment);
  std::optional<TrainPlan> plan;
  std::exception_ptr mistake;
  try {
    plan = make_plan(options, registry, environment);
    watch.set_folder(plan->config.output_dir);
  } catch (const std::exception&) {
    mistake = std::current_exception();
  }
  // With a mistake too: the other ranks may have made none, and would wait.
  const std::chrono::seconds patience = plan ? std::chrono::seconds(plan->config.timeout_s) : kTimeoutWithoutPlan;
  watch.progress().enter("the start", patience + kBehindTheCalls);
  const Rendezvous rendezvous = meet_at_store(environment, patience, mistake);
  if (mistake && environment.world_size > 1) {
    const Failure own = failure_of(mistake, environment.rank);
    report_from_outside(rendezvous.boards(), own, /*counts=*/!rendezvous.is_host());
    if (!rendezvous.is_host()) {  // Who has made the same mistake may be gone already, and the store with it.
      exit_with_error(environment.rank, own.message, own.code);
    }
  }
  watch.progress().enter("the start", patience + kBehindTheCalls);
  try {
    meet(environment, rendezvous, patience, watch);
  } catch (const std::exception& error) {
    watch.fail(error);
  }
  if (mistake) {
    watch.fail(failure_of(mistake, environment.rank));
  }
  train(*plan, environment, rendezvous, watch);
}

}  // namespace pretrain_gpt
