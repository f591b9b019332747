// examples/pretrain_gpt/config.h
//
// What a run is told to do: one flat set of keys with Megatron's names, from a YAML file and `--set key=value`
// overrides.
//
// load_config() is strict. Refused with file, line and key: an unknown key (with the nearest valid one), a key inside a
// section, a key given twice, a value of the wrong type or out of range. 0 is a value like any other: legal where a
// key's comment says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/layer_balance.h"

namespace pretrain_gpt {

// The most micro-batches of a step: a few message tags for each still fit an int.
inline constexpr std::int64_t kMostMicrobatches = std::int64_t{1} << 24;

struct Config {
  // Model.
  std::int64_t num_layers = 8;                  // Transformer layers, at least 1.
  std::int64_t hidden_size = 64;                // Width of the residual stream; a multiple of num_attention_heads.
  std::optional<std::int64_t> ffn_hidden_size;  // Width in the SwiGLU; default 8/3 hidden_size, up to a multiple of 32.
  std::int64_t num_attention_heads = 4;         // hidden_size / num_attention_heads is even (rotary embeddings).
  std::int64_t seq_length = 64;                 // Tokens of a sample.
  std::int64_t vocab_size = 256;                // Token ids are below it; 256 for bytes.
  double rotary_base = 10000;                   // Base of the rotary frequencies.
  double norm_epsilon = 1e-5;                   // Of the RMS norms.
  double init_method_std = 0.02;                // Standard deviation of initial weights.
  bool untie_embeddings_and_output_weights = false;  // true: the head has weights of its own.
  double hidden_dropout = 0;                         // Of what attention and MLP add to the residual stream; below 1.
  double attention_dropout = 0;                      // Of attention probabilities; below 1.
  // float32, float64 or bfloat16, which the optimizer pairs with float32 master weights.
  std::string params_dtype = "float32";

  // Mixture of experts.
  std::int64_t num_experts = 0;                             // Of each MoE layer; 0: all layers are dense.
  std::int64_t moe_router_topk = 2;                         // Experts of a token, at most num_experts.
  std::int64_t moe_layer_freq = 1;                          // Layers 0, n, 2n, ... have experts; 1: every layer.
  std::optional<std::int64_t> moe_ffn_hidden_size;          // Width in an expert; default that of a dense layer.
  std::int64_t moe_shared_expert_intermediate_size = 0;     // Width of the expert of all tokens; 0: none.
  std::string moe_router_load_balancing_type = "aux_loss";  // aux_loss or none.
  double moe_aux_loss_coeff = 0.01;                         // Of the auxiliary loss, beside the mean token loss.
  bool moe_router_enable_expert_bias = false;  // Add a bias to the scores that select, moved against the load.
  double moe_router_bias_update_rate = 1e-3;   // Its change per step.

  // Parallel layout (examples/pretrain_gpt/parallel/rank_layout.h). The data-parallel size is what it leaves of the
  // world.
  std::int64_t tensor_model_parallel_size = 1;  // Ranks that hold parts of one matrix; divides heads, ffn, vocabulary.
  std::int64_t expert_model_parallel_size = 1;  // Ranks that hold different experts; divides num_experts.
  std::optional<std::int64_t> expert_tensor_parallel_size;  // Ranks of one expert: 1, or the default, the tensor size.
  bool sequence_parallel = false;          // Tensor ranks hold parts of the sequence where they would hold copies.
  bool use_distributed_optimizer = false;  // Ranks with equal parameters divide the optimizer's state among them.
  // Gradients add up in float32 buffers. Default: true for bfloat16.
  std::optional<bool> accumulate_allreduce_grads_in_fp32;

  // Batch. The number of micro-batches of a step is global_batch_size / (micro_batch_size x data-parallel size), at
  // most kMostMicrobatches.
  std::int64_t micro_batch_size = 1;   // Samples of a micro-batch.
  std::int64_t global_batch_size = 8;  // Samples of a step, a multiple of micro_batch_size x data-parallel size.
  // What a step takes where the samples of a pass over the data end inside it: `continue` with the next pass; `pad`
  // with samples that do not count; `drop` the rest of the pass and start with the next.
  std::string last_batch = "continue";

  // Activations.
  std::string recompute_granularity = "none";  // none; selective: attention's core; full: every layer from its input.
  bool overlap_moe_expert_parallel_comm =
      true;  // The plugin's pairs interleave their phases, all-to-all beside compute.

  // Pipeline.
  std::string pipeline_schedule = "builtin_1f1b";  // A name from `pretrain_gpt schedules`, or a .csv file.
  // Ranks of the pipeline; default: all that tensor and expert sizes leave of the world.
  std::optional<std::int64_t> pipeline_model_parallel_size;
  std::optional<std::int64_t> virtual_pipeline_model_parallel_size;  // Chunks per rank; of interleaved_1f1b alone.
  std::vector<std::int64_t> pipeline_layer_counts;  // Layers of each stage, in stage order; empty: divided by cost.
  // Cost by which layers are divided: `even` counts multiplications, `measured` takes the layers of cost_file.
  std::string balance = "even";
  // The next two are for the plugin's schedules; builtin_1f1b takes them and does what it does without.
  bool variable_seq_lengths = false;         // Boundary shapes may differ between micro-batches.
  bool defer_tail_weight_gradients = false;  // Leave each rank's closing weight gradients to the optimizer step.
  // A file of `dualpipe profile`, for `balance: measured` and for `auto`, which needs the plugin: the costs to choose
  // under; empty: all layers cost the same, and overlapped pairs gain nothing.
  std::string cost_file;
  double schedule_search_s = 10;  // How much search `auto` does: about these seconds on two cores; a fixed amount.
  // What a rank may hold (1 GB = 10^9 bytes): `auto` chooses under it, by the bytes in cost_file; a run of another
  // schedule that needs more, by the formulas that the run prints at its end, is refused at its start. 0: no limit.
  double memory_limit_gb = 0;
  bool record_actions = false;       // Write the last step's actions to <output_dir>/actions.csv.
  bool record_phases = false;        // The plugin's stages run layer by layer, so that timelines show each.
  std::int64_t record_timeline = 0;  // Last steps whose times go to <output_dir>/timeline_rank<R>.jsonl; 0: none.

  // Training.
  std::int64_t train_iters = 200;              // Steps, at least 1.
  double lr = 3e-3;                            // Largest learning rate; 0 is legal.
  double min_lr = 0;                           // What it decays to, at most lr.
  std::int64_t lr_warmup_iters = 0;            // Steps of linear warm-up; 0: none.
  std::optional<std::int64_t> lr_decay_iters;  // Step at which min_lr is reached; default train_iters.
  double weight_decay = 0.01;                  // On matrices, not on norm weights; 0: none.
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.95;
  double adam_eps = 1e-8;
  double clip_grad = 1.0;    // Largest norm of all gradients together; 0: no clipping.
  std::int64_t seed = 1234;  // Of weights and sample order; 0 is a seed.
  // A step whose loss or gradients are not finite is skipped on every rank. Steps in a row that may be; with one more
  // the run ends. 0: it ends at the first.
  std::int64_t max_skipped_steps = 10;
  bool check_for_nan_in_loss_and_grad = true;  // Look at what enters and leaves stages, to say where it began.

  // Data.
  std::string data_path;           // Prefix of an indexed data set: <data_path>.bin and <data_path>.idx.
  std::string split = "99,1";      // Weights of the training and the validation part of the data.
  bool eod_mask_loss = false;      // Leave predictions of the end-of-document token (0) out of the loss.
  std::int64_t eval_interval = 0;  // Steps between evaluations; 0: none.
  std::int64_t eval_iters = 1;     // Global batches of an evaluation.

  // Checkpoints (examples/pretrain_gpt/checkpoint/checkpoints.h).
  std::string save;                // Folder, shared by all ranks, that gets iter_<iteration> folders; empty: none.
  std::int64_t save_interval = 0;  // Steps between saves; the last step is saved anyway. 0: that alone.
  bool async_save = false;         // Copy, train on, and write meanwhile: takes a copy in memory.
  std::int64_t checkpoints_to_keep = 2;     // Newest ones in `save`, at least 2; older ones are removed.
  std::string load;                         // Folder to go on from, by its newest complete checkpoint; empty: none.
  std::optional<std::int64_t> ckpt_step;    // Of this iteration instead of the newest.
  bool finetune = false;                    // Take the weights alone: step, optimizer and data begin anew.
  bool exit_on_missing_checkpoint = false;  // Refuse a `load` without checkpoints; false: begin anew.

  // Output and limits.
  std::string output_dir = "output";  // Gets metrics.jsonl; made if it is not there.
  std::int64_t log_interval = 10;     // Steps between log lines; metrics.jsonl has every step.
  std::int64_t timeout_s = 300;       // Longest wait for another rank, at least 1.
  // Longest time in which a rank that trains gets no further; then the run ends, and the rank that held the others up
  // is named. Default: timeout_s.
  std::optional<std::int64_t> step_timeout;

  // No key: what resolve() makes of the world.
  std::int64_t data_parallel_size = 1;
  // No key: with balance: measured, what cost_file says.
  std::optional<LayerTimes> layer_times;

  std::int64_t num_microbatches() const { return global_batch_size / (micro_batch_size * data_parallel_size); }
  std::int64_t ffn_size() const;      // ffn_hidden_size or its default.
  std::int64_t moe_ffn_size() const;  // moe_ffn_hidden_size or its default.
  bool is_moe_layer(std::int64_t layer) const { return num_experts > 0 && layer % moe_layer_freq == 0; }
  std::int64_t expert_tensor_size() const;  // expert_tensor_parallel_size or its default.
  bool accumulates_in_float32() const;      // accumulate_allreduce_grads_in_fp32 or its default.

  std::int64_t step_patience() const { return step_timeout.value_or(timeout_s); }  // In seconds.

  // pipeline_model_parallel_size; throws std::bad_optional_access before resolve().
  std::int64_t pipeline_size() const;
};

// `text` as given to --set: "key=value".
using Overrides = std::vector<std::string>;

// The file, then the overrides (examples/pretrain_gpt/overrides.h), then variables (run_variables.h; without `get`
// none), then the rules between keys.
Config load_config(const std::filesystem::path& file, const Overrides& overrides = {}, const GetVariable& get = {});

// The same from text; `name` stands for the file in messages.
Config parse_config(const std::string& yaml, const std::string& name, const Overrides& overrides = {},
                    const GetVariable& get = {});

// Gives the sizes that depend on the number of processes a value. Throws UserError where the given ones do not fit it.
void resolve(Config& config, int world_size);

// Every key with its value as text, in the order of Config.
std::vector<std::pair<std::string, std::string>> key_values(const Config& config);

}  // namespace pretrain_gpt
