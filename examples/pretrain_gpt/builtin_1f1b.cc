#include "examples/pretrain_gpt/builtin_1f1b.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "examples/pretrain_gpt/collective.h"
#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/error.h"
#include "examples/pretrain_gpt/failures/action_ring.h"
#include "examples/pretrain_gpt/failures/finite_watch.h"
#include "examples/pretrain_gpt/gradient_norm.h"
#include "examples/pretrain_gpt/gradient_reduction.h"
#include "examples/pretrain_gpt/layer_division.h"
#include "examples/pretrain_gpt/model/initial_weights.h"
#include "examples/pretrain_gpt/model/token_loss.h"
#include "examples/pretrain_gpt/point_to_point.h"
#include "examples/pretrain_gpt/trace_recorder.h"

namespace pretrain_gpt {
namespace {

constexpr int kPostedAhead = 2;  // Receives per direction.
constexpr int kForwardTag = 0, kBackwardTag = 1, kTiedTag = 2, kTags = 3;

// Fits: there are at most kMostMicrobatches micro-batches.
static_assert(kMostMicrobatches * kTags <= std::numeric_limits<int>::max());
int tag(int kind, std::int64_t micro_batch) { return static_cast<int>(micro_batch * kTags + kind); }

// "1SEND_F3": of what a stage computes or has computed.
std::string cell(int stage, const char* kind, std::int64_t micro_batch) {
  return fmt::format("{}{}{}", stage, kind, micro_batch);
}

// A rank of this rank's pipeline.
Peer peer_of(const TrainContext& context, int rank) {
  const auto members = context.parallel.layout().group_of(GroupKind::kPipeline, context.parallel.rank());
  return {rank, rank < 0 || rank >= context.world_size ? rank : members.at(static_cast<std::size_t>(rank))};
}

// A micro-batch between its forward and its backward.
struct InFlight {
  at::Tensor input;            // The leaf whose gradient goes to the rank before; undefined on the first rank.
  torch::autograd::Edge root;  // Of the output or, on the last rank, of the loss.
};

// Receives of one direction, posted in order.
class ReceiveQueue {
 public:
  ReceiveQueue(const TrainContext& context, int from, int kind, ActionRing& ring)
      : context_(context), from_(peer_of(context, from)), kind_(kind), ring_(ring) {}

  void begin(std::int64_t count) {
    posted_count_ = 0;
    count_ = count;
    for (int i = 0; i < kPostedAhead; ++i) {
      post();
    }
  }

  at::Tensor next() {
    at::Tensor tensor = posted_.front().wait();
    posted_.pop_front();
    post();
    return tensor;
  }

 private:
  void post() {
    if (posted_count_ < count_) {
      const Config& config = context_.config;
      const std::int64_t k = posted_count_++;
      posted_.push_back(post_receive(*context_.group, from_, tag(kind_, k),
                                     boundary_sizes(config, context_.parallel.model_parallel(config.sequence_parallel)),
                                     params_dtype(config), ring_,
                                     cell(context_.rank, kind_ == kForwardTag ? "RECV_F" : "RECV_B", k)));
    }
  }

  const TrainContext& context_;
  Peer from_;
  int kind_;
  ActionRing& ring_;
  std::int64_t count_ = 0, posted_count_ = 0;
  std::deque<PostedMessage> posted_;
};

class Builtin1F1B final : public ForwardBackward {
 public:
  explicit Builtin1F1B(const TrainContext& context)
      : context_(context),
        chunk_(context.config, context.parallel.model_parallel(context.config.sequence_parallel),
               divide_layers(context.config, context.world_size).at(context.rank)),
        main_gradients_(make_main_gradients(context.config, {&chunk_})),
        parameters_(rank_parameters({&chunk_}, main_gradients_)),
        reduction_(context.parallel, parameters_),
        norm_(context.parallel, *context.store, parameters_),
        ring_(context.parallel.rank(), context.parallel.world_size()),
        finite_(context.rank, context.parallel.rank()),
        inputs_(context_, context.rank - 1, kForwardTag, ring_),
        output_gradients_(context_, context.rank + 1, kBackwardTag, ring_),
        outputs_sent_(context.group, peer_of(context, context.rank + 1), ring_),
        gradients_sent_(context.group, peer_of(context, context.rank - 1), ring_),
        recorder_(live_bytes()) {
    for (const RankParameter& parameter : parameters_) {
      if (parameter.main_gradient.defined()) {
        move_gradients(parameter.parameter, parameter.main_gradient);
      }
    }
    if (context.config.record_timeline > 0) {
      chunk_.watch_exchanges([this](const ExchangeTimes& exchange) { record(exchange); });
    }
  }

  double train_step(const ReadMicroBatch& read) override {
    begin_step(read, /*with_backward=*/true);
    const std::int64_t ahead = std::min<std::int64_t>(context_.world_size - 1 - context_.rank, num_microbatches());
    for (std::int64_t k = 0; k < ahead; ++k) {
      forward(read, k);
    }
    for (std::int64_t k = ahead; k < num_microbatches(); ++k) {
      forward(read, k);
      backward(k - ahead);
    }
    for (std::int64_t k = num_microbatches() - ahead; k < num_microbatches(); ++k) {
      backward(k);
    }
    outputs_sent_.complete_all();
    gradients_sent_.complete_all();
    sum_gradients();
    add_tied_gradients();
    return mean_loss();
  }

  double evaluate(const ReadMicroBatch& read) override {
    const at::NoGradGuard no_grad;
    begin_step(read, /*with_backward=*/false);
    for (std::int64_t k = 0; k < num_microbatches(); ++k) {
      run_chunk(read, k, next_input());
      outputs_sent_.complete_until(k + 1 - kPostedAhead);
    }
    outputs_sent_.complete_all();
    return mean_loss();
  }

  StepOutcome optimizer_step(torch::optim::Optimizer& optimizer, double clip_grad, bool skip) override {
    const double norm = norm_of_gradients();
    if (skip || !std::isfinite(norm)) {
      return {norm, true, find_first_bad()};
    }
    const ActionRing::Id step = ring_.begin(ActionKind::kCompute, "the optimizer step");
    norm_.clip(norm, clip_grad);
    optimizer.step();
    ring_.done(step);
    return {norm, false, {}};
  }

  const ActivityLog* activity() const override { return &ring_; }

  std::vector<GptChunk*> chunks() override { return {&chunk_}; }

  NamedTensors main_gradients() const override { return main_gradients_; }

  std::vector<std::int64_t> peak_micro_batches() const override {
    return {std::min<std::int64_t>(context_.world_size - context_.rank, num_microbatches())};
  }

  std::optional<std::string> recorded_actions() const override {
    if (!context_.config.record_actions) {
      return std::nullopt;
    }
    std::string row;
    for (const TraceSpan& action : recorder_.trace().actions) {
      row += (row.empty() ? "" : ",") + action.name;
    }
    return row;
  }

  std::optional<StepTrace> trace() const override {
    return context_.config.record_timeline > 0 ? std::optional(recorder_.trace()) : std::nullopt;
  }

 private:
  bool is_first() const { return context_.rank == 0; }
  bool is_last() const { return context_.rank == context_.world_size - 1; }
  std::int64_t num_microbatches() const { return context_.config.num_microbatches(); }
  std::int64_t global_micro_batch(std::int64_t k) const {
    const ProcessGroups& parallel = context_.parallel;
    return k * context_.config.data_parallel_size + parallel.layout().data_rank(parallel.rank());
  }

  void begin_step(const ReadMicroBatch& read, bool with_backward) {
    loss_sum_ = 0;
    finite_.begin_step();
    is_training_ = with_backward;
    loss_weight_ = is_last() ? total_weight(read) : 0;
    if (with_backward && exchanges_tied_gradients()) {
      tied_gradient_before_ = take_gradient(tied_parameter());
    }
    if (with_backward) {
      reduction_.begin();
      recorder_.begin();
    }
    inputs_.begin(is_first() ? 0 : num_microbatches());
    output_gradients_.begin(is_last() || !with_backward ? 0 : num_microbatches());
  }

  // Over all data-parallel ranks.
  double total_weight(const ReadMicroBatch& read) {
    double weight = 0;
    for (std::int64_t k = 0; k < num_microbatches(); ++k) {
      weight += token_loss_weight(read.targets(static_cast<int>(k)).loss_mask);
    }
    const CollectiveScope scope(ring_, "the sum of loss weights");
    return sum_over(context_.parallel.of(GroupKind::kData), at::full({1}, weight, at::kDouble)).item<double>();
  }

  at::Tensor next_input() { return is_first() ? at::Tensor() : inputs_.next(); }

  void forward(const ReadMicroBatch& read, std::int64_t k) {
    at::Tensor input = next_input();
    if (!is_first()) {
      input.requires_grad_();
      // The rank before is a forward further ahead: what it has sent shows which gradients it has used.
      gradients_sent_.complete_until(k - (context_.world_size - context_.rank));
    }
    const double start = begin_action('F', k);
    look(k, Crossing::kInput, input);
    recorder_.begin_activation();
    const at::Tensor root = run_chunk(read, k, input);
    in_flight_.push_back({std::move(input), torch::autograd::impl::gradient_edge(root)});
    end_action(start);
  }

  // The output, which is on its way to the next rank, or the loss.
  at::Tensor run_chunk(const ReadMicroBatch& read, std::int64_t k, const at::Tensor& input) {
    const int index = static_cast<int>(k);
    const at::Tensor given = is_first() ? read.tokens(index) : input;
    at::Tensor output;
    compute('F', [&] { output = chunk_.forward(given, global_micro_batch(k)); });
    if (!is_last()) {
      look(k, Crossing::kOutput, output);
      outputs_sent_.send(output, tag(kForwardTag, k), cell(context_.rank, "SEND_F", k));
      return output;
    }
    const Targets targets = read.targets(index);
    const at::Tensor loss =
        token_loss_sum(output, targets.labels, targets.loss_mask, {context_.parallel.of(GroupKind::kTensor)});
    look(k, Crossing::kLoss, loss);
    loss_sum_ += loss.item<double>();
    return loss;
  }

  void compute(char kind, const std::function<void()>& body) {
    if (context_.run) {
      context_.run(kind, body);
    } else {
      body();
    }
  }

  void backward(std::int64_t k) {
    InFlight step = std::move(in_flight_.front());
    in_flight_.pop_front();
    at::Tensor gradient = root_gradient(k);
    const double start = begin_action('B', k);
    look(k, Crossing::kOutputGradient, gradient);
    compute('B', [&] {
      torch::autograd::Engine::get_default_engine().execute({step.root}, {std::move(gradient)}, /*keep_graph=*/false,
                                                            /*create_graph=*/false, /*accumulate_grad=*/true);
    });
    if (!is_first()) {
      look(k, Crossing::kInputGradient, step.input.grad());
      gradients_sent_.send(step.input.grad(), tag(kBackwardTag, k), cell(context_.rank, "SEND_B", k));
    }
    step = {};
    recorder_.end_activation();
    end_action(start);
  }

  at::Tensor root_gradient(std::int64_t k) {
    if (is_last()) {
      const bool in_double = params_dtype(context_.config) == at::kDouble;
      return at::full({}, 1 / std::max(loss_weight_, 1.0), in_double ? at::kDouble : at::kFloat);
    }
    at::Tensor gradient = output_gradients_.next();
    outputs_sent_.complete_until(k + 1);  // The next rank has used output k: it sent this gradient.
    return gradient;
  }

  // The first and the last rank hold a copy of a tied weight each.
  bool exchanges_tied_gradients() const {
    return !context_.config.untie_embeddings_and_output_weights && context_.world_size > 1 && (is_first() || is_last());
  }

  const RankParameter& tied_parameter() const {
    return *std::find_if(parameters_.begin(), parameters_.end(), [this](const RankParameter& parameter) {
      return parameter.parameter.is_same(chunk_.embedding_weight());
    });
  }

  // Both copies get the sum of this step's two gradients, beside what earlier steps have left. Each is the sum over its
  // data-parallel ranks by now, and a sum of two does not depend on their order: the copies stay equal to the bit.
  void add_tied_gradients() {
    if (!exchanges_tied_gradients()) {
      return;
    }
    const int other = is_first() ? context_.world_size - 1 : 0;
    const at::Tensor gradient = tied_parameter().gradient();
    const Peer peer = peer_of(context_, other);
    const std::string name = "the gradient of the tied weight";
    PostedMessage theirs =
        post_receive(*context_.group, peer, kTiedTag, gradient.sizes(), gradient.scalar_type(), ring_, name);
    SendQueue mine(context_.group, peer, ring_);
    mine.send(gradient.clone(), kTiedTag, name);
    gradient.add_(theirs.wait());
    mine.complete_all();
    add_gradient(tied_parameter(), std::exchange(tied_gradient_before_, at::Tensor()));
  }

  // Tensor ranks have the same loss, and last ranks the same weight: one of them counts.
  double mean_loss() {
    const RankLayout& layout = context_.parallel.layout();
    const int rank = context_.parallel.rank();
    const bool counts = is_last() && layout.tensor_rank(rank) == 0;
    const at::Tensor sum = at::zeros({2}, at::kDouble);
    double* const sums = sum.mutable_data_ptr<double>();
    sums[0] = counts ? loss_sum_ : 0;
    sums[1] = counts && layout.data_rank(rank) == 0 ? loss_weight_ : 0;
    const CollectiveScope scope(ring_, "the mean loss");
    sum_over(context_.parallel.world(), sum);
    return sums[0] / std::max(sums[1], 1.0);
  }

  void sum_gradients() {
    const CollectiveScope scope(ring_, "the sum of gradients");
    reduction_.finish();
  }

  double norm_of_gradients() {
    const CollectiveScope scope(ring_, "the norm of gradients");
    return norm_.compute();
  }

  void look(std::int64_t k, Crossing crossing, const at::Tensor& tensor) {
    if (is_training_ && context_.config.check_for_nan_in_loss_and_grad) {
      finite_.look(k, crossing, tensor);
    }
  }

  // On this rank: what crossed its stage, else a gradient.
  std::optional<Sighting> first_bad() const {
    std::optional<Sighting> first = finite_.first();
    for (const RankParameter& parameter : parameters_) {
      if (!first && !is_finite(parameter.gradient())) {
        first = Sighting{{}, Crossing::kGradients, context_.rank, context_.parallel.rank(), parameter.name};
      }
    }
    return first;
  }

  // Of all ranks. Collective.
  std::optional<std::string> find_first_bad() {
    const CollectiveScope scope(ring_, "the search for what is not finite");
    const ProcessGroups& parallel = context_.parallel;
    std::optional<Sighting> first;
    for (const std::string& text : gather_texts(*context_.store, fmt::format("first_bad/{}", searches_++),
                                                parallel.rank(), parallel.world_size(), to_text(first_bad()))) {
      const std::optional<Sighting> sighting = sighting_from_text(text);
      if (sighting && (!first || sighting->is_before(*first))) {
        first = sighting;
      }
    }
    return first ? std::optional(first->describe()) : std::nullopt;
  }

  bool is_recording() const { return context_.config.record_actions || context_.config.record_timeline > 0; }

  // Now that what it needs is there.
  double begin_action(char kind, std::int64_t k) {
    std::string name = fmt::format("{}{}{}", context_.rank, kind, k);
    if (is_recording()) {
      action_ = name;
    }
    noted_ = ring_.begin(ActionKind::kCompute, std::move(name));
    return recorder_.seconds();
  }

  void end_action(double start) {
    ring_.done(noted_);
    if (is_recording()) {
      recorder_.add_action(std::exchange(action_, {}), start);
    }
  }

  // Of a training step: an evaluation has no actions.
  void record(const ExchangeTimes& exchange) {
    if (!action_.empty()) {
      recorder_.add_exchange(action_ + " " + exchange.phase, exchange.posted, exchange.waiting, exchange.done);
    }
  }

  // Without gradients, which grow as well: the rest of what grows in a step are activations.
  std::function<std::int64_t()> live_bytes() const {
    if (context_.config.record_timeline == 0 || !context_.memory) {
      return {};
    }
    return [this] { return context_.memory->in_use() - gradient_bytes(parameters_); };
  }

  const TrainContext context_;
  GptChunk chunk_;
  NamedTensors main_gradients_;
  std::vector<RankParameter> parameters_;
  GradientReduction reduction_;
  GradientNorm norm_;
  ActionRing ring_;
  ActionRing::Id noted_ = 0;  // The compute action under way.
  FiniteWatch finite_;
  bool is_training_ = false;
  std::int64_t searches_ = 0;  // For what is not finite.
  ReceiveQueue inputs_, output_gradients_;
  SendQueue outputs_sent_, gradients_sent_;
  std::deque<InFlight> in_flight_;
  double loss_sum_ = 0, loss_weight_ = 0;
  at::Tensor tied_gradient_before_;
  TraceRecorder recorder_;
  std::string action_;  // The one under way; empty between them, and where nothing is recorded.
};

void validate(const Config& config, int pipeline_size) {
  divide_layers(config, pipeline_size);
  if (config.virtual_pipeline_model_parallel_size.value_or(1) != 1) {
    throw UserError("builtin_1f1b", fmt::format("virtual_pipeline_model_parallel_size must be 1, got {}; leave it out",
                                                *config.virtual_pipeline_model_parallel_size));
  }
}

}  // namespace

ScheduleEntry builtin_1f1b() {
  return {"builtin_1f1b", "the trainer's own 1F1B: one stage per rank, any number of micro-batches", validate,
          [](const TrainContext& context) { return std::make_unique<Builtin1F1B>(context); }};
}

}  // namespace pretrain_gpt
